// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tmux

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Runtime is the tmux backend, which currently supports only Linux.
type Runtime struct {
	runtime.Runtime
	runtime.Logs
	runtime.Terminals
	runtime.Adoption
	runtime.Inspection
}

var errSystem = fmt.Errorf("the tmux runtime needs Linux, because the host runtime identifies processes with pidfds: %w", errors.ErrUnsupported)

// New returns an error, because the tmux runtime needs Linux.
func New(_ Host, options Options) (*Runtime, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	return nil, errSystem
}

// Close does nothing, because New never succeeds.
func (r *Runtime) Close() {}

// Keep does nothing.
func (r *Runtime) Keep(types.UID, bool) {}

// Sessions returns an error, because the tmux runtime needs Linux.
func (r *Runtime) Sessions(context.Context, string) ([]Session, error) { return nil, errSystem }

// Place returns false.
func (r *Runtime) Place(types.UID) (Place, bool) { return Place{}, false }

// assume does nothing, because New never succeeds.
func (client) assume(*exec.Cmd) {}
