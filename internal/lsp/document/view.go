// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"hash/maphash"
	"maps"
	"slices"
	"time"
)

// View returns the notifications that switch the server to the texts of a session. They must be sent before a request of the session whose answer may contain
// positions in any document, such as references. uri is the document of the request. If the session does not have a document open, and the server's text of that
// document is not the text on disk, View closes the document at the server. Restore must be called after the answer.
func (s *Set) View(session Session, uri string) []Notification {
	if len(s.unsettled) == 0 || s.detached {
		return nil
	}
	var keys []string
	for key, d := range s.unsettled {
		if s.differs(d, session) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	if i := slices.Index(keys, Key(uri)); i > 0 { // the document of the request comes first
		keys[0], keys[i] = keys[i], keys[0]
	}
	var told []Notification
	for _, key := range keys {
		told = append(told, s.displace(key, session)...)
	}
	return told
}

// ViewOne is View for a request whose answer contains positions in its own document only. The other documents stay as they are, so that the server can finish their
// diagnostics.
func (s *Set) ViewOne(session Session, uri string) []Notification {
	if len(s.unsettled) == 0 || s.detached {
		return nil
	}
	key := Key(uri)
	if d := s.unsettled[key]; d == nil || !s.differs(d, session) {
		return nil
	}
	return s.displace(key, session)
}

// displace switches the server to the text of a document that a session must see.
func (s *Set) displace(key string, session Session) []Notification {
	d := s.documents[key]
	told := s.show(d, session)
	s.settle(d, key)
	if d.author != session {
		s.displaced[key] = d
	}
	return told
}

// Contested reports whether sessions have different texts of a document, so that the server's text of it depends on who asks.
func (s *Set) Contested(uri string) bool {
	d := s.unsettled[Key(uri)]
	return d != nil && (!d.equal() || !s.isSaved(d, d.views[d.author].text))
}

// Conflicting reports whether sessions have different texts of a document.
func (s *Set) Conflicting(uri string) bool {
	d := s.documents[Key(uri)]
	return d != nil && !d.equal()
}

// Unsaved returns the sessions whose unsaved text of a document the server has, except of documents of which this session has the same text.
func (s *Set) Unsaved(session Session) (sessions []Session) {
	for _, d := range s.unsettled {
		if own := d.views[session]; !d.open || s.isSaved(d, d.server) || own != nil && own.text == d.server {
			continue
		}
		for other, v := range d.views {
			if v.text == d.server {
				sessions = append(sessions, other)
			}
		}
	}
	return sessions
}

// live reports whether the server receives the document.
func (s *Set) live(d *document) bool { return !s.detached && !d.quarantine }

// differs reports whether the server's text differs from the text that the session must see.
func (s *Set) differs(d *document, session Session) bool {
	if !s.live(d) {
		return false
	}
	if v := d.views[session]; v != nil {
		return !d.has(v)
	}
	return d.open && !s.isSaved(d, d.server)
}

// show returns the notifications that switch the server to the text of a document that a session must see. It is also called when a session opens or changes a
// document, so that diagnostics of the new text arrive without a request.
func (s *Set) show(d *document, session Session) []Notification {
	if !s.differs(d, session) {
		return nil
	}
	v := d.views[session]
	switch {
	case v == nil:
		s.interrupt(d)
		d.open, d.server, d.awaiting = false, "", nil
		s.switches++
		return []Notification{didClose(d)}
	case d.open && d.language != v.language:
		s.switching(d)
		s.switches++
		return []Notification{didClose(d), s.didOpen(d, v.language, v.text)}
	case d.open:
		s.switching(d)
		s.switches++
		return []Notification{s.didChange(d, v.text, []event{{Text: v.text}})}
	}
	if d.version > 0 { // the server may still send that the document has no diagnostics, because it was closed
		s.switching(d)
	}
	return []Notification{s.didOpen(d, v.language, v.text)}
}

// settle updates the values that are computed from the texts of a document: view.served, the sizes, and Set.unsettled. It must be called
// after each change of the document.
func (s *Set) settle(d *document, key string) {
	settled := d.open && s.isSaved(d, d.server)
	if d.open {
		for _, v := range d.views {
			if d.has(v) {
				v.served = d.version
			} else {
				settled = false
			}
		}
	}
	if settled {
		delete(s.unsettled, key)
	} else {
		s.unsettled[key] = d
	}
	if len(d.views) > 1 && slices.ContainsFunc(slices.Collect(maps.Values(d.views)), func(v *view) bool { return v.due }) {
		s.undelivered[key] = d
	} else {
		delete(s.undelivered, key)
	}
	bytes := d.size()
	s.bytes += bytes - d.bytes
	d.bytes = bytes
}

// size returns the total size of the texts that are held for a document, in bytes. Equal texts are counted once.
func (d *document) size() int64 {
	total := 0
	var counted []string
	if d.open {
		counted = append(counted, d.server)
		total += len(d.server)
	}
	for _, v := range d.views {
		if !slices.Contains(counted, v.text) {
			counted = append(counted, v.text)
			total += len(v.text)
		}
	}
	return int64(total)
}

// share returns an equal text that is already held, or text if there is none. Equal texts then share memory and compare quickly.
func (d *document) share(text string) string {
	if d.open && d.server == text {
		return d.server
	}
	for _, v := range d.views {
		if v.text == text {
			return v.text
		}
	}
	return text
}

// successor returns the oldest session with the text that the server has or, if there is none, the oldest session that has the document open.
func (d *document) successor() Session {
	successor, found := Session(0), false
	for session, v := range d.views {
		if d.has(v) && (!found || session < successor) {
			successor, found = session, true
		}
	}
	if !found {
		return d.first()
	}
	return successor
}

// first returns the oldest session that has the document open.
func (d *document) first() Session {
	return slices.Min(slices.Collect(maps.Keys(d.views)))
}

// wanted reports whether a session has the text and the language that the server has.
func (d *document) wanted() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(d.views)), d.has)
}

