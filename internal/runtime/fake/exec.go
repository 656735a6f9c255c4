// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// CheckProgram implements runtime.Inspection. It returns the failure that Program sets for the command.
func (r *Runtime) CheckProgram(p runtime.Process) (failure *facts.StartError, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behaviour(p.Command).StartError, true
}

// Exec simulates a command beside a process. It returns the exit that Program sets for the command, and exit code 0 by default.
func (r *Runtime) Exec(_ context.Context, p runtime.Process) (facts.Exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[p.UID]; w == nil || w.incarnations[p.Incarnation] == nil || w.incarnations[p.Incarnation].Phase != facts.Running {
		return facts.Exit{}, runtime.ErrNotFound
	}
	program := r.behaviour(p.Command)
	switch {
	case program.StartError != nil:
		return facts.Exit{}, program.StartError
	case program.Exit != nil:
		return *program.Exit, nil
	}
	return facts.Exit{Known: true}, nil
}
