// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Manager runs the workers. It is a Runnable of controller-runtime: the workers stop when the context of Start is done. All methods are safe for concurrent
// use.
type Manager struct {
	clock  clock.Clock
	notify func(types.UID)

	root   context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	workers map[Key]*worker
}

// NewManager returns a manager that calls notify when the result for a UID has changed. notify must not block.
func NewManager(clock clock.Clock, notify func(types.UID)) *Manager {
	root, cancel := context.WithCancel(context.Background())
	return &Manager{clock: clock, notify: notify, root: root, cancel: cancel, workers: map[Key]*worker{}}
}

// Start waits until the context is done, then stops all workers and waits for them. After that no worker can be started.
func (m *Manager) Start(ctx context.Context) error {
	<-ctx.Done()
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.done.Wait()
	return nil
}

// Ensure runs a worker for the key with this configuration. If the key has a worker with an equivalent configuration, that worker continues. A worker with
// a different configuration is replaced, and its result is dropped; if that result was a success, Ensure sets Proven for the new worker.
func (m *Manager) Ensure(key Key, config Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if had, ok := m.workers[key]; ok {
		if had.config.sameQuestion(config) {
			return
		}
		config.Proven = config.Proven || had.result.Load().OK
		had.stop()
	}
	m.begin(key, config, func(ctx context.Context, w *worker) { w.probe(ctx) })
}

// Go runs a task other than a check for an incarnation, until it returns or the key is dropped. It does nothing if the key already has a worker. The task
// calls changed when its result has changed.
func (m *Manager) Go(key Key, run func(ctx context.Context, changed func())) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.workers[key]; ok {
		return
	}
	m.begin(key, Config{}, func(ctx context.Context, w *worker) {
		run(ctx, func() {
			if ctx.Err() == nil {
				m.notify(key.UID)
			}
		})
	})
}

// begin starts a worker. The caller holds the lock.
func (m *Manager) begin(key Key, config Config, run func(context.Context, *worker)) {
	if m.closed {
		return
	}
	ctx, stop := context.WithCancel(m.root)
	w := &worker{clock: m.clock, config: config, stop: stop, changed: func() { m.notify(key.UID) }}
	w.result.Store(&Result{})
	m.workers[key] = w
	m.done.Go(func() {
		defer stop()
		run(ctx, w)
	})
}

// Result returns the latest result, or the zero Result if there is none.
func (m *Manager) Result(key Key) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w, ok := m.workers[key]; ok {
		return *w.result.Load()
	}
	return Result{}
}

// Stop stops one worker and drops its result.
func (m *Manager) Stop(key Key) {
	m.drop(func(other Key) bool { return other == key })
}

// Keep stops the workers of all other incarnations of the UID.
func (m *Manager) Keep(uid types.UID, incarnation int64) {
	m.drop(func(key Key) bool { return key.UID == uid && key.Incarnation != incarnation })
}

// Forget stops all workers of the UID.
func (m *Manager) Forget(uid types.UID) {
	m.drop(func(key Key) bool { return key.UID == uid })
}

func (m *Manager) drop(which func(Key) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, w := range m.workers {
		if which(key) {
			w.stop()
			delete(m.workers, key)
		}
	}
}

// worker is a goroutine that runs one check repeatedly (see Ensure) or one task (see Go) until it is stopped.
type worker struct {
	clock   clock.Clock
	config  Config
	stop    context.CancelFunc
	changed func()
	result  atomic.Pointer[Result]
}
