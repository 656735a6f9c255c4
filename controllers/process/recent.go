// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// remembered bounds how many objects a Recent knows; nothing that is kept in one is needed for longer than seconds.
const remembered = 4096

// Recent is what is remembered of the objects that came last. Losing it costs work and nothing else. The zero value is ready for use.
type Recent[T any] struct {
	mu    sync.Mutex
	notes map[types.UID]T
	order []types.UID
}

// Note remembers something of an object.
func (r *Recent[T]) Note(uid types.UID, value T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(uid, value)
}

func (r *Recent[T]) note(uid types.UID, value T) {
	if r.notes == nil {
		r.notes = map[types.UID]T{}
	}
	if _, known := r.notes[uid]; !known {
		r.order = append(r.order, uid)
	}
	r.notes[uid] = value
	if len(r.order) > remembered {
		delete(r.notes, r.order[0])
		r.order = r.order[1:]
	}
}

// Get gives what is remembered of an object.
func (r *Recent[T]) Get(uid types.UID) (value T, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, known = r.notes[uid]
	return value, known
}

// Sightings are when runs were seen to have ended.
type Sightings struct {
	recent Recent[time.Time]
}

// lately bounds how long after its end a run may still wait for something, whoever has seen it when: a manager without a memory does not wait anew.
const lately = 8 * time.Second

// At gives when the end of the run was seen first, now if it is the first time. ok is false for a run that has not ended lately.
func (s *Sightings) At(run *v1alpha1.StrategyRun, now time.Time) (at time.Time, ok bool) {
	if run.Status.Outcome == "" || run.Status.FinishedAt == nil {
		return time.Time{}, false
	}
	if since := now.Sub(run.Status.FinishedAt.Time); since < 0 || since >= lately {
		return time.Time{}, false
	}
	s.recent.mu.Lock()
	defer s.recent.mu.Unlock()
	if _, known := s.recent.notes[run.UID]; !known {
		s.recent.note(run.UID, now)
	}
	return s.recent.notes[run.UID], true
}
