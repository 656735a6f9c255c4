// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// run executes the command beside the process.
func (e *Exec) run(ctx context.Context, timeout time.Duration) outcome {
	switch {
	case len(e.Process.Command) == 0:
		return failed("The probe has no command. Set exec.command.")
	case e.Inspection == nil:
		return failed("This runtime does not support exec probes. Use httpGet or tcpSocket.")
	}
	name := strconv.Quote(e.Process.Command[0]) // quoted, so that conditions.Sentence does not capitalize the name
	exit, err := e.Inspection.Exec(ctx, e.Process)
	var start *facts.StartError
	switch {
	case errors.As(err, &start):
		return failed(fmt.Sprintf("%s could not be started: %s", name, startError(start)))
	case errors.Is(err, runtime.ErrNotEnded):
		return failed(fmt.Sprintf("%s did not exit within %s or after SIGKILL", name, timeout))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return failed(fmt.Sprintf("%s did not exit within %s", name, timeout))
	case err != nil:
		return failed(fmt.Sprintf("%s: %v", name, err))
	case exit.Signal != "":
		return failed(fmt.Sprintf("%s was terminated by %s", name, exit.Signal))
	case exit.Code != 0:
		return failed(fmt.Sprintf("%s ended with exit code %d", name, exit.Code))
	}
	return outcome{ok: true}
}

// startError returns the cause of err without paths and fields of the spec: the error of a backend names the fields of spec.process, not those of the
// probe.
func startError(err *facts.StartError) string {
	switch err.Reason {
	case v1alpha1.ReasonCommandNotFound:
		return "not found in PATH"
	case v1alpha1.ReasonPermissionDenied:
		return "permission denied"
	case v1alpha1.ReasonWorkingDirMissing:
		return "the working directory does not exist"
	}
	return err.Message
}
