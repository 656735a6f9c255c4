// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	// questionPatience is how long a client may take to answer a request of the server.
	questionPatience = 30 * time.Second
	methodApplyEdit  = "workspace/applyEdit"
	methodShowMsg    = "window/showMessageRequest"
	methodShowDoc    = "window/showDocument"
)

// serverRequest is a request that the multiplexer has sent to a client.
type serverRequest struct {
	id       []byte // ID of the request of the current server; nil: the answer is dropped
	method   string
	deadline time.Time
}

// handleServerRequest answers a request of the server, or forwards it to the client that caused it. Every request is answered.
func (m *Mux) handleServerRequest(b *backend, e *wire.Envelope) {
	method := string(e.Method)
	switch method {
	case "workspace/configuration":
		result, err := m.configuration(e.Params)
		if err != nil {
			b.put(wire.ErrorBody(e.ID, wire.CodeInvalidParams, err.Error(), nil))
			return
		}
		b.put(wire.ResultBody(e.ID, result))
	case "workspace/workspaceFolders":
		b.put(wire.ResultBody(e.ID, wire.Encode(workspaceFolders(m.config.Folders))))
	case "client/registerCapability":
		b.put(wire.ResultBody(e.ID, wire.Null))
		m.register(e.Params)
	case "client/unregisterCapability":
		b.put(wire.ResultBody(e.ID, wire.Null))
		m.unregister(e.Params)
	case "window/workDoneProgress/create":
		b.put(wire.ResultBody(e.ID, wire.Null))
		m.createWork(b, e.Token, e.Params)
	case methodApplyEdit, methodShowMsg, methodShowDoc:
		m.passOn(b, e, method, e.Params)
	default:
		if kind, ok := refreshed(method); ok {
			b.put(wire.ResultBody(e.ID, wire.Null))
			if method == "workspace/diagnostic/refresh" {
				b.pull.everything()
				m.pullNext()
				return
			}
			m.refresh(method, kind)
			return
		}
		b.put(wire.ErrorBody(e.ID, wire.CodeMethodNotFound, method+" is not supported", nil))
	}
}

// refreshed returns the feature of a request such as workspace/codeLens/refresh.
func refreshed(method string) (string, bool) {
	kind, ok := strings.CutPrefix(method, "workspace/")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(kind, "/refresh")
}

func (m *Mux) refresh(method, kind string) {
	for s := range m.clients.ready() {
		if capable(s.capabilities, "workspace", kind, "refreshSupport") {
			m.ask(s, nil, method, nil)
		}
	}
}

// passOn forwards a request of the server to the client that caused it, if that client is known.
func (m *Mux) passOn(b *backend, e *wire.Envelope, method string, params json.RawMessage) {
	s := b.flight.causer(method)
	if s == nil || s.stage != ready {
		b.put(wire.ResultBody(e.ID, noAnswer(method, "no connected client requested it")))
		return
	}
	if method == methodApplyEdit {
		params, _ = convert(s.conversions, method, nil, params, true)
	}
	m.ask(s, bytes.Clone(e.ID), method, bytes.Clone(params))
}

// noAnswer returns the result for the server if no client answers.
func noAnswer(method, why string) json.RawMessage {
	switch method {
	case methodApplyEdit:
		return wire.Encode(map[string]any{"applied": false, "failureReason": why})
	case methodShowDoc:
		return json.RawMessage(`{"success":false}`)
	}
	return wire.Null
}

// ask sends a request to a client. id is the ID of the server's request if the answer is to be forwarded to the server, and nil otherwise.
func (m *Mux) ask(s *session, id []byte, method string, params json.RawMessage) {
	m.clients.asked++
	number := m.clients.asked
	s.asked[number] = &serverRequest{id: id, method: method, deadline: m.now().Add(questionPatience)}
	m.send(s, wire.RequestBody(appendToken(nil, number), method, params))
	m.nudge()
}

// clientAnswered handles the answer of a client.
func (m *Mux) clientAnswered(s *session, body []byte, e *wire.Envelope) {
	number, ok := tokenNumber(e.ID)
	q := s.asked[number]
	if !ok || q == nil {
		return // too late
	}
	delete(s.asked, number)
	if q.id == nil {
		return
	}
	m.server.add(func(buffer []byte) []byte { return e.AppendWithID(buffer, body, q.id) })
}

// giveUp answers a request of the server in place of a client that did not answer.
func (m *Mux) giveUp(s *session, number int64, q *serverRequest) {
	delete(s.asked, number)
	if q.id != nil {
		m.server.put(wire.ResultBody(q.id, noAnswer(q.method, "the client did not answer")))
	}
}

func (m *Mux) giveUpLate(now time.Time) {
	for _, s := range m.clients.sessions {
		for number, q := range s.asked {
			if !now.Before(q.deadline) {
				m.giveUp(s, number, q)
			}
		}
	}
}
