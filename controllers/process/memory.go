// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controllers/consistency"
)

// memory is what a reconciler remembers between two reconciles. Losing it costs a repeated look and nothing else.
type memory struct {
	writes consistency.Writes

	mu sync.Mutex
	// uids are the objects that were seen under a key, so that it is noticed when they are gone.
	uids map[types.NamespacedName]types.UID
	// complained has an entry for each object whose runtime has failed since its last success. The value is why an action failed; empty if only an
	// observation failed.
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
	m.writes.Forget(key)
	m.drop(uid)
	return uid, known
}

func (m *memory) drop(uid types.UID) {
	delete(m.complained, uid)
	delete(m.sighted, uid)
}

// complain records a failure for uid and reports whether it is the first since the last success. trouble is why an action failed, or empty. The first one
// is kept, because later ones often differ only in a number, and each difference would cause a write.
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

// trouble returns why an action for uid failed; empty if none has failed since the last success.
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
