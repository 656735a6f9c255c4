// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// Notification is a notification for the server.
type Notification struct {
	Method string
	URI    string // of the document
	Params json.RawMessage
}

// ClientParams are the parameters of a notification of a client about a document. Each notification has some of them.
type ClientParams struct {
	TextDocument struct {
		URI        string `json:"uri"`
		LanguageID string `json:"languageId"`
		Version    int64  `json:"version"`
		Text       string `json:"text"`
	} `json:"textDocument"`
	ContentChanges []json.RawMessage `json:"contentChanges"`
	Text           *string           `json:"text"`
}

type textDocument struct {
	URI        string  `json:"uri"`
	LanguageID string  `json:"languageId,omitempty"`
	Version    *int64  `json:"version,omitempty"`
	Text       *string `json:"text,omitempty"`
}

type params struct {
	TextDocument   textDocument `json:"textDocument"`
	ContentChanges []event      `json:"contentChanges,omitempty"`
	Text           *string      `json:"text,omitempty"`
}

func notification(method string, p params) Notification {
	return Notification{Method: method, URI: p.TextDocument.URI, Params: wire.Encode(p)}
}

// didOpen opens a document at the server.
func (s *Set) didOpen(d *document, language, text string) Notification {
	s.version++
	s.sent(d)
	d.open, d.language, d.server, d.version, d.awaiting, d.round = true, language, text, s.version, nil, s.round
	return notification("textDocument/didOpen", params{TextDocument: textDocument{d.uri, d.language, &d.version, &text}})
}

// didChange changes the text of a document that the server has open.
func (s *Set) didChange(d *document, text string, events []event) Notification {
	s.version++
	s.sent(d)
	d.server, d.version, d.awaiting, d.round = text, s.version, nil, s.round
	return notification("textDocument/didChange", params{TextDocument: textDocument{URI: d.uri, Version: &d.version}, ContentChanges: events})
}

func didSave(d *document, withText bool) Notification {
	p := params{TextDocument: textDocument{URI: d.uri}}
	if withText {
		p.Text = &d.server
	}
	return notification("textDocument/didSave", p)
}

func didClose(d *document) Notification {
	return notification("textDocument/didClose", params{TextDocument: textDocument{URI: d.uri}})
}

// Opened returns the notifications with which a session opens its documents again, in their current texts and the versions of the session.
func (s *Set) Opened(session Session) []Notification {
	h := s.sessions[session]
	if h == nil {
		return nil
	}
	var told []Notification
	for _, key := range slices.Sorted(maps.Keys(h.keys)) {
		d := s.documents[key]
		v := d.views[session]
		told = append(told, notification("textDocument/didOpen", params{TextDocument: textDocument{d.uri, v.language, &v.version, &v.text}}))
	}
	return told
}

// Key maps all spellings of a URI to one key. Editors differ in what they escape, and without the key the server would see one document opened twice.
func Key(uri string) string {
	if !strings.Contains(uri, "%") {
		return uri
	}
	if plain, err := url.PathUnescape(uri); err == nil {
		return plain
	}
	return uri
}
