// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"maps"
	"slices"
	"time"
)

// Some servers do not state for which version of a text their diagnostics are. Their diagnostics are those of the text that the server has, except shortly after the
// server was switched to the text of another session: it may then still compute the diagnostics of the earlier text. Until it has finished, no session receives diagnostics
// of the document. The server is then sent another text and the same text once more, so that it computes the diagnostics again.

const (
	// minLag and maxLag are the least and the longest time that a server is expected to take for the diagnostics of a text.
	minLag, maxLag = time.Second, 10 * time.Second
)

// SetTime sets the time for everything that happens until the next call.
func (s *Set) SetTime(now time.Time) { s.now = now }

// lag returns how long the server may take for the diagnostics of a text: twice as long as it took before.
func (s *Set) lag() time.Duration { return min(max(2*s.took, minLag), maxLag) }

// finished reports whether the server has sent all diagnostics of the texts that it has received before a time. If it sends none, they are not expected after maxLag.
func (s *Set) finished(d *document, since time.Time) bool {
	passed := s.now.Sub(since)
	return passed >= maxLag || d.heard && passed >= s.lag()
}

// complete reports whether no more diagnostics of the server's text are expected, so that the text may be taken away from the server. Diagnostics without a version
// may be those of an earlier text.
func (s *Set) complete(d *document) bool { return !d.unversioned || s.finished(d, d.sentAt) }

// switching records that the server is about to receive the text of another session.
func (s *Set) switching(d *document) {
	if s.finished(d, d.sentAt) {
		return
	}
	d.switched, d.switchedAt = true, s.now
	s.switched[Key(d.uri)] = d
	s.interrupt(d)
}

// interrupt records that the server's text is about to be taken away from the server. What the sessions with this text have received may be the diagnostics of an
// earlier text.
func (s *Set) interrupt(d *document) {
	if s.complete(d) {
		return
	}
	for _, v := range d.views {
		if d.has(v) {
			v.due = true
		}
	}
}

// sent records that the server receives a text.
func (s *Set) sent(d *document) { d.sentAt, d.heard = s.now, false }

// hear records that the server has sent diagnostics of a document without a version.
func (s *Set) hear(d *document) {
	if d.heard || !d.open {
		return
	}
	d.heard = true
	s.took = max(s.now.Sub(d.sentAt), (s.took+s.now.Sub(d.sentAt))/2)
}

// Recheck returns the notifications that make a server without versions compute diagnostics again that could not be attributed to a text. It must be called from time
// to time while Unattributed returns true.
func (s *Set) Recheck() []Notification {
	if len(s.switched) == 0 {
		return nil
	}
	var told []Notification
	for _, key := range slices.Sorted(maps.Keys(s.switched)) {
		d := s.switched[key]
		if !s.finished(d, d.switchedAt) || s.asked != nil && s.asked(key, 0) && s.now.Sub(d.switchedAt) < maxLag {
			continue
		}
		d.switched = false
		delete(s.switched, key)
		if !d.unversioned || !d.open || !s.live(d) || !d.owed() {
			continue
		}
		awaiting, text := d.awaiting, d.server
		for _, text := range []string{text + "\n", text} { // some servers ignore a change to the same text
			told = append(told, s.didChange(d, text, []event{{Text: text}}))
		}
		d.awaiting = awaiting
		s.settle(d, key)
	}
	return told
}

// Unattributed reports whether there are documents for which Recheck waits.
func (s *Set) Unattributed() bool { return len(s.switched) > 0 }

// owed reports whether a session has the text that the server has, and has received no diagnostics for it.
func (d *document) owed() bool {
	for _, v := range d.views {
		if v.due && d.has(v) {
			return true
		}
	}
	return false
}
