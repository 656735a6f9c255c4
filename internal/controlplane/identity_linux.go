// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// processIdentity tells a process from a later one with the same PID.
type processIdentity struct {
	PID        int    `json:"pid"`
	StartTicks int64  `json:"startTicks"`
	BootID     string `json:"bootID"`
}

func identify(pid int) (processIdentity, error) {
	boot, err := bootID()
	if err != nil {
		return processIdentity{}, err
	}
	ticks, _, err := stat(pid)
	if err != nil {
		return processIdentity{}, err
	}
	return processIdentity{PID: pid, StartTicks: ticks, BootID: boot}, nil
}

// alive says whether this very process still runs. One that has ended and was not collected by its parent does not.
func (p processIdentity) alive() (bool, error) {
	boot, err := bootID()
	if err != nil {
		return false, err
	}
	if boot != p.BootID {
		return false, nil
	}
	ticks, state, err := stat(p.PID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return ticks == p.StartTicks && state != "Z" && state != "X", nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// stat reads start time and state from /proc/PID/stat. The name in it is in brackets and may hold anything, so fields count from its end.
func stat(pid int) (ticks int64, state string, err error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, "", fmt.Errorf("look at process %d: %w", pid, err)
	}
	end := strings.LastIndexByte(string(data), ')')
	fields := strings.Fields(string(data)[end+1:])
	if end < 0 || len(fields) < 20 {
		return 0, "", fmt.Errorf("%s has an unknown form", path)
	}
	ticks, err = strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("read %s: %w", path, err)
	}
	return ticks, fields[0], nil
}
