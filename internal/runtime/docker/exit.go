// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"github.com/moby/moby/api/types/container"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// exit returns the exit of a container. An engine reports one number, so a program killed by signal N looks like one that exited with 128+N. exit reports a
// signal only if Berth sent it.
func (d *record) exit(state *container.State) *facts.Exit {
	e := &facts.Exit{Known: true, Code: int32(state.ExitCode), FinishedAt: when(state.FinishedAt)}
	switch {
	case d.KillSent && oci.EndedBy(state.ExitCode, "SIGKILL"):
		e.Code, e.Signal = 0, "SIGKILL"
	case d.StopSent && oci.EndedBy(state.ExitCode, d.StopSignal):
		e.Code, e.Signal = 0, d.StopSignal
	case state.OOMKilled:
		e.Message = "the container exceeded its memory limit"
	default:
		e.Message = oci.SignalHint(state.ExitCode)
	}
	if state.Error != "" && e.Message == "" {
		e.Message = state.Error
	}
	return e
}
