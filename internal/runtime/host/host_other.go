// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package host

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Host is the host backend, which currently supports only Linux.
type Host struct {
	runtime.Runtime
	runtime.Logs
	runtime.Terminals
	runtime.Inspection
	runtime.ResultStore
}

// New returns an error, because the host runtime needs Linux.
func New(options Options) (*Host, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	return nil, errors.New("the host runtime needs Linux, because it identifies processes with pidfds; use another runtime on this system")
}

// Close does nothing, because there is nothing to release.
func (h *Host) Close() error { return nil }

// Announce does nothing, because no events are emitted.
func (h *Host) Announce(types.UID) {}

// Containment returns the empty string.
func (h *Host) Containment() string { return "" }

// Directory returns the empty string.
func (h *Host) Directory(types.UID) string { return "" }
