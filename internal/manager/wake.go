// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"

	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime/eventqueue"
)

// waker forwards UIDs with events to a dispatcher, so that the source of an event never waits for the cache.
type waker struct {
	*eventqueue.Queue

	dispatcher *process.Dispatcher
}

func newWaker(dispatcher *process.Dispatcher) *waker { return &waker{eventqueue.New(), dispatcher} }

// NeedLeaderElection returns true, so that the waker starts together with the controllers. The controllers begin by reconciling all objects, so earlier
// events are not needed.
func (w *waker) NeedLeaderElection() bool { return true }

// Start forwards UIDs until the context is done.
func (w *waker) Start(ctx context.Context) error {
	go w.Run(ctx.Done())
	for {
		select {
		case <-ctx.Done():
			return nil
		case uid := <-w.C():
			w.dispatcher.Wake(ctx, uid)
		}
	}
}
