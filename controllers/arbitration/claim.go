// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package arbitration decides which of several objects gets a thing that only one of them can have: a port, a tmux session or a container. Managers that read
// the same objects reach the same decision.
package arbitration

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Claim is the claim of one object to a thing: a port, a tmux session or a container.
type Claim struct {
	UID     types.UID
	Key     types.NamespacedName
	Created time.Time
	// Holds reports that the object already has the thing and has not released it. An object whose process runs keeps its claim.
	Holds bool
}

// Of returns the claim of an object.
func Of(object client.Object, holds bool) Claim {
	return Claim{UID: object.GetUID(), Key: client.ObjectKeyFromObject(object), Created: object.GetCreationTimestamp().Time, Holds: holds}
}

// First returns the winning claim: the holder, then the oldest object, then the lowest UID. claims must not be empty.
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

// reservationTime is how long a thing stays reserved for an object whose claim is not in its status yet. Writing the status takes milliseconds.
const reservationTime = 10 * time.Second

// Reservations holds recent decisions until every reader sees them in a status. It only compensates for a stale cache: if the reservations are lost, the
// runtime still refuses a second owner.
type Reservations struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	given map[string]reservation
}

type reservation struct {
	uid   types.UID
	until time.Time
}

// NewReservations returns an empty set of reservations.
func NewReservations(now clock.PassiveClock) *Reservations {
	return &Reservations{clock: now, given: map[string]reservation{}}
}

// Settle returns the claim that wins the thing. If that is the claim of uid, Settle reserves the thing for uid. claims are the claims that the caller has read
// from the objects. An object with a reservation counts as the holder. Calls are serialized.
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

// Release drops the reservations of uid and all expired reservations.
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
