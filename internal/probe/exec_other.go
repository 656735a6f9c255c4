// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package probe

import (
	"context"
	"os/exec"
	"syscall"
)

// finish waits for the command, until the context ends at most, and then kills its process group. Here an end can't be seen without reaping, so
// what a command that ended in time left in the background is not killed: its group's number may be another's by then.
func finish(ctx context.Context, command *exec.Cmd) (timedOut bool, err error) {
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-ended:
		return false, err
	case <-ctx.Done():
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		return true, <-ended
	}
}
