// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
)

// What can be wrong with what a client says about its documents.
var (
	// ErrNotOpen is about a document that this client has not opened.
	ErrNotOpen = errors.New("document is not open")
	// ErrChange is a change that makes no sense.
	ErrChange = errors.New("bad change of a document")
	// ErrLimit is a document that would break a bound.
	ErrLimit = errors.New("limit of open documents")
)

// Session is one client.
type Session int64

// Limits bound what is held. Zero means the default.
type Limits struct {
	// Documents (default 1000) and Bytes of their text (default 64 MiB) are for each session.
	Documents, Bytes int
	// Total is for the texts of all sessions together, equal ones counted once (default 8 × Bytes).
	Total int
}

// Set is all that the clients of one server have open.
type Set struct {
	limits    Limits
	documents map[string]*document // by the key of their URI
	sessions  map[Session]*holder
	// unsettled are those of which the server may have to be told before it answers somebody.
	unsettled map[string]*document
	seed      maphash.Seed
	detached  bool
	version   int64 // that the server was told last, of any document: so a document that is opened again has a higher one than before
	bytes     int64
	switches  int64
}

type holder struct {
	keys  map[string]struct{}
	bytes int
}

// document is one that at least one session holds.
type document struct {
	uri, language string // as the first holder wrote them
	views         map[Session]*view

	open    bool    // the server has it
	server  string  // the text that it has
	version int64   // and its version
	last    Session // whose text that was at the end of the incarnation before

	switched   bool // the server got another view since all were equal
	quarantine bool // this incarnation is not told of it
	savedBytes int
	savedHash  uint64
	bytes      int64 // of the texts that are held for it
}

// view is the document as one session has it.
type view struct {
	text    string
	version int64 // as the session counts
	served  int64 // the last version of the server that was this text; 0: none
}

// NewSet returns an empty one.
func NewSet(limits Limits) *Set {
	s := &Set{documents: map[string]*document{}, sessions: map[Session]*holder{}, unsettled: map[string]*document{}, seed: maphash.MakeSeed()}
	s.Limit(limits)
	return s
}

// Limit sets other bounds. What is held already stays, even if it is more.
func (s *Set) Limit(limits Limits) {
	if limits.Documents <= 0 {
		limits.Documents = 1000
	}
	if limits.Bytes <= 0 {
		limits.Bytes = 64 << 20
	}
	if limits.Total <= 0 {
		limits.Total = 8 * limits.Bytes
	}
	s.limits = limits
}

// Open says that a session has opened a document. Its text is taken for what is on disk; see OnDisk. One that the session has open already
// gets the new text.
func (s *Set) Open(session Session, uri, languageID string, version int64, text string) ([]Notification, error) {
	key := keyOf(uri)
	d := s.documents[key]
	if d != nil && d.views[session] != nil {
		return s.set(d, key, session, version, text, nil)
	}
	if err := s.mayHold(session, len(text), 1); err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	if d == nil {
		d = &document{uri: uri, language: languageID, views: map[Session]*view{}}
		s.documents[key] = d
	}
	h := s.sessions[session]
	if h == nil {
		h = &holder{keys: map[string]struct{}{}}
		s.sessions[session] = h
	}
	h.keys[key] = struct{}{}
	h.bytes += len(text)
	d.views[session] = &view{text: d.share(text), version: version}
	s.saved(d, text)
	told := s.show(d, session)
	s.settle(d, key)
	return told, nil
}

// mayHold says whether a session may hold so much more.
func (s *Set) mayHold(session Session, bytes, documents int) error {
	var held holder
	if h := s.sessions[session]; h != nil {
		held = *h
	}
	switch {
	case len(held.keys)+documents > s.limits.Documents:
		return fmt.Errorf("%w: a client may have %d open; close some", ErrLimit, s.limits.Documents)
	case held.bytes+bytes > s.limits.Bytes:
		return fmt.Errorf("%w: a client may have %d bytes of text open, with this it would be %d; close some", ErrLimit, s.limits.Bytes, held.bytes+bytes)
	case bytes > 0 && s.bytes+int64(bytes) > int64(s.limits.Total):
		return fmt.Errorf("%w: all clients together may have %d bytes of text open, %d are; close some", ErrLimit, s.limits.Total, s.bytes)
	}
	return nil
}

