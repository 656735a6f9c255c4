// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/runtime"
)

// stateCache is what a reconciler keeps in memory between two reconciles. Losing it only costs work, except for vanished, which a new manager determines
// again.
type stateCache struct {
	writes consistency.Writes

	mu sync.Mutex
	// objects maps each key to its last known object, so that a deletion is noticed.
	objects map[types.NamespacedName]sighting
	// vanished maps each key to earlier objects whose process may still run (see vanished.go). search is the search for the objects that vanished before this
	// manager was started. unsearched has an entry for each RuntimeType whose last search failed.
	vanished   map[types.NamespacedName][]sighting
	search     sync.Once
	unsearched sync.Map
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

// meet records the object of a key.
func (m *stateCache) meet(key types.NamespacedName, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects == nil {
		m.objects = map[types.NamespacedName]sighting{}
	}
	if m.objects[key].uid != uid {
		m.objects[key] = sighting{uid: uid}
	}
}

// meetFirst records an object whose process was found, unless the key has a recorded object.
func (m *stateCache) meetFirst(key types.NamespacedName, object sighting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects == nil {
		m.objects = map[types.NamespacedName]sighting{}
	}
	if m.objects[key].uid == "" {
		m.objects[key] = object
	}
}

// setRuntime records the runtime in which a process of an object is started.
func (m *stateCache) setRuntime(object Object, runtime runtime.Runtime) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := client.ObjectKeyFromObject(object)
	if m.objects[key].uid == object.GetUID() {
		m.objects[key] = sighting{object.GetUID(), runtime}
	}
}

// leave drops the recorded object of a key and returns it. It does nothing if the UID of that object is keep; known is then false.
func (m *stateCache) leave(key types.NamespacedName, keep types.UID) (object sighting, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	object, known = m.objects[key]
	if !known || object.uid == keep {
		return sighting{}, false
	}
	delete(m.objects, key)
	m.writes.Forget(key)
	m.drop(object.uid)
	return object, true
}

// addVanished makes later objects with that key wait for the process of the object.
func (m *stateCache) addVanished(key types.NamespacedName, object sighting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.vanished == nil {
		m.vanished = map[types.NamespacedName][]sighting{}
	}
	if !slices.ContainsFunc(m.vanished[key], func(other sighting) bool { return other.uid == object.uid }) {
		m.vanished[key] = append(m.vanished[key], object)
	}
}

func (m *stateCache) vanishedAt(key types.NamespacedName) []sighting {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.vanished[key])
}

// someVanished returns at most n vanished objects, each time others.
func (m *stateCache) someVanished(n int) map[types.NamespacedName]sighting {
	m.mu.Lock()
	defer m.mu.Unlock()
	some := make(map[types.NamespacedName]sighting, n)
	for key, objects := range m.vanished { // the iteration begins at a random entry
		if len(some) == n {
			break
		}
		some[key] = objects[0]
	}
	return some
}

func (m *stateCache) removeVanished(key types.NamespacedName, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := slices.DeleteFunc(m.vanished[key], func(object sighting) bool { return object.uid == uid })
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
