// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tmux

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/screen"
)

// Runtime is the tmux backend, which so far exists on Linux only.
type Runtime struct {
	runtime.Runtime
	runtime.Inspector
	runtime.Logger
	runtime.Attacher
	runtime.Watcher
	runtime.Census
	runtime.ProgramChecker
}

var errSystem = fmt.Errorf("the tmux runtime needs Linux: it rests on the host runtime, which tells processes apart by pidfds: %w", errors.ErrUnsupported)

// New says what this system lacks.
func New(_ Host, options Options) (*Runtime, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	return nil, errSystem
}

// Close has nothing to release.
func (r *Runtime) Close() {}

// OnChange has nothing to tell.
func (r *Runtime) OnChange(func(types.UID)) {}

// Keep has nothing to keep.
func (r *Runtime) Keep(types.UID, bool) {}

// Check says what this system lacks.
func (r *Runtime) Check(context.Context, runtime.Process) error { return errSystem }

// Sessions says what this system lacks.
func (r *Runtime) Sessions(context.Context, string) ([]Session, error) { return nil, errSystem }

// FindSessions says what this system lacks.
func (r *Runtime) FindSessions(context.Context, string) ([]runtime.Found, error) {
	return nil, errSystem
}

// Release says what this system lacks.
func (r *Runtime) Release(context.Context, types.UID) error { return errSystem }

// Type says what this system lacks.
func (r *Runtime) Type(context.Context, types.UID, []byte) error { return errSystem }

// Capture says what this system lacks.
func (r *Runtime) Capture(context.Context, types.UID) (screen.View, error) {
	return screen.View{}, errSystem
}

// Input fails on this system.
func (r *Runtime) Input(context.Context, types.UID) (screen.Input, error) {
	return screen.Input{}, errSystem
}

// AttachCommand is empty.
func (r *Runtime) AttachCommand(types.UID) string { return "" }

// Place knows of none.
func (r *Runtime) Place(types.UID) (Place, bool) { return Place{}, false }
