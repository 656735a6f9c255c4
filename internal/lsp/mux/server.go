// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// fromServer handles one message of a server.
func (m *Mux) fromServer(b *backend, body []byte, e *wire.Envelope) {
	m.lock()
	defer m.unlock()
	if m.server != b {
		return
	}
	m.counters.Frames++
	m.counters.Bytes += int64(len(body))
	m.dirty = true
	switch e.Kind {
	case wire.Response:
		m.answered(b, body, e)
	case wire.Request:
		m.handleServerRequest(b, e)
	case wire.Notification:
		m.handleServerNotification(b, body, e)
	}
	if b.health.overflow {
		m.markFaulty(b, lsp.ReasonHung, doesNotRead)
	}
}

// answered handles an answer of the server. It drops an answer to an unknown request: the request has timed out.
func (m *Mux) answered(b *backend, body []byte, e *wire.Envelope) {
	number, ok := numberOf(e.ID)
	if !ok {
		return
	}
	r := b.flight.pending[number]
	if r == nil {
		return
	}
	b.flight.end(r)
	if r.own != ofClient {
		what := r.own
		m.forget(r)
		m.answeredOwn(b, what, body, e)
		m.pump()
		return
	}
	if e.IsError && r.withdrawn && !r.cancelled {
		m.interrupted(r, lsp.Asked) // the multiplexer canceled the request, and the client did not
		return
	}
	if e.IsError && !r.late.IsZero() && !r.cancelled {
		m.timeOut(r) // the request was canceled because it timed out, and not by the client
		m.pump()
		return
	}
	if !e.IsError {
		clear(b.health.timedOut)
	}
	if r.method == methodExecute && r.inquiry == nil {
		m.causes.command(r.session.key, m.now())
	}
	if r.inquiry != nil {
		m.diagnosed(r, e)
		m.pump()
		return
	}
	if r.resolving != nil {
		m.repeated(r, e)
		m.pump()
		return
	}
	m.relay(r, body, e)
	m.forget(r)
	m.pump()
}

// relay sends a client the answer of the server.
func (m *Mux) relay(r *request, body []byte, e *wire.Envelope) {
	s := r.session
	if s.closing {
		return
	}
	if e.Result != nil && !e.IsError {
		result, stamped := m.stampResult(r, e.Result)
		if converted, ok := convert(s.conversions, r.method, r.uri, result, e.Changes); ok {
			result, stamped = converted, true
		}
		if stamped {
			m.send(s, wire.Replaced(body, wire.Replacement{Span: e.IDSpan, With: r.id}, wire.Replacement{Span: e.ResultSpan, With: result}))
			return
		}
	}
	m.add(s, needed, "", func(buffer []byte) []byte { return e.AppendWithID(buffer, body, r.id) })
}

// handleServerNotification handles a notification of the server.
func (m *Mux) handleServerNotification(b *backend, body []byte, e *wire.Envelope) {
	switch string(e.Method) {
	case "textDocument/publishDiagnostics":
		m.publish(b, e.Params)
	case "$/progress":
		m.progress(b, body, e)
	case "window/logMessage", "telemetry/event", "$/logTrace":
		m.broadcast(body, logging)
	case "experimental/serverStatus":
		var status struct {
			Quiescent *bool `json:"quiescent"`
		}
		if json.Unmarshal(e.Params, &status) == nil && status.Quiescent != nil {
			b.health.busyStatus, b.health.worked, b.health.workAt = !*status.Quiescent, true, m.now()
		}
		m.broadcast(body, needed)
	case "$/cancelRequest":
		// The server cancels a request that it has sent to a client. The cancellation is not forwarded, so the server receives the answer of the client.
	default:
		m.broadcast(body, needed)
	}
}

// broadcast sends a message to all clients that are ready.
func (m *Mux) broadcast(body []byte, kind importance) {
	for s := range m.clients.ready() {
		m.sendAs(s, body, kind, "")
	}
}
