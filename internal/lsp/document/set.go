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
	"time"
)

// Errors of a client's operations on documents.
var (
	// errNotOpen is the error for a document that this client has not opened.
	errNotOpen = errors.New("document is not open")
	// errChange is the error for an invalid change.
	errChange = errors.New("invalid document change")
	// errLimit is the error for a document that would exceed a limit.
	errLimit = errors.New("limit of open documents exceeded")
)

// Session identifies one client.
type Session int64

// Limits bound the documents that are held. Zero means no limit.
type Limits struct {
	// Documents is the maximum number of open documents, Bytes the maximum size of their text. Both are per session.
	Documents, Bytes int
	// Total is the maximum size of the texts of all sessions, with equal texts of a document counted once.
	Total int
}

// Set is the set of documents that the clients of one server have open.
type Set struct {
	limits    Limits
	documents map[string]*document // by the key of their URI
	sessions  map[Session]*holder
	// unsettled are the documents for which the server may need a notification before it answers a client.
	unsettled map[string]*document
	// displaced are the documents whose text at the server was changed for a question of a session other than the author.
	displaced map[string]*document
	// undelivered are the documents of several sessions of which one has received no diagnostics for its text.
	undelivered map[string]*document
	// switched are the documents with document.switched.
	switched map[string]*document
	// deferred are the documents with a text that waits; see holds.
	deferred map[string]*document
	asked    func(key string, except Session) bool
	now      time.Time     // see SetTime
	took     time.Duration // how long the server took for diagnostics
	seed     maphash.Seed
	detached bool
	round    int64 // the number of calls of Outdate
	version  int64 // the last version sent for any document; a reopened document receives a higher version than before
	bytes    int64
	switches int64
}

type holder struct {
	keys  map[string]struct{}
	bytes int
}

// document is a document that at least one session has open.
type document struct {
	uri      string // as the first session sent it
	language string // with which the server has it open
	views    map[Session]*view

	open    bool    // the server has the document open
	server  string  // the server's text
	version int64   // the server's version
	author  Session // the session that opened, changed or saved the document last

	awaiting *view // the server has this text only until it has sent diagnostics for it; nil: it has the text for another reason

	round    int64 // the value of Set.round when the server received this text
	reopened bool  // Renew has closed and opened the document, and the server has published no diagnostics with a version since

	unversioned bool // the last diagnostics of the server stated no version
	switched    bool // the server was switched to another view, and may still send diagnostics of the earlier text
	switchedAt  time.Time
	sentAt      time.Time // when the server received its text
	heard       bool      // the server has since sent diagnostics without a version
	deferredAt  time.Time // since when a text waits; zero: none does
	quarantine  bool      // withheld from this incarnation
	savedBytes  int
	savedHash   uint64
	bytes       int64 // size of the texts that are held for the document
}

// view is the document in one session.
type view struct {
	text     string
	language string
	version  int64 // the session's version
	served   int64 // the server's last version with this text; 0: none
	due      bool  // the session has received no diagnostics for this text
}

// NewSet returns an empty Set.
func NewSet(limits Limits) *Set {
	return &Set{
		limits: limits, documents: map[string]*document{}, sessions: map[Session]*holder{}, seed: maphash.MakeSeed(),
		unsettled: map[string]*document{}, displaced: map[string]*document{}, undelivered: map[string]*document{},
		switched: map[string]*document{}, deferred: map[string]*document{},
	}
}

// Limit changes the limits. Documents that are already held remain, even above the limits.
func (s *Set) Limit(limits Limits) { s.limits = limits }

// Open records that a session has opened a document, and assumes that the text is the one on disk. If the session already has the document open,
// Open only replaces the session's text.
func (s *Set) Open(session Session, uri, languageID string, version int64, text string) ([]Notification, error) {
	key := Key(uri)
	d := s.documents[key]
	if d != nil && d.views[session] != nil {
		d.views[session].language = languageID
		return s.set(d, key, session, version, text, nil)
	}
	if err := s.mayHold(session, len(text), 1); err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	if d == nil {
		d = &document{uri: uri, views: map[Session]*view{}}
		s.documents[key] = d
	}
	h := s.sessions[session]
	if h == nil {
		h = &holder{keys: map[string]struct{}{}}
		s.sessions[session] = h
	}
	h.keys[key] = struct{}{}
	h.bytes += len(text)
	d.views[session] = &view{text: d.share(text), language: languageID, version: version, due: true}
	s.saved(d, text)
	d.author = session
	var told []Notification
	if !s.holds(d, key, session) {
		told = s.show(d, session)
	}
	s.settle(d, key)
	return told, nil
}

