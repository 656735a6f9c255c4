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

// processIdentity is weaker here than on Linux: the PID alone. So a leftover is never touched, only reported.
type processIdentity struct {
	PID int `json:"pid"`
}

func identify(pid int) (processIdentity, error) { return processIdentity{PID: pid}, nil }

// alive says that nothing lives when the PID is free, and fails when it is taken: by whom cannot be told on this system.
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
	return false, fmt.Errorf("process %d may still be it, which cannot be verified on this system: end it by hand, or remove the pid file", p.PID)
}
