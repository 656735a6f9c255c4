// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package background has what backends share in memory: Tasks, goroutines that end with the backend, and Entries, one state with a lock for each UID. The
// endpoint uses Tasks too.
package background

import (
	"context"
	"sync"
)

// Tasks runs goroutines until it is closed. Create one with New.
type Tasks struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// New returns Tasks without goroutines.
func New() *Tasks {
	t := &Tasks{}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Lifetime returns a context that ends when Close is called.
func (t *Tasks) Lifetime() context.Context { return t.ctx }

// Go runs the function do in a goroutine and returns true. After Close, it does nothing and returns false. The function must return soon after the context
// of Lifetime has ended.
func (t *Tasks) Go(do func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.running.Go(do)
	return true
}

// Enter makes Close wait for the calling goroutine until it calls leave, and returns true. After Close, it returns false. The goroutine must call leave soon after
// the context of Lifetime has ended.
func (t *Tasks) Enter() (leave func(), entered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false
	}
	t.running.Add(1)
	return t.running.Done, true
}

// Close ends the context and waits for all goroutines.
func (t *Tasks) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.running.Wait()
}
