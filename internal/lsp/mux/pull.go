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

const methodPull = "textDocument/diagnostic"

// pulling requests the diagnostics of open documents from a server that returns them only on request, such as tsgo. They are then published to all clients like
// those of other servers. Servers for CSS, HTML and JSON also offer to return diagnostics, but publish them and answer each request with an error.
//
// typescript-language-server publishes diagnostics, but does not state for which text they are. While clients have different texts of a document, its diagnostics are
// therefore requested with the commands of byTSServer.
type pulling struct {
	offered bool // the server may answer requests for diagnostics
	// conflicts: the server publishes, so that diagnostics are only requested of documents of which clients have different texts.
	conflicts bool
	// replaced are the URIs, by key, of the documents whose published diagnostics were replaced with requested ones. When the texts are equal again, the diagnostics
	// are requested once more, because the server publishes them only if they differ from what it has published before.
	replaced map[string]string
	// step is the number of the pending command for the document asked, and found what the commands before it have returned.
	step    int
	found   []tsDiagnostic
	related bool // the diagnostics of a document depend on other documents
	paused  bool // the server has refused a request for now; cleared by Tick
	// due are the URIs of the documents whose diagnostics must be requested; the last one is next.
	due []string
	// published are the documents that the server publishes itself, by key.
	published map[string]bool
	// asked is the document of the pending request, and version its version at the server.
	asked   string
	version int64
}

// offers reads the server's capability to return diagnostics. how is the method for inquiries about its documents.
func (p *pulling) offers(capability json.RawMessage, how diagnosisMethod) {
	var options struct {
		InterFileDependencies bool `json:"interFileDependencies"`
	}
	p.conflicts = how == byTSServer
	p.offered = on(capability) || p.conflicts
	p.related = p.conflicts || json.Unmarshal(capability, &options) == nil && options.InterFileDependencies
	p.published, p.replaced = map[string]bool{}, map[string]string{}
}

// note records that a notification about a document was sent to the server. all are the URIs of the open documents.
func (p *pulling) note(n *document.Notification, all []string) {
	if p.related {
		p.everything(all)
	}
	p.due = slices.DeleteFunc(p.due, func(uri string) bool { return uri == n.URI })
	if n.Method == "textDocument/didClose" {
		delete(p.published, document.Key(n.URI))
		delete(p.replaced, document.Key(n.URI))
		return
	}
	p.due = append(p.due, n.URI)
}

// everything makes the diagnostics of all documents due.
func (p *pulling) everything(all []string) {
	if !p.offered {
		return
	}
	for _, uri := range all {
		if !slices.Contains(p.due, uri) {
			p.due = append(p.due, uri)
		}
	}
}

// owes reports whether the diagnostics of a document must be requested, or are requested.
func (p *pulling) owes(uri string) bool {
	same := func(other string) bool { return document.Key(other) == document.Key(uri) }
	return p.asked != "" && same(p.asked) || slices.ContainsFunc(p.due, same)
}

// pullNext requests the diagnostics of the next document that is due.
func (m *Mux) pullNext() {
	b := m.server
	if !b.accepts() || !b.pull.offered || b.pull.paused || b.pull.asked != "" {
		return
	}
	if m.pullReplaced(b) {
		return
	}
	for len(b.pull.due) > 0 {
		last := len(b.pull.due) - 1
		uri := b.pull.due[last]
		b.pull.due = b.pull.due[:last]
		version, open := m.documents.ServerVersion(uri)
		if !open || b.pull.published[document.Key(uri)] || b.pull.conflicts && !m.documents.Conflicting(uri) {
			continue
		}
		m.pull(b, uri, version)
		return
	}
}

// pullReplaced requests the diagnostics of a document in pulling.replaced of which all clients have the same text again. It reports whether there is one.
func (m *Mux) pullReplaced(b *backend) bool {
	for key, uri := range b.pull.replaced {
		if version, open := m.documents.ServerVersion(uri); open && !m.documents.Conflicting(uri) {
			delete(b.pull.replaced, key)
			m.pull(b, uri, version)
			return true
		}
	}
	return false
}

// pull requests the diagnostics of a document.
func (m *Mux) pull(b *backend, uri string, version int64) {
	b.pull.asked, b.pull.version, b.pull.step, b.pull.found = uri, version, 0, nil
	m.pullStep(b)
}

// pullStep sends the next request for the diagnostics of the document whose turn it is.
func (m *Mux) pullStep(b *backend) {
	if b.pull.conflicts {
		method, params := byTSServer.request(b.pull.asked, b.pull.step)
		m.request(b, ownPull, method, params)
		return
	}
	m.request(b, ownPull, methodPull, wire.Encode(map[string]any{"textDocument": map[string]string{"uri": b.pull.asked}}))
}

// pulled handles the answer to a request for diagnostics.
func (m *Mux) pulled(b *backend, e *wire.Envelope) {
	uri, version := b.pull.asked, b.pull.version
	if b.pull.conflicts {
		m.pulledStep(b, e.Result, e.IsError)
		return
	}
	b.pull.asked = ""
	if e.IsError {
		var refused struct {
			Code int `json:"code"`
		}
		_ = json.Unmarshal(e.Result, &refused)
		switch refused.Code {
		case wire.CodeMethodNotFound:
			b.pull = pulling{}
		case wire.CodeServerCancelled, wire.CodeContentModified, wire.CodeRequestCancelled:
			b.pull.paused = true
			if !slices.Contains(b.pull.due, uri) {
				b.pull.due = append(b.pull.due, uri)
			}
			m.nudge()
		}
		return
	}
	var report struct {
		Kind  string          `json:"kind"`
		Items json.RawMessage `json:"items"`
	}
	if json.Unmarshal(e.Result, &report) == nil && report.Kind == "full" && !b.pull.published[document.Key(uri)] {
		if len(report.Items) == 0 {
			report.Items = json.RawMessage("[]")
		}
		m.record(uri, &version, report.Items)
	}
}

// pulledStep handles the answer to a command of byTSServer.
func (m *Mux) pulledStep(b *backend, answer []byte, isError bool) {
	p := &b.pull
	uri, version := p.asked, p.version
	found, failure := byTSServer.read(answer, isError)
	p.found = append(p.found, found...)
	now, open := m.documents.ServerVersion(uri)
	p.step++
	if open && (failure != "" || now != version || m.documents.Conflicting(uri)) {
		p.replaced[document.Key(uri)] = uri
	}
	switch {
	case failure != "":
		p.asked, p.paused = "", true
		p.everything([]string{uri})
		m.nudge()
	case now != version: // the new text is due
		p.asked = ""
	case p.step < byTSServer.steps():
		m.pullStep(b)
	default:
		p.asked = ""
		m.record(uri, &version, converted(p.found))
	}
}

// pullLate gives up a request for diagnostics that the server does not answer, and lets refused ones be sent again.
func (m *Mux) pullLate(b *backend, now time.Time) {
	b.pull.paused = false
	if b.pull.asked == "" {
		return
	}
	if r := b.flight.ofMux(ownPull); r != nil && now.Sub(r.sent) >= m.config.Limits.RequestTimeout {
		if b.pull.conflicts {
			b.pull.replaced[document.Key(b.pull.asked)] = b.pull.asked
		}
		b.pull.asked = ""
		b.flight.end(r)
		m.forget(r)
	}
}
