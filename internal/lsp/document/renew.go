// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

// Outdate records that files have changed on which the diagnostics of the documents may depend, and that the server reads such files only when it receives the text
// of a document.
func (s *Set) Outdate() { s.round++ }

// Renew returns the notifications that give the server the text of a document again, with a new version, if files have changed since the server received it. The
// diagnostics with this version are then those of the newest files. reopen closes the document first, so that the server also forgets what it has read before.
func (s *Set) Renew(uri string, reopen bool) (told []Notification) {
	key := Key(uri)
	d := s.documents[key]
	if d == nil || !d.open || !s.live(d) || d.round == s.round {
		return nil
	}
	if text := d.server; reopen {
		told = []Notification{didClose(d), s.didOpen(d, d.language, text)}
		d.reopened = true
	} else {
		told = []Notification{s.didChange(d, text, []event{{Text: text}})}
	}
	s.settle(d, key)
	return told
}

// Reopened reports whether Renew has closed and opened a document, and the server has not published diagnostics with a version since. Diagnostics without a version
// are then those with which the server has answered that the document was closed.
func (s *Set) Reopened(uri string) bool {
	d := s.documents[Key(uri)]
	return d != nil && d.reopened
}
