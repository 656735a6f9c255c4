// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"time"
)

// Restarts limits how often a manager restarts processes after failures, over all objects. Namespaces share the rate equally, so that a thousand crashing
// objects in one namespace do not delay the restart of an object in another namespace. Starts that a user requests are not limited.
//
// Restarts only reports how long the restarts that are already planned will take; internal/lifecycle decides when the next restart happens. A nil *Restarts
// sets no limit. Its times are steady times (elapsed.Timeline), so a step of the wall clock does not change the waits.
type Restarts struct {
	// PerSecond is the maximum number of restarts per second. Burst is the number of restarts that each namespace may have without delay after a quiet
	// period.
	PerSecond, Burst int

	mu sync.Mutex
	// planned is when the planned restarts of each namespace will be finished. A namespace without planned restarts has no entry.
	planned map[string]time.Time
}

// NewRestarts returns the limit of a manager: 50 restarts per second, in bursts of at most 100 per namespace.
func NewRestarts() *Restarts { return &Restarts{PerSecond: 50, Burst: 100} }

// backlog returns how long a restart that is planned now must wait for the restarts of its namespace that are already planned.
func (r *Restarts) backlog(namespace string, now time.Time) time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	over, waits := r.planned[namespace]
	if !waits {
		return 0
	}
	return max(over.Sub(now)-time.Duration(r.Burst)*time.Second/time.Duration(r.PerSecond), 0)
}

// plan records that a restart was planned. The namespaces with planned restarts share the rate: while there are n of them, each gets PerSecond/n restarts per
// second.
func (r *Restarts) plan(namespace string, now time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, over := range r.planned {
		if !over.After(now) {
			delete(r.planned, other)
		}
	}
	begin, sharing := now, len(r.planned)
	if over, waits := r.planned[namespace]; waits {
		begin = over
	} else {
		sharing++
	}
	if r.planned == nil {
		r.planned = map[string]time.Time{}
	}
	r.planned[namespace] = begin.Add(time.Duration(sharing) * time.Second / time.Duration(r.PerSecond))
}
