// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"

	"github.com/berth-dev/berth/internal/runtime"
)

var _ runtime.Executor = (*Runtime)(nil)

// Exec simulates a command beside a process. It returns the exit that Program sets for the command, and exit code 0 by default.
func (r *Runtime) Exec(_ context.Context, p runtime.Process) (runtime.Exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[p.UID]; w == nil || w.incarnations[p.Incarnation] == nil || w.incarnations[p.Incarnation].Phase != runtime.Running {
		return runtime.Exit{}, runtime.ErrNotFound
	}
	program := r.behaviour(p.Command)
	switch {
	case program.StartError != nil:
		return runtime.Exit{}, program.StartError
	case program.Exit != nil:
		return *program.Exit, nil
	}
	return runtime.Exit{Known: true}, nil
}
