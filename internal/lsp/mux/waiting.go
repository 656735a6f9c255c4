// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
)

// waiting holds the requests and notifications that wait to be sent to a server, in order of arrival.
type waiting struct {
	list     []*request
	rounds   int64 // number of calls of Mux.sendWaiting
	counters *lsp.Counters
}

// add adds a request; held: it waits because no server accepts requests.
func (w *waiting) add(r *request, now time.Time, held bool) {
	r.place, r.since, r.held = waits, now, held
	w.list = append(w.list, r)
	r.session.waiting++
	r.session.waitingBytes += len(r.body)
	if held && !r.notification {
		w.counters.HeldTotal++
	}
	if n := len(w.list); n > 1 && w.list[n-2].sequence > r.sequence { // it was in flight at a server that is gone
		slices.SortStableFunc(w.list, func(one, other *request) int { return cmp.Compare(one.sequence, other.sequence) })
	}
}

// remove removes a request.
func (w *waiting) remove(r *request, now time.Time) {
	w.removeFunc(now, func(other *request) bool { return other == r }, func(*request) {})
}

// removeFunc calls remove for each request, in order, and removes those for which it returns true. It calls removed for each of them before it calls remove for
// the next one. Neither function may add or remove requests.
func (w *waiting) removeFunc(now time.Time, remove func(*request) bool, removed func(*request)) {
	kept := w.list[:0]
	for _, r := range w.list {
		if !remove(r) {
			kept = append(kept, r)
			continue
		}
		r.place = nowhere
		r.session.waiting--
		r.session.waitingBytes -= len(r.body)
		if r.held && !r.notification {
			w.counters.HeldNanos += int64(now.Sub(r.since))
		}
		removed(r)
	}
	clear(w.list[len(kept):])
	w.list = kept
}

// requests returns how many requests wait. Notifications do not count.
func (w *waiting) requests() (count int) {
	for _, r := range w.list {
		if !r.notification {
			count++
		}
	}
	return count
}
