// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package arbitration

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ReservationTime is how long a thing stays reserved for an object whose claim may not be visible to all readers yet. Writing it takes milliseconds.
const ReservationTime = 10 * time.Second

// Reservations holds each recent decision about a thing of type T for ReservationTime, after which every reader should see it in the objects. H identifies the
// object that has a thing. Reservations only compensate for a stale cache. The zero value is ready to use.
type Reservations[T, H comparable] struct {
	mu    sync.Mutex
	given map[T]reservation[H]
}

type reservation[H comparable] struct {
	holder H
	until  time.Time
}

// Holder returns the object for which a thing is reserved, or the zero value if there is none.
func (r *Reservations[T, H]) Holder(thing T, now time.Time) H {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holder(thing, now)
}

// Reserve reserves a thing for an object, even if it was reserved for another one.
func (r *Reservations[T, H]) Reserve(thing T, object H, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserve(thing, object, now)
}

// Take reserves a thing for an object, unless it is reserved for another one. It returns the object for which the thing is reserved.
func (r *Reservations[T, H]) Take(thing T, object H, now time.Time) H {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.given, func(_ T, given reservation[H]) bool { return !now.Before(given.until) }) // here, because a caller of Take need not call Release
	var none H
	if holder := r.holder(thing, now); holder != none && holder != object {
		return holder
	}
	r.reserve(thing, object, now)
	return object
}

// Release drops the reservations of an object and all expired reservations.
func (r *Reservations[T, H]) Release(object H, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.given, func(_ T, given reservation[H]) bool { return given.holder == object || !now.Before(given.until) })
}

// Settle returns the claim that wins the thing. If that is the claim of uid, Settle reserves the thing for uid. claims are the claims that the caller has read
// from the objects. An object with a reservation counts as the holder: Settle sets Holds of its claim. Calls are serialized.
func Settle[T comparable](r *Reservations[T, types.UID], thing T, uid types.UID, claims []Claim, now time.Time) Claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	holder := r.holder(thing, now)
	for i := range claims {
		claims[i].Holds = claims[i].Holds || claims[i].UID == holder
	}
	first := First(claims)
	if first.UID == uid {
		r.reserve(thing, uid, now)
	}
	return first
}

func (r *Reservations[T, H]) holder(thing T, now time.Time) (holder H) {
	if given := r.given[thing]; now.Before(given.until) {
		holder = given.holder
	}
	return holder
}

func (r *Reservations[T, H]) reserve(thing T, object H, now time.Time) {
	if r.given == nil {
		r.given = map[T]reservation[H]{}
	}
	r.given[thing] = reservation[H]{holder: object, until: now.Add(ReservationTime)}
}
