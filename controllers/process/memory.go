// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// memory is what a reconciler remembers between two reconciles. Losing it costs a repeated look and nothing else.
type memory struct {
	mu sync.Mutex
	// uids are the objects that were seen under a key, so that it is noticed when they are gone.
	uids map[types.NamespacedName]types.UID
	// versions are the resource versions of our own last writes. A cache that is behind them would show us a past that we changed ourselves.
	versions map[types.UID]string
	// complained holds whose runtime something was told about already, and why the last start failed, if it did.
	complained map[types.UID]string
	// began is when the first object was seen, and sighted are those that were since. For metrics only.
	began   time.Time
	sighted map[types.UID]bool
}

// firstSight says whether an object is seen for the first time, and when the first of all was.
func (m *memory) firstSight(uid types.UID, now time.Time) (began time.Time, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sighted == nil {
		m.began, m.sighted = now, map[types.UID]bool{}
	}
	first = !m.sighted[uid]
	m.sighted[uid] = true
	return m.began, first
}

// meet notes that a key stands for a UID, and gives the UID that it stood for before if that was another.
func (m *memory) meet(key types.NamespacedName, uid types.UID) (before types.UID, other bool) {
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

// leave notes that nothing is there under a key, and gives the UID that was.
func (m *memory) leave(key types.NamespacedName) (uid types.UID, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	uid, known = m.uids[key]
	delete(m.uids, key)
	m.drop(uid)
	return uid, known
}

func (m *memory) drop(uid types.UID) {
	delete(m.versions, uid)
	delete(m.complained, uid)
	delete(m.sighted, uid)
}

// wrote notes the version that one of our writes has made.
func (m *memory) wrote(object client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.versions == nil {
		m.versions = map[types.UID]string{}
	}
	m.versions[object.GetUID()] = object.GetResourceVersion()
}

// behind says whether the object is older than our own last write to it.
func (m *memory) behind(object client.Object) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	written, known := m.versions[object.GetUID()]
	if !known {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), written)
	return err == nil && order < 0
}

// ours says whether the object is as our own last write has left it.
func (m *memory) ours(object client.Object) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	written, known := m.versions[object.GetUID()]
	return known && written == object.GetResourceVersion()
}

// complain says whether this is new since all could be done for that UID for the last time. trouble is why a start failed; the first one is kept, as
// others may differ in no more than a number, and each would be a write.
func (m *memory) complain(uid types.UID, trouble string) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.complained == nil {
		m.complained = map[types.UID]string{}
	}
	before, complained := m.complained[uid]
	first = !complained || before == "" && trouble != ""
	if first {
		m.complained[uid] = trouble
	}
	return first
}

// trouble is why the last start for that UID failed; nothing when it did not.
func (m *memory) trouble(uid types.UID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.complained[uid]
}

func (m *memory) content(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.complained, uid)
}
