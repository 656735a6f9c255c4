// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
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
	// documents are the documents that the server has open, by key.
	documents map[string]*pullState
	// round is the number of the last event after which the diagnostics of all documents are due, and changes is the number of the last notification about a
	// document.
	round, changes int64
	// published are the documents that the server publishes itself, by key.
	published map[string]bool
	// asked is the document of the pending request, and version its version at the server.
	asked   string
	version int64
}

// pullState is what is known of the diagnostics of a document.
type pullState struct {
	uri string
	// round is the value of pulling.round at the last request for the diagnostics, and changed the value of pulling.changes at the last notification about the
	// document. The diagnostics are due unless round has the current value. 0 means that they are due.
	round, changed int64
}

// offers reads the server's capability to return diagnostics. how is the method for inquiries about its documents.
func (p *pulling) offers(capability json.RawMessage, how diagnosisMethod) {
	var options struct {
		InterFileDependencies bool `json:"interFileDependencies"`
	}
	p.conflicts = how == byTSServer
	p.offered = on(capability) || p.conflicts
	p.related = p.conflicts || json.Unmarshal(capability, &options) == nil && options.InterFileDependencies
	p.documents, p.published, p.replaced = map[string]*pullState{}, map[string]bool{}, map[string]string{}
	p.round = 1
}

// note records that a notification about a document was sent to the server.
func (p *pulling) note(n *document.Notification) {
	if p.related {
		p.everything()
	}
	key := document.Key(n.URI)
	if n.Method == "textDocument/didClose" {
		delete(p.documents, key)
		delete(p.published, key)
		delete(p.replaced, key)
		return
	}
	if p.documents[key] == nil {
		p.documents[key] = &pullState{uri: n.URI}
	}
	p.changes++
	p.documents[key].changed = p.changes
	p.again(n.URI)
}

// everything makes the diagnostics of all documents due. It takes the same time for any number of documents, because some servers require it at each keystroke.
func (p *pulling) everything() { p.round++ }

// again makes the diagnostics of a document due, if the server has it open.
func (p *pulling) again(uri string) {
	if d := p.documents[document.Key(uri)]; d != nil {
		d.round = 0
	}
}

// owes reports whether the diagnostics of a document must be requested, or are requested.
func (p *pulling) owes(uri string) bool {
	key := document.Key(uri)
	d := p.documents[key]
	return d != nil && d.round != p.round || p.asked != "" && document.Key(p.asked) == key
}

// next returns the document whose diagnostics are to be requested next, or nil. It is the one that has changed last of those whose diagnostics are due. They are
// not due any more if useless returns true.
func (p *pulling) next(useless func(uri string) bool) (next *pullState) {
	for _, d := range p.documents {
		switch {
		case d.round == p.round || next != nil && d.changed < next.changed:
		case useless(d.uri):
			d.round = p.round
		default:
			next = d
		}
	}
	return next
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
	next := b.pull.next(func(uri string) bool {
		return b.pull.published[document.Key(uri)] || b.pull.conflicts && !m.documents.Conflicting(uri)
	})
	if next == nil {
		return
	}
	next.round = b.pull.round
	version, _ := m.documents.ServerVersion(next.uri)
	m.pull(b, next.uri, version)
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
			b.pull.again(uri)
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
		p.again(uri)
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
