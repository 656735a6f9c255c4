// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-dev/berth/internal/runtime"
)

// Dispatcher receives the UIDs whose backend state has changed and adds the object of each UID to the queue of its controller. It is a Runnable of the
// manager and runs where the controllers run: in the leader.
type Dispatcher struct {
	cache  client.Reader
	events []<-chan types.UID
	// stranger is called with each UID that has no object.
	stranger func(types.UID)

	mu    sync.Mutex
	kinds []*subscription
}

// subscription is the queue of one controller.
type subscription struct {
	kind  Kind
	queue workqueue.TypedRateLimitingInterface[ctrl.Request]
}

// NewDispatcher returns a dispatcher for the events of backends, which no other reader may consume. cache must have the index IndexUID. stranger
// receives the UIDs that have no object; nil ignores them.
func NewDispatcher(cache client.Reader, backends []runtime.Runtime, stranger func(types.UID)) *Dispatcher {
	var events []<-chan types.UID
	for _, backend := range backends {
		events = append(events, backend.Events())
	}
	if stranger == nil {
		stranger = func(types.UID) {}
	}
	return &Dispatcher{cache: cache, events: events, stranger: stranger}
}

// Start forwards events until the context ends. Events that arrive before a controller has its queue are not lost, because a controller begins by
// reconciling all of its objects.
func (d *Dispatcher) Start(ctx context.Context) error {
	var reading sync.WaitGroup
	for _, events := range d.events {
		reading.Go(func() { d.forward(ctx, events) })
	}
	<-ctx.Done()
	reading.Wait()
	return nil
}

func (d *Dispatcher) forward(ctx context.Context, events <-chan types.UID) {
	for {
		select {
		case <-ctx.Done():
			return
		case uid, open := <-events:
			if !open {
				return
			}
			d.Wake(ctx, uid)
		}
	}
}

// Wake enqueues the object with that UID. It may wait until the cache has synced, but does not wait for a reconcile. A UID without an object is passed to
// stranger.
func (d *Dispatcher) Wake(ctx context.Context, uid types.UID) {
	for _, s := range d.subscriptions() {
		found := Requests(ctx, d.cache, s.kind.NewList(), client.MatchingFields{IndexUID: string(uid)})
		if len(found) > 0 {
			s.queue.Add(found[0])
			return
		}
	}
	d.stranger(uid)
}

func (d *Dispatcher) subscriptions() []*subscription {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]*subscription(nil), d.kinds...)
}

// source registers the queue of a controller with the dispatcher.
func (d *Dispatcher) source(kind Kind) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[ctrl.Request]) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.kinds = append(d.kinds, &subscription{kind: kind, queue: queue})
		return nil
	})
}
