// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// finish waits for the command, until the context ends at most, and kills what is left of its process group.
func finish(ctx context.Context, command *exec.Cmd) (timedOut bool, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		awaitEnd(command.Process.Pid)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		timedOut = true
	}
	// The leader is not reaped yet, so its number still belongs to it, and to its group.
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	<-ended
	return timedOut, command.Wait()
}

// awaitEnd waits until the process has ended and leaves it unreaped, so that its number can't be given to another one yet.
func awaitEnd(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
