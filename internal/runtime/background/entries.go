// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package background

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Entry is embedded in the in-memory state of a UID. Its lock serializes the calls for one UID.
type Entry struct {
	sync.Mutex
	gone bool // removed from Entries; the caller must get a new entry
}

func (e *Entry) base() *Entry { return e }

// Gone reports whether Forget was called with this entry. The caller holds the lock.
func (e *Entry) Gone() bool { return e.gone }

// Entries holds the in-memory state of each UID. Create one with NewEntries. E is a pointer to a struct that embeds Entry.
type Entries[E interface{ base() *Entry }] struct {
	create func(types.UID) E
	byUID  sync.Map
}

// NewEntries returns Entries without an entry. The function create returns the initial state of a UID.
func NewEntries[E interface{ base() *Entry }](create func(types.UID) E) *Entries[E] {
	return &Entries[E]{create: create}
}

// Get returns the entry of a UID without locking it.
func (s *Entries[E]) Get(uid types.UID) E {
	found, ok := s.byUID.Load(uid)
	if !ok {
		found, _ = s.byUID.LoadOrStore(uid, s.create(uid))
	}
	return found.(E)
}

// Acquire returns the locked entry of a UID.
func (s *Entries[E]) Acquire(uid types.UID) E {
	for {
		e := s.Get(uid)
		e.base().Lock()
		if !e.base().gone {
			return e
		}
		e.base().Unlock()
	}
}

// Forget removes an entry. The caller holds its lock.
func (s *Entries[E]) Forget(uid types.UID, e E) {
	e.base().gone = true
	s.byUID.CompareAndDelete(uid, e)
}

// UIDs returns the UIDs that have an entry.
func (s *Entries[E]) UIDs() []types.UID {
	var uids []types.UID
	for uid := range s.byUID.Range {
		uids = append(uids, uid.(types.UID))
	}
	return uids
}
