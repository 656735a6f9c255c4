// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/perobject"
)

const (
	// burst is how many reports of one object take effect at once. Later ones take effect at most every interval, so that hooks cannot cause more writes. Of
	// reports that wait, the newest takes effect.
	burst    = 10
	interval = 500 * time.Millisecond
)

// Tracker keeps what the hooks of each object have reported. It is only in memory; the status contains what took effect. A Tracker is safe for concurrent use.
type Tracker struct {
	clock clock.PassiveClock
	pages perobject.Map[page]

	mu   sync.Mutex // protects the content of the pages
	wake func(types.UID)
}

// page is the record of one object. taken is what has taken effect, and newest what takes effect next, if waits is set. used are the reports that took effect
// recently, as of the time at.
type page struct {
	taken, newest lifecycle.AgentReport
	waits         bool
	used          float64
	at            time.Time
}

// NewTracker returns an empty Tracker.
func NewTracker(now clock.PassiveClock) *Tracker { return &Tracker{clock: now} }

// OnReport sets the function that is called with the UID of an object for which a report has arrived. The function must not block.
func (t *Tracker) OnReport(wake func(types.UID)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wake = wake
}

// Add records a report of an incarnation.
func (t *Tracker) Add(uid types.UID, incarnation int64, r Report) {
	p, done := t.pages.Use(uid)
	defer done()
	t.mu.Lock()
	p.newest = p.newest.Merge(lifecycle.AgentReport{Incarnation: incarnation, At: t.clock.Now(), State: r.State, Question: r.Question, SessionID: r.SessionID})
	first, wake := !p.waits, t.wake
	p.waits = true
	t.mu.Unlock()
	if first && wake != nil {
		wake(uid)
	}
}

// Take returns what the hooks of an object have reported. again is when the newest report takes effect, if that is later. Only the reconciler of the object calls
// Take; the record of the object is kept until Forget.
func (t *Tracker) Take(uid types.UID) (report lifecycle.AgentReport, again time.Duration) {
	p := t.pages.Keep(uid)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !p.waits {
		return p.taken, 0
	}
	if !p.at.IsZero() {
		p.used = max(p.used-float64(t.clock.Since(p.at))/float64(interval), 0)
	}
	p.at = t.clock.Now()
	if over := p.used - (burst - 1); over > 0 {
		return p.taken, max(time.Duration(over*float64(interval)), time.Millisecond)
	}
	p.used++
	p.taken, p.waits = p.newest, false
	return p.taken, 0
}

// Forget drops the record of a deleted object.
func (t *Tracker) Forget(uid types.UID) { t.pages.Forget(uid) }
