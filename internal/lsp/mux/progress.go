// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// work is progress that the server reports without a request of a client, such as the progress of indexing.
type work struct {
	token []byte // raw
	begun bool
	to    map[*session]bool
}

// maxWork is the maximum number of active progress tokens of a server, because a server may never end them.
const maxWork = 1000

// createWork handles window/workDoneProgress/create: it forwards the token to clients that show progress.
func (m *Mux) createWork(b *backend, token []byte, params json.RawMessage) {
	if len(token) == 0 || len(b.work) >= maxWork {
		return
	}
	w := &work{token: bytes.Clone(token), to: map[*session]bool{}}
	b.work[string(token)] = w
	b.health.worked, b.health.workAt = true, m.now()
	for s := range m.clients.ready() {
		if s.progress {
			w.to[s] = true
			m.ask(s, nil, "window/workDoneProgress/create", bytes.Clone(params))
		}
	}
}

// progress handles $/progress of the server: progress of a request goes to its client, other progress to the clients that know the token.
func (m *Mux) progress(b *backend, body []byte, e *wire.Envelope) {
	if number, ok := tokenNumber(e.Token); ok {
		m.requestProgress(b, number, body, e)
		return
	}
	w := b.work[string(e.Token)]
	if w == nil {
		return // the token of the multiplexer's own initialize, or a token that was not created
	}
	b.health.workAt = m.now()
	kind := progressKind(e.Params)
	w.begun = true
	importance := needed
	switch kind {
	case "report":
		importance = progressReport
	case "end":
		delete(b.work, string(e.Token))
	}
	for s := range w.to {
		m.sendAs(s, body, importance, "")
	}
}

// requestProgress forwards progress or a partial result, with the token of the client.
func (m *Mux) requestProgress(b *backend, number int64, body []byte, e *wire.Envelope) {
	r := b.flight.tokens[number]
	if r == nil || r.session == nil {
		return
	}
	token, kind := r.workRaw, needed
	if number == r.partToken {
		token, r.streamed = r.partRaw, true
	} else {
		switch progressKind(e.Params) {
		case "begin":
			r.begun = true
		case "report":
			kind = progressReport
		case "end":
			delete(b.flight.tokens, number)
		}
	}
	replacements := []wire.Replacement{{Span: e.TokenSpan, With: token}}
	if number == r.partToken {
		replacements = m.stampPart(replacements, r, body)
	}
	m.sendAs(r.session, wire.Replaced(body, replacements...), kind, "")
}

func progressKind(params json.RawMessage) string {
	var p struct {
		Value struct {
			Kind string `json:"kind"`
		} `json:"value"`
	}
	_ = json.Unmarshal(params, &p) // a partial result need not be an object, and has no kind
	return p.Value.Kind
}

// cancelProgress handles window/workDoneProgress/cancel of a client.
func (m *Mux) cancelProgress(s *session, body []byte, e *wire.Envelope) {
	if !m.serves() || len(e.Token) == 0 {
		return
	}
	for number, r := range m.server.flight.tokens {
		if r.session == s && number == r.workToken && bytes.Equal(r.workRaw, e.Token) {
			m.server.put(wire.Replaced(body, wire.Replacement{Span: e.TokenSpan, With: appendToken(nil, number)}))
			return
		}
	}
	if w := m.server.work[string(e.Token)]; w != nil && w.to[s] {
		m.server.put(body)
	}
}

// endProgress ends all progress of a lost server.
func (m *Mux) endProgress(b *backend) {
	for _, w := range b.work {
		for s := range w.to {
			if w.begun {
				m.send(s, endOf(w.token))
			}
		}
	}
	for number, r := range b.flight.tokens {
		if r.session != nil && number == r.workToken && r.begun {
			m.send(r.session, endOf(r.workRaw))
		}
	}
}

func endOf(token []byte) []byte {
	return wire.NotificationBody("$/progress", wire.Encode(map[string]any{
		"token": json.RawMessage(token), "value": map[string]string{"kind": "end", "message": "the language server restarts"},
	}))
}
