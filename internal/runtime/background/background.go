// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package background has what backends share in memory: Tasks, goroutines that end with the backend and report changed objects, and Entries, one state with a
// lock for each UID.
package background

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Tasks runs goroutines until it is closed. Create one with New.
type Tasks struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	wake   func(types.UID)
}

// New returns Tasks without goroutines. wake may be nil, and OnChange can set it later.
func New(wake func(types.UID)) *Tasks {
	t := &Tasks{wake: wake}
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

// Close ends the context and waits for all goroutines.
func (t *Tasks) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.running.Wait()
}

// OnChange sets the function that Notify calls. The function must not block.
func (t *Tasks) OnChange(wake func(types.UID)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wake = wake
}

// Notify reports that the state of an object has changed.
func (t *Tasks) Notify(uid types.UID) {
	t.mu.Lock()
	wake := t.wake
	t.mu.Unlock()
	if wake != nil {
		wake(uid)
	}
}
