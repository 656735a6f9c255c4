// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// publication is the newest diagnostics of a document.
type publication struct {
	uri         string
	version     *int64 // of the server's text
	diagnostics json.RawMessage
	body        []byte    // as sent to clients that do not have the document open
	at          time.Time // when it was published
	stale       bool      // by an earlier incarnation
}

// maxPublications is the maximum number of documents whose diagnostics are kept for clients that connect later.
const maxPublications = 20000

// publications holds the newest diagnostics of each document, by document.Key.
type publications map[string]*publication

func (p publications) of(uri string) *publication { return p[document.Key(uri)] }

// keep replaces the diagnostics of a document. open: a client has the document open. Empty diagnostics of such a document are kept too, because some clients may
// receive them only later.
func (p publications) keep(made *publication, open bool) {
	key := document.Key(made.uri)
	switch {
	case string(made.diagnostics) == "[]" && !open:
		delete(p, key)
	case p[key] != nil || len(p) < maxPublications:
		p[key] = made
	}
}

// serverGone marks all diagnostics as those of an earlier incarnation.
func (p publications) serverGone() {
	for _, made := range p {
		made.stale = true
	}
}

// takeStale removes and returns the diagnostics of earlier incarnations.
func (p publications) takeStale() (taken []*publication) {
	for key, made := range p {
		if made.stale {
			delete(p, key)
			taken = append(taken, made)
		}
	}
	return taken
}

// publish handles diagnostics of the server. The server's version of a text is replaced with the one that each client has given the same text.
func (m *Mux) publish(b *backend, params json.RawMessage) {
	var p struct {
		URI         string          `json:"uri"`
		Version     *int64          `json:"version"`
		Diagnostics json.RawMessage `json:"diagnostics"`
	}
	if err := json.Unmarshal(params, &p); err != nil || p.URI == "" {
		m.log("dropped diagnostics that name no document")
		return
	}
	if len(p.Diagnostics) == 0 {
		p.Diagnostics = json.RawMessage("[]")
	}
	switch {
	case p.Version == nil && m.documents.Reopened(p.URI):
		return // the document was closed and opened again, and diagnostics of its text follow
	case b.pull.conflicts && m.documents.Conflicting(p.URI):
		return // it is not known for which text these diagnostics are, and those of each text are requested
	case b.pull.offered && !b.pull.conflicts && len(b.pull.published) < maxPublications:
		b.pull.published[document.Key(p.URI)] = true
	}
	b.versions = b.versions || p.Version != nil
	m.record(p.URI, p.Version, p.Diagnostics)
}

// record keeps the newest diagnostics of a document, and sends them to the clients that may see them.
func (m *Mux) record(uri string, version *int64, list json.RawMessage) {
	list = m.stampDiagnostics(list)
	body := wire.NotificationBody("textDocument/publishDiagnostics", wire.Encode(map[string]any{"uri": uri, "diagnostics": list}))
	made := &publication{uri: uri, version: version, diagnostics: list, body: body, at: m.now()}
	m.server.diagnosedAt = made.at
	m.published.keep(made, m.documents.IsOpen(uri))
	m.show(made)
	m.see(made)
	m.documents.Delivered(uri, version)
	m.restoreTexts()
	m.settleAll()
}

// show sends diagnostics to the clients that document.Set.Published allows to see them.
func (m *Mux) show(p *publication) {
	sessions, all := m.documents.Published(p.uri, p.version)
	if all {
		for s := range m.clients.ready() {
			m.sendPublication(s, p)
		}
		return
	}
	for _, key := range sessions {
		if s := m.clients.sessions[key]; s != nil && s.stage == ready {
			m.sendPublication(s, p)
		}
	}
}

// sendPublication sends diagnostics to a session that may see them, with the session's version of the text if the server has named one.
func (m *Mux) sendPublication(s *session, p *publication) {
	body := p.body
	if version, ok := m.documents.ClientVersion(s.key, p.uri); ok && p.version != nil {
		body = wire.NotificationBody("textDocument/publishDiagnostics", wire.Encode(map[string]any{"uri": p.uri, "version": version, "diagnostics": p.diagnostics}))
	}
	m.sendAs(s, body, diagnostics, p.uri)
}

// showKnown sends a session the latest diagnostics of a document, if they are for the session's text.
func (m *Mux) showKnown(s *session, uri string) {
	if p := m.published.of(uri); p != nil && s.stage == ready {
		m.showTo(p, s)
	}
}

// showTo sends diagnostics to one session if it is allowed to see them. Those of an earlier server have versions that this server gives to other texts.
func (m *Mux) showTo(p *publication, s *session) {
	if m.mayShow(p, s) {
		m.sendPublication(s, p)
		m.documents.Delivered(p.uri, p.version)
	}
}

// mayShow reports whether a session is allowed to see diagnostics.
func (m *Mux) mayShow(p *publication, s *session) bool {
	if p.stale {
		return false
	}
	sessions, all := m.documents.Published(p.uri, p.version)
	return all || slices.Contains(sessions, s.key)
}

// clearStale clears diagnostics that the new server has not published again.
func (m *Mux) clearStale() {
	for _, p := range m.published.takeStale() {
		p.version = nil
		p.body = wire.NotificationBody("textDocument/publishDiagnostics", wire.Encode(map[string]any{"uri": p.uri, "diagnostics": []int{}}))
		m.show(p)
	}
}
