// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controllers/consistency"
)

// stateCache is what a reconciler keeps in memory between two reconciles. Correctness does not depend on it.
type stateCache struct {
	writes consistency.Writes

	mu sync.Mutex
	// uids maps each key to the UID of its last known object, so that a deletion is noticed.
	uids map[types.NamespacedName]types.UID
	// vanished maps each key to the UIDs of earlier objects whose process may still run (see vanished.go). searched reports whether the runtimes were searched
	// for the processes of earlier managers.
	vanished map[types.NamespacedName][]types.UID
	searched atomic.Bool
	// lastErrors has an entry for each object whose runtime has failed since the last successful reconcile of the object. The value is why an action failed;
	// empty if only an observation failed.
	lastErrors map[types.UID]string
	// began is when the first object was reconciled, and sighted holds the objects reconciled since then. Only metrics use them.
	began   time.Time
	sighted map[types.UID]bool
}

// firstSight returns the time at which this manager reconciled its first object, and whether this is the first reconcile of the object with this UID.
func (m *stateCache) firstSight(uid types.UID, now time.Time) (began time.Time, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sighted == nil {
		m.began, m.sighted = now, map[types.UID]bool{}
	}
	first = !m.sighted[uid]
	m.sighted[uid] = true
	return m.began, first
}

// meet records the UID of a key. If the key had another UID before, meet returns that UID and true.
func (m *stateCache) meet(key types.NamespacedName, uid types.UID) (before types.UID, other bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uids == nil {
		m.uids = map[types.NamespacedName]types.UID{}
	}
	before, known := m.uids[key]
	m.uids[key] = uid
	other = known && before != uid
	if other {
		m.drop(before)
	}
	return before, other
}

// leave records that the object of a key is gone, or that its finalizer was removed. It returns its UID, if known.
func (m *stateCache) leave(key types.NamespacedName) (uid types.UID, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	uid, known = m.uids[key]
	delete(m.uids, key)
	m.writes.Forget(key)
	m.drop(uid)
	return uid, known
}

// addVanished adds a UID to those that an object with that key must wait for.
func (m *stateCache) addVanished(key types.NamespacedName, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.vanished == nil {
		m.vanished = map[types.NamespacedName][]types.UID{}
	}
	if !slices.Contains(m.vanished[key], uid) {
		m.vanished[key] = append(m.vanished[key], uid)
	}
}

// vanishedAt returns the UIDs of the vanished objects with that key.
func (m *stateCache) vanishedAt(key types.NamespacedName) []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.vanished[key])
}

func (m *stateCache) removeVanished(key types.NamespacedName, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := slices.DeleteFunc(m.vanished[key], func(other types.UID) bool { return other == uid })
	if m.vanished[key] = left; len(left) == 0 {
		delete(m.vanished, key)
	}
}

func (m *stateCache) drop(uid types.UID) {
	delete(m.lastErrors, uid)
	delete(m.sighted, uid)
}

// recordFailure records a failure for uid and reports whether it is the first since the last successful reconcile. trouble is why an action failed; empty for a
// failed observation. The first failed action counts as the first failure even if an observation failed before. Only the message of that action is kept,
// because later messages often differ from it only in a number, and each difference would cause a write of the status.
func (m *stateCache) recordFailure(uid types.UID, trouble string) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lastErrors == nil {
		m.lastErrors = map[types.UID]string{}
	}
	before, complained := m.lastErrors[uid]
	first = !complained || before == "" && trouble != ""
	if first {
		m.lastErrors[uid] = trouble
	}
	return first
}

// lastError returns why an action for uid failed; empty if no action has failed since the last successful reconcile.
func (m *stateCache) lastError(uid types.UID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastErrors[uid]
}

func (m *stateCache) clearFailure(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.lastErrors, uid)
}
