// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package none is the runtime of a manager that may run nothing itself: one in a cluster, whose own Pod is no place for the processes of users.
// Objects are refused with a reason and can still be changed and deleted.
package none

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// message is what people read at their objects.
const message = "This manager was started without a runtime, so nothing is run. Give it one with --runtimes, " +
	"or run a manager on a machine of your own (berth up)."

// errNone answers whoever asks for a start all the same.
var errNone = errors.New("this manager has no runtime")

// Runtime has nothing and starts nothing.
type Runtime struct{ events chan types.UID }

var (
	_ runtime.Runtime  = &Runtime{}
	_ runtime.Disabled = &Runtime{}
)

// New gives the runtime.
func New() *Runtime { return &Runtime{events: make(chan types.UID)} }

// Without is a runtime of which one thing is missing: it starts nothing, and still ends what was started before.
type Without struct {
	runtime.Runtime
	// Why is what people read at their objects.
	Why string
}

// Disabled says why nothing is started.
func (w Without) Disabled() string { return w.Why }

// Start fails; it is not called for objects that were refused.
func (w Without) Start(context.Context, runtime.Process) error { return errors.New(w.Why) }

// Disabled says why nothing is started.
func (*Runtime) Disabled() string { return message }

// Start fails; it is not called for objects that were refused.
func (*Runtime) Start(context.Context, runtime.Process) error { return errNone }

// Stop has nothing to stop.
func (*Runtime) Stop(context.Context, types.UID, int64) error { return nil }

// Kill has nothing to end.
func (*Runtime) Kill(context.Context, types.UID, int64) error { return nil }

// Observe finds nothing.
func (*Runtime) Observe(context.Context, types.UID) ([]facts.Incarnation, error) { return nil, nil }

// List finds nothing.
func (*Runtime) List(context.Context) ([]facts.Incarnation, error) { return nil, nil }

// Forget has nothing to remove.
func (*Runtime) Forget(context.Context, types.UID) error { return nil }

// Events carries nothing, ever.
func (r *Runtime) Events() <-chan types.UID { return r.events }

// Close has nothing to let go of.
func (*Runtime) Close() error { return nil }
