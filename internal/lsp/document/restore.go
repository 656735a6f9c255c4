// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"maps"
	"slices"
)

// Restore returns the notifications that give the server again the texts of the authors, after all questions for which View or ViewOne switched it are answered.
// The server then sends the diagnostics that the switch has interrupted. If the author of a document has received its diagnostics and another session with another
// text has not, the server has the text of that session until it has sent the diagnostics. Restore must be called again after Delivered.
func (s *Set) Restore() []Notification {
	if len(s.displaced)+len(s.undelivered) == 0 || s.detached {
		return nil
	}
	keys := slices.AppendSeq(slices.Collect(maps.Keys(s.displaced)), maps.Keys(s.undelivered))
	slices.Sort(keys)
	var told []Notification
	for _, key := range slices.Compact(keys) {
		told = append(told, s.restore(s.documents[key], key)...)
	}
	return told
}

func (s *Set) restore(d *document, key string) []Notification {
	switch {
	case !s.live(d):
		delete(s.displaced, key)
		return nil
	case !d.deferredAt.IsZero():
		return nil
	case d.awaiting != nil && (d.awaiting.due || !s.complete(d)):
		return nil
	case !d.views[d.author].due && s.complete(d):
		if session, found := d.lacking(); found {
			told := s.displace(key, session)
			d.awaiting = d.views[session]
			return told
		}
	}
	d.awaiting = nil
	delete(s.displaced, key)
	told := s.show(d, d.author)
	s.settle(d, key)
	return told
}

// lacking returns the oldest session that has received no diagnostics for its text.
func (d *document) lacking() (oldest Session, found bool) {
	for session, v := range d.views {
		if v.due && (!found || session < oldest) {
			oldest, found = session, true
		}
	}
	return oldest, found
}

// Delivered records that the sessions that Published returns for the same arguments have received the diagnostics.
func (s *Set) Delivered(uri string, version *int64) {
	key := Key(uri)
	d := s.documents[key]
	if d == nil {
		return
	}
	d.unversioned = version == nil
	d.reopened = d.reopened && d.unversioned
	if d.unversioned {
		s.hear(d)
	}
	at, known := s.described(d, version)
	if !known {
		return
	}
	for _, v := range d.views {
		if v.served != 0 && v.served == at {
			v.due = false
		}
	}
	s.settle(d, key)
}

// MarkDue makes the server send diagnostics of a session's text again, although the session may have received them.
func (s *Set) MarkDue(session Session, uri string) {
	key := Key(uri)
	if d := s.documents[key]; d != nil && d.views[session] != nil {
		d.views[session].due = true
		s.settle(d, key)
	}
}

// Awaits reports whether the server has a text only until it has sent diagnostics for it.
func (s *Set) Awaits() bool {
	for _, d := range s.undelivered {
		if d.awaiting != nil {
			return true
		}
	}
	return false
}

// StopAwaiting gives up waiting for the diagnostics of texts that are not those of the authors. Some servers send none.
func (s *Set) StopAwaiting() {
	for key, d := range s.undelivered {
		if d.awaiting != nil {
			d.awaiting.due = false
			d.awaiting = nil
			s.displaced[key] = d
			s.settle(d, key)
		}
	}
}