// mayHold returns an error if the additional documents and bytes exceed the limits of the session or of all sessions together.
func (s *Set) mayHold(session Session, bytes, documents int) error {
	var held holder
	if h := s.sessions[session]; h != nil {
		held = *h
	}
	switch {
	case s.limits.Documents > 0 && len(held.keys)+documents > s.limits.Documents:
		return fmt.Errorf("%w: a client may have %d documents open; close some", errLimit, s.limits.Documents)
	case s.limits.Bytes > 0 && held.bytes+bytes > s.limits.Bytes:
		return fmt.Errorf("%w: a client may have %d bytes of text open, and this text would raise the total to %d; close some documents", errLimit, s.limits.Bytes, held.bytes+bytes)
	case s.limits.Total > 0 && bytes > 0 && s.bytes+int64(bytes) > int64(s.limits.Total):
		return fmt.Errorf("%w: all clients together may have %d bytes of text open, and %d bytes are already open; close some documents", errLimit, s.limits.Total, s.bytes)
	}
	return nil
}

// Change records that a session has changed a document that it has open. The returned notifications must be sent even if there is an error: the client's text
// is then unknown, and the document is closed for this session.
func (s *Set) Change(session Session, uri string, version int64, changes []json.RawMessage) ([]Notification, error) {
	key := Key(uri)
	d := s.documents[key]
	if d == nil || d.views[session] == nil {
		return nil, fmt.Errorf("change %s: %w in this client", uri, errNotOpen)
	}
	text, events, err := apply(d.views[session].text, changes)
	if err != nil {
		return s.Close(session, uri), fmt.Errorf("change %s: %w", uri, err)
	}
	return s.set(d, key, session, version, text, events)
}

// set replaces the text of a view. events are the changes that lead to the new text; if there are none, the whole text is sent.
func (s *Set) set(d *document, key string, session Session, version int64, text string, events []event) ([]Notification, error) {
	v, h := d.views[session], s.sessions[session]
	if err := s.mayHold(session, len(text)-len(v.text), 0); err != nil {
		return s.Close(session, d.uri), fmt.Errorf("change %s: %w", d.uri, err)
	}
	followed := s.live(d) && d.has(v)
	h.bytes += len(text) - len(v.text)
	v.version = version
	if text == v.text {
		return nil, nil
	}
	v.text, v.served, v.due, d.author = d.share(text), 0, true, session
	var told []Notification
	switch {
	case s.holds(d, key, session):
	case followed:
		if len(events) == 0 {
			events = []event{{Text: v.text}}
		}
		told = append(told, s.didChange(d, v.text, events))
	default:
		told = s.show(d, session)
	}
	s.settle(d, key)
	return told, nil
}

// Save records that a session has saved a document to disk.
func (s *Set) Save(session Session, uri string, text *string) []Notification {
	key := Key(uri)
	d := s.documents[key]
	if d == nil || d.views[session] == nil {
		return nil
	}
	// When the server receives didSave, it assumes that the text it has is on disk. Switch it to the saved text first.
	d.author = session
	told := s.show(d, session)
	s.saved(d, d.views[session].text)
	if s.live(d) {
		told = append(told, didSave(d, text != nil))
	}
	s.settle(d, key)
	return told
}

// Close records that a session has closed a document.
func (s *Set) Close(session Session, uri string) []Notification {
	key := Key(uri)
	d := s.documents[key]
	if d == nil || d.views[session] == nil {
		return nil
	}
	h := s.sessions[session]
	h.bytes -= len(d.views[session].text)
	if delete(h.keys, key); len(h.keys) == 0 {
		delete(s.sessions, session)
	}
	if d.awaiting == d.views[session] {
		d.awaiting = nil
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
	delete(s.displaced, key)
	delete(s.undelivered, key)
	delete(s.switched, key)
	delete(s.deferred, key)
	if !d.open {
		return nil
	}
	return []Notification{didClose(d)}
}

// leave switches the server to the view of a remaining session, if the server has the text of the session that closed the document.
func (s *Set) leave(d *document) []Notification {
	if d.views[d.author] == nil {
		d.author = d.successor()
	}
	if !d.open || d.wanted() {
		return nil
	}
	return s.show(d, d.first())
}

// Drop closes all documents of a session.
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
