// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package presence knows who uses the terminals of objects through this manager, so that what nobody uses can sleep and wakes when somebody comes.
package presence

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Book is where it is noted. It is kept in memory: a user whose manager has ended comes again. Safe for concurrent use; nil is a book in which
// nobody ever is.
type Book struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	pages map[types.UID]*page
	wake  func(types.UID)
}

type page struct {
	users   int
	last    time.Time // of the last sign of a user
	resting bool
}

// New gives an empty book. A nil clock is the real one.
func New(now clock.PassiveClock) *Book {
	if now == nil {
		now = clock.RealClock{}
	}
	return &Book{clock: now, pages: map[types.UID]*page{}}
}

// OnUse sets who is told the UIDs that somebody comes to. It must not block.
func (b *Book) OnUse(wake func(types.UID)) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake = wake
}

// Use notes that somebody wants what runs for a UID, until leave is called.
func (b *Book) Use(uid types.UID) (leave func()) {
	if b == nil {
		return func() {}
	}
	b.mu.Lock()
	p := b.page(uid)
	p.users++
	p.last = b.clock.Now()
	b.mu.Unlock()
	b.tell(uid)
	var once sync.Once
	return func() {
		once.Do(func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			p := b.page(uid)
			p.users = max(p.users-1, 0)
			p.last = b.clock.Now()
		})
	}
}

// Touch notes that something was typed.
func (b *Book) Touch(uid types.UID) {
	if b == nil {
		return
	}
	b.mu.Lock()
	p := b.page(uid)
	quiet := b.clock.Since(p.last) >= tellEvery
	p.last = b.clock.Now()
	b.mu.Unlock()
	if quiet {
		b.tell(uid)
	}
}

// tellEvery is how often it is told at most that somebody types: nobody needs to know each key.
const tellEvery = time.Second

func (b *Book) tell(uid types.UID) {
	b.mu.Lock()
	wake := b.wake
	b.mu.Unlock()
	if wake != nil {
		wake(uid)
	}
}

// Last gives the last sign of a user, and whether somebody is there now; the zero time when nobody was.
func (b *Book) Last(uid types.UID) (last time.Time, here bool) {
	if b == nil {
		return time.Time{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages[uid]; p != nil {
		return p.last, p.users > 0
	}
	return time.Time{}, false
}

// Rest notes that what runs is about to be put to sleep, unless somebody is there: then it says false, and it must not be.
func (b *Book) Rest(uid types.UID) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.page(uid)
	p.resting = p.users == 0
	return p.resting
}

// Rise notes that it is not to sleep.
func (b *Book) Rise(uid types.UID) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages[uid]; p != nil {
		p.resting = false
	}
}

// Resting says whether it sleeps, or is about to. Whoever wants it comes first (Use), and then waits until it does not.
func (b *Book) Resting(uid types.UID) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages[uid]
	return p != nil && p.resting
}

// Forget drops what is noted of a UID whose object is gone.
func (b *Book) Forget(uid types.UID) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pages, uid)
}

func (b *Book) page(uid types.UID) *page {
	p := b.pages[uid]
	if p == nil {
		p = &page{}
		b.pages[uid] = p
	}
	return p
}