// has reports whether the server has the document open with the text and the language of a session.
func (d *document) has(v *view) bool { return d.open && d.server == v.text && d.language == v.language }

// equal reports whether all sessions have the same text, in the same language.
func (d *document) equal() bool {
	var first *view
	for _, v := range d.views {
		if first == nil {
			first = v
		}
		if v.text != first.text || v.language != first.language {
			return false
		}
	}
	return true
}

// saved stores a hash of the text that is on disk, so that the text is not held twice.
func (s *Set) saved(d *document, text string) {
	d.savedBytes, d.savedHash = len(text), maphash.String(s.seed, text)
}

func (s *Set) isSaved(d *document, text string) bool {
	return len(text) == d.savedBytes && maphash.String(s.seed, text) == d.savedHash
}

// Published returns the sessions that are allowed to see diagnostics of a document. version is the version for which the server computed them, or nil if the
// server sent none. If all is true, every session is allowed to see them; otherwise only the returned sessions are, because they have the text of that version.
func (s *Set) Published(uri string, version *int64) (sessions []Session, all bool) {
	d := s.documents[Key(uri)]
	if d == nil {
		return nil, true
	}
	at, known := s.described(d, version)
	if !known {
		return nil, false
	}
	for session, v := range d.views {
		if v.served != 0 && v.served == at {
			sessions = append(sessions, session)
		}
	}
	slices.Sort(sessions)
	if d.open && at == d.version && len(sessions) == len(d.views) && s.isSaved(d, d.server) {
		return nil, true
	}
	return sessions, false
}

// described returns the version of the text that diagnostics describe. known is false if it cannot be determined.
func (s *Set) described(d *document, version *int64) (at int64, known bool) {
	switch {
	case !s.live(d):
		return 0, false
	case version != nil:
		return *version, true
	}
	return d.version, d.open && !d.switched
}

// ClientVersion returns the version by which a session knows its text of a document.
func (s *Set) ClientVersion(session Session, uri string) (version int64, ok bool) {
	if d := s.documents[Key(uri)]; d != nil && d.views[session] != nil {
		return d.views[session].version, true
	}
	return 0, false
}

// ServerVersion returns the version of the text that the server has of a document. open is false if the server does not have the document open.
func (s *Set) ServerVersion(uri string) (version int64, open bool) {
	if d := s.documents[Key(uri)]; d != nil && d.open {
		return d.version, true
	}
	return 0, false
}

// Text returns the text of a document in a session, and the server's last version with this text, or 0 if there is none. open is false if the session does not have
// the document open.
func (s *Set) Text(session Session, uri string) (text string, served int64, open bool) {
	if d := s.documents[Key(uri)]; d != nil && d.views[session] != nil {
		return d.views[session].text, d.views[session].served, true
	}
	return "", 0, false
}

// Detach marks the server as lost. Until Replay, views change but no notifications are returned.
func (s *Set) Detach() {
	s.detached = true
	clear(s.displaced)
	clear(s.switched)
	clear(s.deferred)
	s.took = 0
	for key, d := range s.documents {
		for _, v := range d.views {
			v.served, v.due = 0, true
		}
		d.open, d.server, d.switched, d.awaiting, d.deferredAt = false, "", false, nil, time.Time{}
		s.settle(d, key)
	}
}

// Replay returns the notifications that open all documents at a new server, each with version 1. Documents for which skip returns true are withheld from this
// server; skip may be nil.
func (s *Set) Replay(skip func(uri string) bool) []Notification {
	s.Detach()
	s.detached, s.version = false, 0
	var told []Notification
	for _, key := range slices.Sorted(maps.Keys(s.documents)) {
		d := s.documents[key]
		if d.quarantine = skip != nil && skip(d.uri); d.quarantine {
			s.settle(d, key)
			continue
		}
		s.version = 0
		author := d.views[d.author]
		told = append(told, s.didOpen(d, author.language, author.text))
		s.settle(d, key)
	}
	return told
}

// Admit ends the withholding of a document that Replay has skipped. It returns the notification that opens the document at the server.
func (s *Set) Admit(uri string) []Notification {
	key := Key(uri)
	d := s.documents[key]
	if d == nil || !d.quarantine {
		return nil
	}
	d.quarantine = false
	told := s.show(d, d.author)
	s.settle(d, key)
	return told
}

// Stats returns the number of open documents, the size of their texts in bytes, and how often the server was switched to another view.
func (s *Set) Stats() (documents int, bytes int64, switches int64) {
	return len(s.documents), s.bytes, s.switches
}

// URIs returns the URIs of the open documents, sorted.
func (s *Set) URIs() []string {
	uris := make([]string, 0, len(s.documents))
	for _, d := range s.documents {
		uris = append(uris, d.uri)
	}
	slices.Sort(uris)
	return uris
}

// IsOpen reports whether any session has a document open.
func (s *Set) IsOpen(uri string) bool { return s.documents[Key(uri)] != nil }

// Holds reports whether a session has a document open.
func (s *Set) Holds(session Session, uri string) bool {
	d := s.documents[Key(uri)]
	return d != nil && d.views[session] != nil
}
