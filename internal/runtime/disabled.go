// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
)

// disable returns a runtime that starts nothing, for the given reason, but still stops the processes of the given runtime. The reason is shown to the
// users of objects.
func disable(runtime Runtime, reason string) Runtime { return disabled{runtime, reason} }

type disabled struct {
	Runtime
	reason string
}

// Capabilities implements Runtime.
func (d disabled) Capabilities() Capabilities { return Capabilities{Disabled: d.reason} }

// Start implements Runtime. It always fails.
func (d disabled) Start(context.Context, Process) error { return errors.New(d.reason) }

// NoRuntime is the runtime of a manager that must not run programs itself, such as one in a cluster. It never has an incarnation.
type NoRuntime struct {
	Local
	// Reason is shown to the users of objects.
	Reason string
}

var _ Runtime = NoRuntime{}

// Capabilities implements Runtime.
func (n NoRuntime) Capabilities() Capabilities { return Capabilities{Disabled: n.Reason} }

// Start implements Runtime. It always fails.
func (n NoRuntime) Start(context.Context, Process) error { return errors.New(n.Reason) }

// Stop implements Runtime.
func (NoRuntime) Stop(context.Context, types.UID, int64) error { return nil }

// Kill implements Runtime.
func (NoRuntime) Kill(context.Context, types.UID, int64) error { return nil }

// Observe implements Runtime.
func (NoRuntime) Observe(context.Context, types.UID) ([]facts.Incarnation, error) { return nil, nil }

// List implements Runtime.
func (NoRuntime) List(context.Context) ([]facts.Incarnation, error) { return nil, nil }

// Forget implements Runtime.
func (NoRuntime) Forget(context.Context, types.UID) error { return nil }

// Events implements Runtime. A nil channel never delivers anything.
func (NoRuntime) Events() <-chan types.UID { return nil }
