// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Host is the host backend, which so far exists on Linux only.
type Host struct {
	runtime.Runtime
	runtime.Logs
	runtime.Terminals
	runtime.Inspection
	runtime.Keeper
}

// New says what this system lacks.
func New(options Options) (*Host, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	return nil, errors.New("the host runtime needs Linux: telling processes apart safely rests on its pidfds; use another runtime on this system")
}

// Run waits for the end of the context.
func (h *Host) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close has nothing to release.
func (h *Host) Close() error { return nil }

// Containment is empty: nothing can be contained.
func (h *Host) Containment() string { return "" }

// Directory is empty: there are no files.
func (h *Host) Directory(types.UID) string { return "" }
