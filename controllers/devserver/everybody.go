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

// claimants gives those who may claim a port: read past the cache where that could make a difference. It makes none for a port that the object
// holds already, as nobody can take it away; and none for a port that is still to be chosen, as all that this manager has given away lately is
// reserved, and the cache knows everything that is older than that. What a manager before this one did may be missing at first.
func (k *Kind) claimants(ctx context.Context, dev *v1alpha1.DevServer, ports assignment) (*v1alpha1.DevServerList, error) {
	for _, port := range ports.list() {
		own, _ := claimOn(dev, port)
		chooses := port == 0 && k.age() >= reservationTime
		if !chooses && (port == 0 || !own.Holds) {
			return k.everybody.read(ctx, k.reader)
		}
	}
	var all v1alpha1.DevServerList
	if err := k.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil { // nobody changes them
		return nil, fmt.Errorf("list the devservers that may claim a port: %w", err)
	}
	return &all, nil
}

// age is for how long ports have been given away.
func (k *Kind) age() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.began.IsZero() {
		k.began = k.clock.Now()
	}
	return k.clock.Since(k.began)
}

// everybody reads all DevServers past the cache. Whoever asks while a list is being read gets the next one, together with all others who wait for
// it: nobody gets an answer that is older than the question, and a thousand servers that start at once don't cost a thousand long lists.
type everybody struct {
	reading sync.Mutex // held by the one who reads

	mu   sync.Mutex
	next *roll // the list that is not being read yet
}

// roll is one list. It is shared: nobody changes it.
type roll struct {
	done chan struct{}
	all  v1alpha1.DevServerList
	err  error
}

func (e *everybody) read(ctx context.Context, reader client.Reader) (*v1alpha1.DevServerList, error) {
	e.mu.Lock()
	mine, first := e.next, e.next == nil
	if first {
		mine = &roll{done: make(chan struct{})}
		e.next = mine
	}
	e.mu.Unlock()
	if first {
		e.call(ctx, reader, mine)
	}
	select {
	case <-mine.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the devservers that may claim a port: %w", ctx.Err())
	}
	if mine.err != nil {
		return nil, fmt.Errorf("list the devservers that may claim a port: %w", mine.err)
	}
	return &mine.all, nil
}

// call reads a list, once nobody else does.
func (e *everybody) call(ctx context.Context, reader client.Reader, mine *roll) {
	e.reading.Lock()
	defer e.reading.Unlock()
	e.mu.Lock()
	e.next = nil // it begins now: who comes later has to wait for another one
	e.mu.Unlock()
	defer close(mine.done)
	mine.err = reader.List(ctx, &mine.all)
}
