// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// lockName is the name of the file whose lock gives one manager exclusive use of the state directory. It contains the PID of the manager that last took the
	// lock.
	lockName = "manager.lock"
	// lockPatience is how long New tries the lock before it returns an error or, with Options.Standby, becomes a standby. It is not 0, because a manager that is
	// killed during a fork leaves a child that holds the lock for a moment.
	lockPatience = time.Second
	// standbyPoll is how often a standby tries the lock. The kernel releases the lock when its holder exits for any reason.
	standbyPoll = 200 * time.Millisecond
)

// lockStateDir takes the lock of the state directory.
func (h *Host) lockStateDir() error {
	patience, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	held, err := h.single.TryLockContext(patience, 10*time.Millisecond)
	if standby := h.options.Standby; !held && standby != nil && errors.Is(err, context.DeadlineExceeded) {
		h.log.Info("Waiting until another manager releases the state directory", "directory", h.options.StateDir, "holder", h.lockHolder())
		held, err = h.single.TryLockContext(standby, standbyPoll)
	}
	switch {
	case held:
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("another berth manager uses the state directory %s (%s), and only one manager can use a state directory; "+
			"stop that manager, or start this one with --leader-elect to wait until it exits", h.options.StateDir, h.lockHolder())
	default:
		return fmt.Errorf("lock the state directory %s: %w", h.options.StateDir, err)
	}
	if err := os.WriteFile(h.single.Path(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return fmt.Errorf("lock the state directory: %w", err)
	}
	return nil
}

// lockHolder describes the process that holds the lock.
func (h *Host) lockHolder() string {
	data, err := os.ReadFile(h.single.Path())
	if err != nil {
		return "process unknown"
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return "process unknown"
	}
	return fmt.Sprintf("process %d", pid)
}
