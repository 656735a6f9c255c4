// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
)

// claimants returns the DevServers that may claim a port. It reads them from the API server only if the cache may not suffice. The cache suffices for a port
// that the object already holds, because no other object can take it. The cache also suffices for a port that is still to be chosen, because every recent
// assignment of this manager is reserved and the cache contains all older ones. A manager that began to assign ports less than arbitration.ReservationTime ago
// reads from the API server in this case too, because it has no reservations for the last assignments of an earlier manager.
func (k *Kind) claimants(ctx context.Context, dev *v1alpha1.DevServer, ports assignment) (*v1alpha1.DevServerList, error) {
	for _, port := range ports.list() {
		own, _ := claimOn(dev, port)
		chooses := port == 0 && k.age() >= arbitration.ReservationTime
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

// nextList is the key of listCoalescer.next.
const nextList = "next"

// listTimeout bounds one list call of a listCoalescer.
const listTimeout = 30 * time.Second

// listCoalescer lists all DevServers from the API server. Callers that arrive during a list call share the next call. Therefore no caller receives a list from
// before its request, and a thousand servers that start at the same time do not cause a thousand long list calls. A list call does not end with the context of
// the caller that started it, because other callers share it.
type listCoalescer struct {
	reading sync.Mutex         // held during a list call
	next    singleflight.Group // the list call that has not started yet
}

// read returns a shared list, which must not be modified.
func (e *listCoalescer) read(ctx context.Context, reader client.Reader) (*v1alpha1.DevServerList, error) {
	call := e.next.DoChan(nextList, func() (any, error) {
		e.reading.Lock()
		defer e.reading.Unlock()
		e.next.Forget(nextList) // this call starts now; later callers wait for another one
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
		defer cancel()
		all := &v1alpha1.DevServerList{}
		return all, reader.List(ctx, all)
	})
	select {
	case result := <-call:
		if result.Err != nil {
			return nil, fmt.Errorf("list the DevServers that may claim a port: %w", result.Err)
		}
		return result.Val.(*v1alpha1.DevServerList), nil // the call returns nothing else
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the DevServers that may claim a port: %w", ctx.Err())
	}
}
