// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package perobject holds values in memory for each object.
package perobject

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Map holds a value for each object. The zero value is empty. The lock of a Map does not protect the content of its values.
//
// The value of an object exists while the reconciler of the object keeps it (from Keep to Forget), or while another caller uses it (from Use to done). Forget is
// therefore final: a caller that uses the value for longer than the object exists, or only begins then, leaves nothing behind.
type Map[T any] struct {
	mu      sync.Mutex
	entries map[types.UID]*entry[T]
}

type entry[T any] struct {
	value T
	kept  bool
	users int
}

// Keep returns the value of an object, and keeps it until Forget. Only the reconciler of the object calls Keep, because only the reconciler learns that the
// object was deleted. The value starts as the zero value of T.
func (m *Map[T]) Keep(uid types.UID) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entry(uid)
	e.kept = true
	return &e.value
}

// Use returns the value of an object. Unless the value is kept, it is dropped when its last user calls done. done may be called repeatedly.
func (m *Map[T]) Use(uid types.UID) (value *T, done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entry(uid)
	e.users++
	return &e.value, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		e.users--
		m.drop(uid, e)
	})
}

// Get returns the value of an object, or nil if the object has none.
func (m *Map[T]) Get(uid types.UID) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil {
		return &e.value
	}
	return nil
}

// Forget drops the value of an object, unless it has users: their last call of done then drops it.
func (m *Map[T]) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[uid]; e != nil {
		e.kept = false
		m.drop(uid, e)
	}
}

// Len returns the number of objects that have a value.
func (m *Map[T]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// entry returns the entry of an object, and creates it if necessary. The caller holds the lock.
func (m *Map[T]) entry(uid types.UID) *entry[T] {
	e := m.entries[uid]
	if e == nil {
		if m.entries == nil {
			m.entries = map[types.UID]*entry[T]{}
		}
		e = &entry[T]{}
		m.entries[uid] = e
	}
	return e
}

// drop removes an entry that is neither kept nor used. The caller holds the lock.
func (m *Map[T]) drop(uid types.UID, e *entry[T]) {
	if !e.kept && e.users == 0 {
		delete(m.entries, uid)
	}
}
