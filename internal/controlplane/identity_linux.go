// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"

	"github.com/berth-dev/berth/internal/procstat"
)

// processIdentity distinguishes a process from a later one with the same PID.
type processIdentity struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"`
	BootID     string `json:"bootID"`
}

func identify(pid int) (processIdentity, error) {
	boot, err := procstat.BootID()
	if err != nil {
		return processIdentity{}, fmt.Errorf("read the boot id: %w", err)
	}
	process, err := procstat.Identify(pid)
	if err != nil {
		return processIdentity{}, fmt.Errorf("inspect process %d: %w", pid, err)
	}
	return processIdentity{PID: pid, StartTicks: process.Ticks, BootID: boot}, nil
}

// alive reports whether this process still runs or still holds ports and files that its successor needs. A zombie that its parent has not collected is not
// alive.
func (p processIdentity) alive() (bool, error) {
	boot, err := procstat.BootID()
	if err != nil {
		return false, fmt.Errorf("read the boot id: %w", err)
	}
	if boot != p.BootID {
		return false, nil
	}
	alive, err := procstat.Alive(procstat.Process{PID: p.PID, Ticks: p.StartTicks})
	if err != nil {
		return false, fmt.Errorf("inspect process %d: %w", p.PID, err)
	}
	return alive, nil
}
