// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"encoding/json"

	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// emit sends notifications about documents to the server.
func (m *Mux) emit(list []document.Notification) {
	if m.server == nil {
		return
	}
	for i := range list {
		n := &list[i]
		m.server.put(wire.NotificationBody(n.Method, n.Params))
		if n.Method != "textDocument/didSave" {
			m.server.toldAt = m.now()
		}
		if pull := &m.server.pull; pull.offered {
			pull.note(n)
		}
	}
	m.pullNext()
}

func (m *Mux) didOpen(s *session, params json.RawMessage) {
	var p document.ClientParams
	if err := json.Unmarshal(params, &p); err != nil || p.TextDocument.URI == "" {
		m.violation(s, wire.CodeInvalidRequest, "textDocument/didOpen without a document")
		return
	}
	d := p.TextDocument
	list, err := m.documents.Open(s.key, d.URI, cmp.Or(d.LanguageID, m.config.Language), d.Version, d.Text)
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
	var p document.ClientParams
	if err := json.Unmarshal(params, &p); err != nil {
		m.violation(s, wire.CodeInvalidRequest, "textDocument/didChange: "+err.Error())
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
	var p document.ClientParams
	if err := json.Unmarshal(params, &p); err != nil {
		m.violation(s, wire.CodeInvalidRequest, "textDocument/didSave: "+err.Error())
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
	for uri := range m.open {
		if m.documents.IsOpen(uri) {
			continue
		}
		m.changed = true
		delete(m.open, uri)
		delete(m.published, document.Key(uri))
		m.quarantine.closed(document.Key(uri))
	}
}

// decline reports to a client that an operation on its documents failed.
func (m *Mux) decline(s *session, err error) {
	m.counters.Rejected++
	m.log("rejected a document: " + err.Error())
	m.sendAs(s, wire.NotificationBody("window/logMessage", wire.Encode(map[string]any{"type": 1, "message": err.Error()})), logging, "")
}

// restoreTexts switches the server back to the texts of the authors, or to texts whose diagnostics are due. It does nothing while a pending question depends on the
// texts that the server has.
func (m *Mux) restoreTexts() {
	if m.server == nil {
		return
	}
	m.emit(m.documents.Deferred())
	if m.server.flight.viewing == 0 {
		m.emit(m.documents.Restore())
	}
}
