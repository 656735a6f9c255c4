// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
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

// handleServerRequest answers a request of the server, or forwards it to its addressee. Every request is answered.
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
		m.passOn(b, e, method, e.Params) // only the client can know this method
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

// passOn forwards a request of the server to its addressee. If it has none, passOn answers it.
func (m *Mux) passOn(b *backend, e *wire.Envelope, method string, params json.RawMessage) {
	s := m.addressee(b, method)
	if s == nil {
		if method == methodShowMsg {
			m.showToAll(params)
		}
		b.put(noAnswer(e.ID, method, "no connected client requested it"))
		return
	}
	if method == methodApplyEdit {
		params, _ = convert(s.conversions, method, nil, params, true)
	}
	m.ask(s, bytes.Clone(e.ID), method, bytes.Clone(params))
}

// commandEcho is how long after the answer to a command its edits belong to the client of the command.
const commandEcho = 10 * time.Second

// causes are the clients that may have caused a request that the server sends outside a request of a client.
type causes struct {
	changed     document.Session // sent the last change, save or notification; 0: none
	commanded   document.Session // sent the last command
	commandedAt time.Time        // when the server received or answered the command
}

// command records that the server has received or answered a command.
func (c *causes) command(s document.Session, now time.Time) {
	c.changed, c.commanded, c.commandedAt = s, s, now
}

// notification records a notification of a client.
func (c *causes) notification(s document.Session, method string) {
	if method != "window/workDoneProgress/cancel" && method != "$/setTrace" {
		c.changed = s
	}
}

// addressee returns the client that receives a request of the server, or nil: the client whose pending request has caused it, else the client that has sent the last
// command or change, else the only client. An edit goes to no other client if its client is gone, or may be one of several.
func (m *Mux) addressee(b *backend, method string) *session {
	edit := method == methodApplyEdit
	s, certain := b.flight.causer(method)
	if certain {
		return whenReady(s)
	}
	key := m.causes.changed
	if edit && m.causes.commanded != 0 && m.now().Sub(m.causes.commandedAt) < commandEcho {
		key = m.causes.commanded
	}
	if s = whenReady(m.clients.sessions[key]); s != nil || edit && key != 0 {
		return s
	}
	var only *session
	for other := range m.clients.ready() {
		if only != nil {
			return nil
		}
		only = other
	}
	return only
}

// whenReady returns the session if it accepts requests, and nil otherwise.
func whenReady(s *session) *session {
	if s == nil || s.stage != ready {
		return nil
	}
	return s
}

// showToAll shows the message of a window/showMessageRequest to all clients.
func (m *Mux) showToAll(params json.RawMessage) {
	var p struct {
		Type    int    `json:"type"`
		Message string `json:"message"`
	}
	if json.Unmarshal(params, &p) == nil {
		m.broadcast(wire.NotificationBody("window/showMessage", wire.Encode(p)), needed)
	}
}

// noAnswer returns the response to the server if no client answers.
func noAnswer(id []byte, method, why string) []byte {
	switch method {
	case methodApplyEdit:
		return wire.ResultBody(id, wire.Encode(map[string]any{"applied": false, "failureReason": why}))
	case methodShowDoc:
		return wire.ResultBody(id, json.RawMessage(`{"success":false}`))
	case methodShowMsg:
		return wire.ResultBody(id, wire.Null)
	}
	return wire.ErrorBody(id, wire.CodeMethodNotFound, method+" is not supported: "+why, nil)
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
		m.server.put(noAnswer(q.id, q.method, "the client did not answer"))
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
