// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package activity records how many clients use the terminal of each object through this manager, and when it was last used. Unused processes can therefore be
// put to sleep, and start again when they are used.
package activity

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/perobject"
)

// Tracker records the use of terminals. The record is only in memory, because users reconnect after a restart of the manager. A Tracker is safe for concurrent
// use.
type Tracker struct {
	clock clock.PassiveClock
	pages perobject.Map[page]

	mu    sync.Mutex // protects the content of the pages
	wake  func(types.UID)
	risen func(types.UID)
}

// page is the record of one object.
type page struct {
	users   int
	last    time.Time // last sign of activity
	typed   time.Time // last input
	resting bool
}

// New returns an empty Tracker. A nil clock means the real clock.
func New(now clock.PassiveClock) *Tracker {
	if now == nil {
		now = clock.RealClock{}
	}
	return &Tracker{clock: now}
}

// OnUse sets the function that is called with the UID of an object when it is used. The function must not block.
func (b *Tracker) OnUse(wake func(types.UID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake = wake
}

// OnRise sets the function that is called when Resting has become false for an object. The function must not block, and must not call the Tracker.
func (b *Tracker) OnRise(risen func(types.UID)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.risen = risen
}

// Use registers a user of the object uid until leave is called.
func (b *Tracker) Use(uid types.UID) (leave func()) {
	p, done := b.pages.Use(uid)
	b.mu.Lock()
	p.users++
	p.last = b.clock.Now()
	b.mu.Unlock()
	b.tell(uid)
	return sync.OnceFunc(func() {
		defer done()
		b.mu.Lock()
		defer b.mu.Unlock()
		p.users--
		p.last = b.clock.Now()
	})
}

// Touch records that a user typed something.
func (b *Tracker) Touch(uid types.UID) {
	p, done := b.pages.Use(uid)
	defer done()
	b.mu.Lock()
	quiet := b.clock.Since(p.last) >= tellEvery
	p.last = b.clock.Now()
	p.typed = p.last
	b.mu.Unlock()
	if quiet {
		b.tell(uid)
	}
}

// tellEvery is how long a user must have paused before the next input causes a notification.
const tellEvery = time.Second

func (b *Tracker) tell(uid types.UID) {
	b.mu.Lock()
	wake := b.wake
	b.mu.Unlock()
	if wake != nil {
		wake(uid)
	}
}

// Last returns the time of the last activity, or the zero time if there was none, and whether the object has a user now.
func (b *Tracker) Last(uid types.UID) (last time.Time, here bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages.Get(uid); p != nil {
		return p.last, p.users > 0
	}
	return time.Time{}, false
}

// Typed returns when a user last typed something, or the zero time if that is not known.
func (b *Tracker) Typed(uid types.UID) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages.Get(uid); p != nil {
		return p.typed
	}
	return time.Time{}
}

// Rest records that the process of an object is about to be put to sleep, and returns true. If the object has a user, it returns false, and the process must
// not be put to sleep. Only the reconciler of the object calls Rest and Rise; both keep the record of the object until Forget.
func (b *Tracker) Rest(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages.Keep(uid)
	p.resting = p.users == 0
	return p.resting
}

// Rise clears the record that Rest made.
func (b *Tracker) Rise(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages.Keep(uid)
	if !p.resting {
		return
	}
	p.resting = false
	if b.risen != nil {
		b.risen(uid)
	}
}

// Resting reports whether an object is asleep or about to be. A caller that wants to use the object must first call Use and then wait until Resting returns
// false.
func (b *Tracker) Resting(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages.Get(uid)
	return p != nil && p.resting
}

// Forget drops the record of a deleted object when its last user has left.
func (b *Tracker) Forget(uid types.UID) { b.pages.Forget(uid) }
