// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"k8s.io/apimachinery/pkg/util/wait"
)

// ownerPoll is how often Owner.Stop checks whether the owner has ended.
const ownerPoll = 50 * time.Millisecond

// Owner is the process that runs the control plane of a state directory.
type Owner struct {
	// PID is the process ID.
	PID     int
	root    string
	process *os.Process
}

// FindOwner returns the process that has locked the state directory, or nil if no process has locked it.
func FindOwner(stateDir string) (*Owner, error) {
	pid, err := lockHolder(stateDir)
	if pid == 0 || err != nil {
		return nil, err
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("find process %d: %w", pid, err)
	}
	// The holder is read again after the handle was opened, so that the handle refers to the holder, not to a later process with the same PID.
	again, err := lockHolder(stateDir)
	if err != nil || again != pid {
		return nil, errors.Join(err, process.Release())
	}
	return &Owner{PID: pid, root: stateDir, process: process}, nil
}

// Stop requests an orderly shutdown of the owner with SIGTERM, and waits until the owner has released the state directory or the context is done.
func (o *Owner) Stop(ctx context.Context) error {
	if err := o.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop process %d: %w", o.PID, err)
	}
	return wait.PollUntilContextCancel(ctx, ownerPoll, true, func(context.Context) (bool, error) {
		pid, err := lockHolder(o.root)
		return pid != o.PID, err
	})
}

// LeftBehind reports whether a killed owner left the control plane of the state directory running. It returns an error if the state directory is locked.
func LeftBehind(stateDir string) (left bool, err error) {
	held, err := takeLock(stateDir)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, releaseLock(held)) }()
	found, err := findLeftover(layout{stateDir})
	return found != nil, err
}

// StopLeftBehind stops the control plane that a killed owner of the state directory left running, without starting another one. It returns an error if the
// state directory is locked.
func StopLeftBehind(opts Options) (err error) {
	setDefaults(&opts)
	held, err := takeLock(opts.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, releaseLock(held)) }()
	c := &ControlPlane{dir: layout{opts.StateDir}, opts: opts}
	found, err := findLeftover(c.dir)
	if err != nil {
		return err
	}
	return c.endLeftover(found)
}

// lockHolder returns the PID of the process that has locked the state directory, or 0. A process that has just taken the lock may not have written its PID yet.
func lockHolder(root string) (pid int, err error) {
	_ = wait.ExponentialBackoff(wait.Backoff{Duration: 10 * time.Millisecond, Steps: 10}, func() (bool, error) {
		pid, err = readLock(root)
		return err == nil, nil
	})
	return pid, err
}

func readLock(root string) (int, error) {
	path := layout{root}.lock()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	file := flock.New(path, flock.SetPermissions(0o600))
	free, err := file.TryRLock()
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, fmt.Errorf("inspect the lock %s: %w", path, err)
	}
	if free {
		return 0, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("inspect the lock %s: %w", path, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("the lock %s is held by an unknown process: %w", path, err)
	}
	return pid, nil
}
