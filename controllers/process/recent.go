// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// remembered is the maximum number of objects in a Recent. Its values are needed for seconds only.
const remembered = 4096

// Recent holds a value for each of the most recently stored objects. If a value is lost, the only cost is more work. The zero value is ready to use.
type Recent[T any] struct {
	mu    sync.Mutex
	notes map[types.UID]T
	order []types.UID
}

// Store stores a value for an object.
func (r *Recent[T]) Store(uid types.UID, value T) {
	r.mu.Lock()
	defer r.mu.Unlock()
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

// Get returns the value of an object; known is false if there is none.
func (r *Recent[T]) Get(uid types.UID) (value T, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, known = r.notes[uid]
	return value, known
}

// Has reports whether there is a value for an object.
func (r *Recent[T]) Has(uid types.UID) bool {
	_, known := r.Get(uid)
	return known
}

// FirstObserved holds when the end of each run was first observed. Only one reconcile at a time asks for a run.
type FirstObserved struct {
	recent Recent[time.Time]
}

// lately is how long after its end a run may be kept waiting for a plan or strategy. The time counts from the recorded end and not from its first
// observation, so that a manager that has just started does not restart the wait.
const lately = 8 * time.Second

// At returns when the end of the run was first observed; now if this is the first time. ok is false if the run has not ended, or if the constant lately has
// passed since its end.
func (s *FirstObserved) At(run *v1alpha1.StrategyRun, now time.Time) (at time.Time, ok bool) {
	if run.Status.Outcome == "" || run.Status.FinishTime == nil {
		return time.Time{}, false
	}
	if since := now.Sub(run.Status.FinishTime.Time); since < 0 || since >= lately {
		return time.Time{}, false
	}
	if before, known := s.recent.Get(run.UID); known {
		return before, true
	}
	s.recent.Store(run.UID, now)
	return now, true
}
