// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package controlplane

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// processIdentity is weaker than on Linux, because it contains only the PID. A process that an earlier run left behind is therefore reported but never
// signaled.
type processIdentity struct {
	PID int `json:"pid"`
}

func identify(pid int) (processIdentity, error) { return processIdentity{PID: pid}, nil }

// alive returns false if the PID is free. It returns an error if the PID is in use, because this system cannot identify the process.
func (p processIdentity) alive() (bool, error) {
	process, err := os.FindProcess(p.PID)
	if err != nil {
		return false, nil //nolint:nilerr // no such process
	}
	defer func() { _ = process.Release() }()
	err = process.Signal(syscall.Signal(0))
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return false, nil
	}
	return false, fmt.Errorf("cannot verify on this system whether process %d is the recorded one: stop that process, or remove the pid file", p.PID)
}
