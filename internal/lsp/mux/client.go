// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"encoding/json"
	"strings"
	"unicode"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// fromClient handles one message of a client. It returns false if no more messages are to be read from the client.
func (m *Mux) fromClient(s *session, body []byte, e *wire.Envelope) bool {
	m.lock()
	defer m.unlock()
	if s.closing {
		return false
	}
	if s.configured != m.configured {
		s.configured = m.configured
		s.reader.Limit(clientLimits(m.config.Limits))
	}
	m.counters.Frames++
	m.counters.Bytes += int64(len(body))
	m.dirty = true
	switch e.Kind {
	case wire.Request:
		m.handleClientRequest(s, body, e)
	case wire.Notification:
		if string(e.Method) == "exit" {
			return false
		}
		m.handleClientNotification(s, body, e)
	case wire.Response:
		m.clientAnswered(s, body, e)
	}
	return !s.closing
}

// handleClientRequest handles a request of a client.
func (m *Mux) handleClientRequest(s *session, body []byte, e *wire.Envelope) {
	m.counters.Requests++
	switch {
	case string(e.Method) == "initialize":
		m.initializeClient(s, e)
	case s.stage == fresh || s.stage == initializing:
		m.refuse(s, e.ID, wire.CodeNotInitialized, "the server must answer initialize before other requests are sent")
	case s.stage == finished:
		m.refuse(s, e.ID, wire.CodeInvalidRequest, "requests are not permitted after shutdown")
	case string(e.Method) == "shutdown":
		s.stage = finished
		m.send(s, wire.ResultBody(e.ID, wire.Null))
	case s.find(e.ID) != nil:
		m.violation(s, wire.CodeInvalidRequest, "the request has the same id as another request that is still pending")
	default:
		r := m.newRequest(s, body, e)
		s.open = append(s.open, r)
		switch r.method {
		case lsp.MethodDiagnostics:
			m.inquire(r, e.Params)
		case lsp.MethodState:
			m.tellState(r)
		case lsp.MethodSync:
			m.syncFiles(r)
		default:
			m.submit(r)
		}
	}
}

// refuse answers a request that was not accepted.
func (m *Mux) refuse(s *session, id []byte, code int, message string) {
	m.counters.Failed++
	m.send(s, wire.ErrorBody(id, code, message, nil))
}

// initializeClient handles the initialize request of a client. The answer is the server's initialize result, and is sent as soon as that is known.
func (m *Mux) initializeClient(s *session, e *wire.Envelope) {
	if s.stage != fresh {
		m.refuse(s, e.ID, wire.CodeInvalidRequest, "initialize can be sent only once")
		return
	}
	var params struct {
		ClientInfo struct {
			Name string `json:"name"`
		} `json:"clientInfo"`
		Capabilities json.RawMessage `json:"capabilities"`
	}
	_ = json.Unmarshal(e.Params, &params) // an error means that the client has sent no capabilities
	s.name = cmp.Or(plainName(params.ClientInfo.Name), "unknown")
	s.capabilities = params.Capabilities
	s.conversions = neededConversions(s.capabilities)
	s.progress = capable(s.capabilities, "window", "workDoneProgress")
	s.stage, s.initSince = initializing, m.now()
	s.initID = append([]byte(nil), e.ID...)
	if m.features.answer != nil {
		m.welcome(s)
	}
	m.nudge()
}

// plainName returns what a client calls itself without everything that could be more than a name, because agents read it.
func plainName(name string) string {
	const maxName = 40
	plain := strings.Map(func(r rune) rune {
		if r < 0x80 && (r == '.' || r == '_' || r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return -1
	}, name)
	return plain[:min(len(plain), maxName)]
}

// welcome answers the initialize request of a client.
func (m *Mux) welcome(s *session) {
	s.stage = initialized
	m.add(s, needed, "", func(buffer []byte) []byte {
		return m.features.answer.envelope.AppendWithID(buffer, m.features.answer.body, s.initID)
	})
}

// handleClientNotification handles a notification of a client.
func (m *Mux) handleClientNotification(s *session, body []byte, e *wire.Envelope) {
	switch string(e.Method) {
	case "initialized":
		if s.stage == initialized {
			s.stage = ready
			m.catchUp(s)
		}
		return
	case "$/cancelRequest":
		m.cancel(s, e.CancelID)
		return
	}
	if s.stage != initialized && s.stage != ready {
		return // the protocol requires that such a notification is dropped
	}
	params := json.RawMessage(e.Params)
	if params == nil {
		params = wire.Null
	}
	m.causes.notification(s.key, string(e.Method))
	switch string(e.Method) {
	case "textDocument/didOpen":
		m.didOpen(s, params)
	case "textDocument/didChange":
		m.didChange(s, params)
	case "textDocument/didSave":
		m.didSave(s, params)
	case "textDocument/didClose":
		m.didClose(s, e.URI)
	case "window/workDoneProgress/cancel":
		m.cancelProgress(s, body, e)
	case "$/setTrace", "workspace/didChangeConfiguration", "workspace/didChangeWorkspaceFolders":
		// Not forwarded: settings and folders are those of the spec, for all clients.
	case "workspace/didChangeWatchedFiles":
		if m.serves() {
			m.server.put(body) // a server that is starting, and the next server, read the files themselves
			m.server.toldAt = m.now()
		}
	default:
		m.forward(s, body, e)
	}
}

// forward sends the server a notification that has no meaning to the multiplexer. While the server accepts no requests, the notification waits like a request,
// within the limits of Config.Hold.
func (m *Mux) forward(s *session, body []byte, e *wire.Envelope) {
	switch {
	case m.serves() && s.waiting == 0:
		m.server.put(body)
	case s.waiting < m.config.Hold.Requests && s.waitingBytes+len(body) <= m.config.Hold.Bytes && m.config.Hold.Timeout > 0:
		m.wait(m.newRequest(s, body, e), !m.serves())
	default:
		m.counters.Rejected++
	}
}

// cancel handles $/cancelRequest of a client.
func (m *Mux) cancel(s *session, id []byte) {
	r := s.find(id)
	if r == nil || len(id) == 0 {
		return // already answered
	}
	r.cancelled = true
	if r.place == inFlight {
		m.cancelAtServer(r)
		return
	}
	m.take(r)
	m.fail(r, wire.CodeRequestCancelled, "canceled before it was sent to the server", nil)
}
