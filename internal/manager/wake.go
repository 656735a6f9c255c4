// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controllers/process"
)

// waker forwards UIDs with events to a dispatcher, so that the source of an event never waits for the cache.
type waker struct {
	dispatcher *process.Dispatcher
	poke       chan struct{}

	mu      sync.Mutex
	pending map[types.UID]bool
}

func newWaker(dispatcher *process.Dispatcher) *waker {
	return &waker{dispatcher: dispatcher, poke: make(chan struct{}, 1), pending: map[types.UID]bool{}}
}

// NeedLeaderElection returns true, so that the waker starts together with the controllers. The controllers begin by reconciling all objects, so earlier
// events are not needed.
func (w *waker) NeedLeaderElection() bool { return true }

// tell queues a UID. It never blocks.
func (w *waker) tell(uid types.UID) {
	w.mu.Lock()
	w.pending[uid] = true
	w.mu.Unlock()
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// Start forwards UIDs until the context is done.
func (w *waker) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.poke:
		}
		w.mu.Lock()
		told := w.pending
		w.pending = map[types.UID]bool{}
		w.mu.Unlock()
		for uid := range told {
			w.dispatcher.Wake(ctx, uid)
		}
	}
}