// Change says that a session has changed a document that it has open. What it returns has to be sent also when there is an error: then the
// text that the client has now is not known, and the document is closed for this session.
func (s *Set) Change(session Session, uri string, version int64, changes []json.RawMessage) ([]Notification, error) {
	key := keyOf(uri)
	d := s.documents[key]
	if d == nil || d.views[session] == nil {
		return nil, fmt.Errorf("change %s: %w by this client", uri, ErrNotOpen)
	}
	text, events, err := apply(d.views[session].text, changes)
	if err != nil {
		return s.Close(session, uri), fmt.Errorf("change %s: %w", uri, err)
	}
	return s.set(d, key, session, version, text, events)
}

// set gives a view another text. Events are the changes that lead to it; none: they cannot be passed on as they are.
func (s *Set) set(d *document, key string, session Session, version int64, text string, events []event) ([]Notification, error) {
	v, h := d.views[session], s.sessions[session]
	if err := s.mayHold(session, len(text)-len(v.text), 0); err != nil {
		return s.Close(session, d.uri), fmt.Errorf("change %s: %w", d.uri, err)
	}
	followed := s.live(d) && d.open && d.server == v.text
	h.bytes += len(text) - len(v.text)
	v.version = version
	if text == v.text {
		return nil, nil
	}
	v.text, v.served = d.share(text), 0
	var told []Notification
	if followed {
		if len(events) == 0 {
			events = []event{{Text: v.text}}
		}
		told = append(told, s.didChange(d, v.text, events))
	} else {
		told = s.show(d, session)
	}
	s.settle(d, key)
	return told, nil
}

// Save says that a session has written a document to disk.
func (s *Set) Save(session Session, uri string, text *string) []Notification {
	key := keyOf(uri)
	d := s.documents[key]
	if d == nil || d.views[session] == nil {
		return nil
	}
	// A server takes what it has for what is on disk now.
	told := s.show(d, session)
	s.saved(d, d.views[session].text)
	if s.live(d) {
		told = append(told, didSave(d, text != nil))
	}
	s.settle(d, key)
	return told
}

// OnDisk says what is on disk, for who knows better than what was opened and saved. Nothing happens if nobody has the document open.
func (s *Set) OnDisk(uri, text string) {
	key := keyOf(uri)
	if d := s.documents[key]; d != nil {
		s.saved(d, text)
		s.settle(d, key)
	}
}

// Close says that a session has closed a document.
func (s *Set) Close(session Session, uri string) []Notification {
	key := keyOf(uri)
	d := s.documents[key]
	if d == nil || d.views[session] == nil {
		return nil
	}
	h := s.sessions[session]
	h.bytes -= len(d.views[session].text)
	if delete(h.keys, key); len(h.keys) == 0 {
		delete(s.sessions, session)
	}
	delete(d.views, session)
	if len(d.views) > 0 {
		told := s.leave(d)
		s.settle(d, key)
		return told
	}
	s.bytes -= d.bytes
	delete(s.documents, key)
	delete(s.unsettled, key)
	if !d.open {
		return nil
	}
	return []Notification{didClose(d)}
}

// leave gives the server the view of somebody who still holds the document, if the one it has is gone with its session.
func (s *Set) leave(d *document) []Notification {
	if !d.open || d.holds(d.server) {
		return nil
	}
	return s.show(d, d.first())
}

// Drop says that a session is gone.
func (s *Set) Drop(session Session) []Notification {
	h := s.sessions[session]
	if h == nil {
		return nil
	}
	var told []Notification
	for _, key := range slices.Sorted(maps.Keys(h.keys)) {
		told = append(told, s.Close(session, s.documents[key].uri)...)
	}
	return told
}
