// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"net/url"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
)

// emit sends notifications about documents to the server.
func (m *Mux) emit(list []document.Notification) {
	if m.server == nil {
		return
	}
	for i := range list {
		n := &list[i]
		m.server.put(notificationBody(n.Method, n.Params))
		if n.Method != "textDocument/didSave" {
			m.server.toldAt = m.now()
		}
		if pull := &m.server.pull; pull.offered {
			pull.note(n, m.documents.URIs())
		}
	}
	m.pullNext()
}

func (m *Mux) didOpen(s *session, params json.RawMessage) {
	var p struct {
		TextDocument struct {
			URI        string `json:"uri"`
			LanguageID string `json:"languageId"`
			Version    int64  `json:"version"`
			Text       string `json:"text"`
		} `json:"textDocument"`
	}
	if err := json.Unmarshal(params, &p); err != nil || p.TextDocument.URI == "" {
		m.violation(s, codeInvalidRequest, "textDocument/didOpen without a document")
		return
	}
	d := p.TextDocument
	if d.LanguageID == "" {
		d.LanguageID = m.config.Language
	}
	list, err := m.documents.Open(s.key, d.URI, d.LanguageID, d.Version, d.Text)
	if err != nil {
		m.decline(s, err)
		return
	}
	m.open[d.URI] = d.URI
	m.changed = true
	if len(list) > 0 || !m.serves() { // otherwise the server has this text already, or the document is withheld
		m.quarantine.changed(document.Key(d.URI), m.now())
	}
	m.emit(list)
	m.showKnown(s, d.URI)
}

func (m *Mux) didChange(s *session, params json.RawMessage) {
	var p struct {
		TextDocument struct {
			URI     string `json:"uri"`
			Version int64  `json:"version"`
		} `json:"textDocument"`
		ContentChanges []json.RawMessage `json:"contentChanges"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		m.violation(s, codeInvalidRequest, "textDocument/didChange: "+err.Error())
		return
	}
	list, err := m.documents.Change(s.key, p.TextDocument.URI, p.TextDocument.Version, p.ContentChanges)
	m.emit(list)
	if err != nil { // the client's text is now unknown, so the document counts as closed
		m.decline(s, err)
		m.closed()
		return
	}
	m.quarantine.changed(document.Key(p.TextDocument.URI), m.now())
	if len(list) == 0 { // the server already has this text, but its diagnostics were not sent to this client
		m.showKnown(s, p.TextDocument.URI)
	}
}

func (m *Mux) didSave(s *session, params json.RawMessage) {
	var p struct {
		TextDocument struct {
			URI string `json:"uri"`
		} `json:"textDocument"`
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		m.violation(s, codeInvalidRequest, "textDocument/didSave: "+err.Error())
		return
	}
	m.emit(m.documents.Save(s.key, p.TextDocument.URI, p.Text))
}

func (m *Mux) didClose(s *session, uri []byte) {
	m.emit(m.documents.Close(s.key, string(uri)))
	m.closed()
}

// closed removes the state of documents that no client has open.
func (m *Mux) closed() {
	held := make(map[string]bool, len(m.open))
	for _, uri := range m.documents.URIs() {
		held[normal(uri)] = true
	}
	for uri := range m.open {
		if held[normal(uri)] {
			continue
		}
		m.changed = true
		delete(m.open, uri)
		delete(m.published, normal(uri))
		m.quarantine.closed(document.Key(uri))
	}
}

// normal returns a URI without escapes, because clients and servers differ in which characters they escape.
func normal(uri string) string {
	if plain, err := url.PathUnescape(uri); err == nil {
		return plain
	}
	return uri
}

// decline reports to a client that an operation on its documents failed.
func (m *Mux) decline(s *session, err error) {
	m.counters.Rejected++
	m.log("rejected a document: " + err.Error())
	m.sendAs(s, notificationBody("window/logMessage", encode(map[string]any{"type": 1, "message": err.Error()})), logging, "")
}

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
	case b.pull.conflicts && m.documents.Conflicting(p.URI):
		return // it is not known for which text these diagnostics are, and those of each text are requested
	case b.pull.offered && !b.pull.conflicts:
		b.pull.published[document.Key(p.URI)] = true
	}
	m.record(p.URI, p.Version, p.Diagnostics)
}

// record keeps the newest diagnostics of a document, and sends them to the clients that may see them.
func (m *Mux) record(uri string, version *int64, list json.RawMessage) {
	body := notificationBody("textDocument/publishDiagnostics", encode(map[string]any{"uri": uri, "diagnostics": list}))
	made := &publication{uri: uri, version: version, diagnostics: list, body: body, at: m.now()}
	m.server.diagnosedAt = made.at
	key := normal(uri)
	_, known := m.published[key]
	switch {
	case string(list) == "[]" && !m.holds(key):
		delete(m.published, key)
	case known || len(m.published) < maxPublications:
		m.published[key] = made
	}
	m.show(made)
	m.see(made)
	m.documents.Delivered(uri, version)
	m.restoreTexts()
	m.settleAll()
}

// restoreTexts switches the server back to the texts of the authors, or to texts whose diagnostics are due. It does nothing while a pending question depends on the
// texts that the server has.
func (m *Mux) restoreTexts() {
	if m.server != nil && m.server.flight.viewing == 0 {
		m.emit(m.documents.Restore())
	}
}

// holds reports whether a client has a document open. publish keeps empty diagnostics of such a document too, because some clients may receive them only later.
func (m *Mux) holds(key string) bool {
	for uri := range m.open {
		if normal(uri) == key {
			return true
		}
	}
	return false
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
		body = notificationBody("textDocument/publishDiagnostics", encode(map[string]any{"uri": p.uri, "version": version, "diagnostics": p.diagnostics}))
	}
	m.sendAs(s, body, diagnostics, p.uri)
}

// showKnown sends a session the latest diagnostics of a document, if they are for the session's text.
func (m *Mux) showKnown(s *session, uri string) {
	if p := m.published[normal(uri)]; p != nil && s.stage == ready {
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
	for key, p := range m.published {
		if p.stale {
			delete(m.published, key)
			p.version = nil
			p.body = notificationBody("textDocument/publishDiagnostics", encode(map[string]any{"uri": p.uri, "diagnostics": []int{}}))
			m.show(p)
		}
	}
}
