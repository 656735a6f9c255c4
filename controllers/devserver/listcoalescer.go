// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// claimants returns the DevServers that may claim a port. It reads them from the API server only if the cache may not suffice. The cache suffices for a port
// that the object already holds, because no other object can take it. The cache also suffices for a port that is still to be chosen, because every recent
// assignment of this manager is reserved and the cache contains all older ones. A manager that began to assign ports less than reservationTime ago reads from
// the API server in this case too, because it has no reservations for the last assignments of an earlier manager.
func (k *Kind) claimants(ctx context.Context, dev *v1alpha1.DevServer, ports assignment) (*v1alpha1.DevServerList, error) {
	for _, port := range ports.list() {
		own, _ := claimOn(dev, port)
		chooses := port == 0 && k.age() >= reservationTime
		if !chooses && (port == 0 || !own.Holds) {
			return k.lister.read(ctx, k.reader)
		}
	}
	var all v1alpha1.DevServerList
	if err := k.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil { // read-only
		return nil, fmt.Errorf("list the DevServers that may claim a port: %w", err)
	}
	return &all, nil
}

// age returns the time since this manager first assigned ports.
func (k *Kind) age() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.began.IsZero() {
		k.began = k.clock.Now()
	}
	return k.clock.Since(k.began)
}

// listCoalescer lists all DevServers from the API server. Callers that arrive during a list call share the next call. Therefore no caller receives a list from
// before its request, and a thousand servers that start at the same time do not cause a thousand long list calls.
type listCoalescer struct {
	reading sync.Mutex // held during a list call

	mu   sync.Mutex
	next *listCall // the list call that has not started yet
}

// listCall is the result of one list call. It is shared and must not be modified.
type listCall struct {
	done chan struct{}
	all  v1alpha1.DevServerList
	err  error
}

func (e *listCoalescer) read(ctx context.Context, reader client.Reader) (*v1alpha1.DevServerList, error) {
	e.mu.Lock()
	mine, first := e.next, e.next == nil
	if first {
		mine = &listCall{done: make(chan struct{})}
		e.next = mine
	}
	e.mu.Unlock()
	if first {
		e.call(ctx, reader, mine)
	}
	select {
	case <-mine.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the DevServers that may claim a port: %w", ctx.Err())
	}
	if mine.err != nil {
		return nil, fmt.Errorf("list the DevServers that may claim a port: %w", mine.err)
	}
	return &mine.all, nil
}

// call lists the DevServers after the current list call, if any, has finished.
func (e *listCoalescer) call(ctx context.Context, reader client.Reader, mine *listCall) {
	e.reading.Lock()
	defer e.reading.Unlock()
	e.mu.Lock()
	e.next = nil // this call starts now; later callers wait for another one
	e.mu.Unlock()
	defer close(mine.done)
	mine.err = reader.List(ctx, &mine.all)
}
