// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

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
