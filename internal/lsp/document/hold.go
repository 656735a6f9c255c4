// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"maps"
	"slices"
	"time"
)

// Some servers compute an answer some time after they have read the question, from the text that they have then. While a question of one session about a document is
// pending, texts of other sessions for this document therefore wait, for at most MaxHold.

// MaxHold is how long a text or question waits for the answer to a question of another session about the same document.
const MaxHold = 2 * time.Second

// HoldFor sets the function that reports whether a question about the document with a key is pending, of any session except the given one. It must be called before all
// other methods.
func (s *Set) HoldFor(asked func(key string, except Session) bool) { s.asked = asked }

// holds reports whether a new text of a session has to wait. Deferred then returns it.
func (s *Set) holds(d *document, key string, session Session) bool {
	if s.asked == nil || !s.live(d) || !d.open || !s.asked(key, session) {
		return false
	}
	if d.deferredAt.IsZero() {
		d.deferredAt = s.now
		s.deferred[key] = d
	}
	return s.now.Sub(d.deferredAt) < MaxHold
}

// Deferred returns the notifications for the texts that have waited. It must be called after each answer, and from time to time while Defers returns true.
func (s *Set) Deferred() []Notification {
	if len(s.deferred) == 0 {
		return nil
	}
	var told []Notification
	for _, key := range slices.Sorted(maps.Keys(s.deferred)) {
		d := s.deferred[key]
		if s.holds(d, key, d.author) {
			continue
		}
		s.stopDeferring(d, key)
		told = append(told, s.show(d, d.author)...)
		s.settle(d, key)
	}
	return told
}

// Defers reports whether texts wait.
func (s *Set) Defers() bool { return len(s.deferred) > 0 }

func (s *Set) stopDeferring(d *document, key string) {
	d.deferredAt = time.Time{}
	delete(s.deferred, key)
}

// Disturbs reports whether a question of a session would take the text of a document away from the server while a question of another session about this document is
// pending. one: the question is about the document uri only.
func (s *Set) Disturbs(session Session, uri string, one bool) bool {
	if s.asked == nil || len(s.unsettled) == 0 || s.detached {
		return false
	}
	disturbs := func(key string, d *document) bool { return d.open && s.differs(d, session) && s.asked(key, session) }
	if one {
		d := s.unsettled[Key(uri)]
		return d != nil && disturbs(Key(uri), d)
	}
	for key, d := range s.unsettled {
		if disturbs(key, d) {
			return true
		}
	}
	return false
}
