// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// run executes the command in a process group of its own, which is killed whole at the timeout. Its output is dropped: it may hold secrets.
func (e *Exec) run(ctx context.Context, timeout time.Duration) outcome {
	if len(e.Command) == 0 {
		return failed("the command of the probe is empty")
	}
	command := exec.Command(e.Command[0], e.Command[1:]...) //nolint:gosec // argv from the spec is what a probe is
	command.Dir = e.Dir
	command.Env = append(os.Environ(), e.Env...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return failed(fmt.Sprintf("%s could not be started: %s", e.Command[0], startError(err)))
	}
	timedOut, err := finish(ctx, command)
	var exit *exec.ExitError
	switch {
	case timedOut:
		return failed(fmt.Sprintf("%s did not end within %s", e.Command[0], timeout))
	case err == nil:
		return outcome{ok: true}
	case errors.As(err, &exit) && exit.Exited():
		return failed(fmt.Sprintf("%s ended with exit code %d", e.Command[0], exit.ExitCode()))
	default:
		return failed(fmt.Sprintf("%s was ended by a signal", e.Command[0]))
	}
}

// startError takes the path and the arguments out of the text.
func startError(err error) string {
	var system syscall.Errno
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "not found in PATH"
	case errors.As(err, &system):
		return system.Error()
	}
	return err.Error()
}
