// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"

	"github.com/moby/moby/api/types/container"

	"github.com/berth-dev/berth/internal/facts"
)

// signals are the signal numbers of Linux, because containers run on Linux even if the manager runs on another system.
var signals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGUSR1": 10, "SIGUSR2": 12, "SIGTERM": 15,
}

// exit returns the exit of a container. An engine reports one number, so a program killed by signal N looks like one that exited with 128+N. exit reports a
// signal only if Berth sent it.
func (d *record) exit(state *container.State) *facts.Exit {
	e := &facts.Exit{Known: true, Code: int32(state.ExitCode), FinishedAt: when(state.FinishedAt)}
	by := func(signal string) bool {
		n, known := signals[signal]
		return known && state.ExitCode == 128+n
	}
	switch {
	case d.KillSent && by("SIGKILL"):
		e.Code, e.Signal = 0, "SIGKILL"
	case d.StopSent && by(d.StopSignal):
		e.Code, e.Signal = 0, d.StopSignal
	case state.OOMKilled:
		e.Message = "the container exceeded its memory limit"
	default:
		for name := range signals {
			if by(name) {
				e.Message = fmt.Sprintf("exit code %d: either %s terminated the program, or the program exited with this code", state.ExitCode, name)
			}
		}
	}
	if state.Error != "" && e.Message == "" {
		e.Message = state.Error
	}
	return e
}
