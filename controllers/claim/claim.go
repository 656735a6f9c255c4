// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claim says who of several objects is given what only one can have: a tmux session, a container. Everybody who sees the same objects comes
// to the same answer.
package claim

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Claim is what one object has to do with the thing.
type Claim struct {
	UID     types.UID
	Key     types.NamespacedName
	Created time.Time
	// Holds: the object was given it already and has not let go of it. What runs is never disowned.
	Holds bool
}

// Of gives the claim of an object.
func Of(object client.Object, holds bool) Claim {
	return Claim{UID: object.GetUID(), Key: client.ObjectKeyFromObject(object), Created: object.GetCreationTimestamp().Time, Holds: holds}
}

// First gives the claim that wins: who holds it, then who is older, then who has the lower UID. There has to be one.
func First(claims []Claim) Claim {
	return slices.MinFunc(claims, func(a, b Claim) int {
		if a.Holds != b.Holds {
			if a.Holds {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
}

// reservationTime is how long a thing stays given to an object that has not written so yet. A write takes milliseconds.
const reservationTime = 10 * time.Second

// Reservations bridge the time from a decision until everybody can read it in a status. They only save from a cache that lags: losing them costs
// nothing that the runtime does not refuse by itself.
type Reservations struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	given map[string]reservation
}

type reservation struct {
	uid   types.UID
	until time.Time
}

// NewReservations gives none yet.
func NewReservations(now clock.PassiveClock) *Reservations {
	return &Reservations{clock: now, given: map[string]reservation{}}
}

// Settle decides about a thing, one caller after the other, and reserves it for uid if that wins. claims are those that can be read; who was given
// it a moment ago holds it.
func (r *Reservations) Settle(thing string, uid types.UID, claims []Claim) Claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	given, ok := r.given[thing]
	for i := range claims {
		if ok && claims[i].UID == given.uid && now.Before(given.until) {
			claims[i].Holds = true
		}
	}
	first := First(claims)
	if first.UID == uid {
		r.given[thing] = reservation{uid: uid, until: now.Add(reservationTime)}
	}
	return first
}

// Release drops what is reserved for an object, and what has expired.
func (r *Reservations) Release(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for thing, given := range r.given {
		if given.uid == uid || !now.Before(given.until) {
			delete(r.given, thing)
		}
	}
}
