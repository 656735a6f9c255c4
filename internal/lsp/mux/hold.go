// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	// backlogBytes is how many bytes may be queued for the server before new requests have to wait.
	backlogBytes = 16 << 20
	// retryAfter is the hint in errors that suggest a retry.
	retryAfter = 2 * time.Second
)

// serves reports whether the server accepts requests.
func (m *Mux) serves() bool {
	return m.server.accepts() && (m.server.health.indexed || m.config.WhileIndexing != lsp.IndexingHold)
}

// admits reports whether a request may be sent now. Commands are sent one at a time: an edit that the server requests then belongs to the client whose command
// is pending. A question that needs another text waits for pending questions about the same document.
func (m *Mux) admits(r *request) bool {
	if !m.serves() || m.server.out.backlog() > backlogBytes {
		return false
	}
	if r.notification {
		return true
	}
	if r.session.inFlight >= m.config.Limits.InFlight {
		return false
	}
	if r.method == methodExecute && m.server.flight.executing > 0 {
		return false
	}
	return m.now().Sub(r.arrived) >= document.MaxHold || !m.documents.Disturbs(r.session.key, m.open[string(r.uri)], ofOneDocument[r.method])
}

// submit sends a new request, or makes it wait. If the limits allow neither, the request fails.
func (m *Mux) submit(r *request) {
	s, bounds := r.session, m.config.Hold
	if m.refusePoison(r) {
		return
	}
	if s.waiting == 0 && m.admits(r) {
		m.dispatch(r)
		return
	}
	held := !m.serves()
	if held && bounds.Timeout < 0 || s.waiting >= bounds.Requests || s.waitingBytes+len(r.body) > bounds.Bytes {
		m.failWaiting(r, held)
		return
	}
	m.wait(r, held)
}

// wait adds a request to the waiting list.
func (m *Mux) wait(r *request, held bool) {
	m.waiting.add(r, m.now(), held)
	m.changed = m.changed || held && !r.notification
	m.nudge()
}

// take removes a request from its list.
func (m *Mux) take(r *request) {
	switch r.place {
	case waits:
		m.waiting.remove(r, m.now())
	case inFlight:
		m.server.flight.end(r)
	}
}

// pump sends the waiting requests that are admitted, in order of arrival. A request that has to keep waiting also blocks later ones of the same client, but not
// those of other clients.
func (m *Mux) pump() {
	if !m.serves() {
		return
	}
	m.sendWaiting()
	m.restoreTexts()
	m.pullNext()
}

func (m *Mux) sendWaiting() {
	if len(m.waiting.list) == 0 {
		return
	}
	m.waiting.rounds++
	m.waiting.removeFunc(m.now(), func(r *request) bool {
		if r.session.blocked == m.waiting.rounds || !m.admits(r) {
			r.session.blocked = m.waiting.rounds
			return false
		}
		return true
	}, func(r *request) {
		if !m.refusePoison(r) {
			m.dispatch(r)
		}
	})
	m.changed = m.changed || len(m.waiting.list) == 0
}

// ofOneDocument are the requests whose answer contains positions in their own document only.
var ofOneDocument = map[string]bool{
	"textDocument/hover": true, "textDocument/completion": true, "textDocument/signatureHelp": true, "textDocument/documentHighlight": true,
	"textDocument/documentSymbol": true, "textDocument/codeLens": true, "textDocument/documentLink": true, "textDocument/documentColor": true,
	"textDocument/colorPresentation": true, "textDocument/formatting": true, "textDocument/rangeFormatting": true, "textDocument/rangesFormatting": true,
	"textDocument/onTypeFormatting": true, "textDocument/prepareRename": true, "textDocument/foldingRange": true, "textDocument/selectionRange": true,
	"textDocument/linkedEditingRange": true, "textDocument/semanticTokens/full": true, "textDocument/semanticTokens/range": true,
	"textDocument/semanticTokens/full/delta": true, "textDocument/inlayHint": true, "textDocument/inlineValue": true, "textDocument/inlineCompletion": true,
	"textDocument/diagnostic": true,
}

// view switches the server to the texts that the client of a request must see.
func (m *Mux) view(r *request) {
	key, uri := r.session.key, m.open[string(r.uri)]
	if ofOneDocument[r.method] {
		m.emit(m.documents.ViewOne(key, uri))
		r.viewing = !r.notification && uri != "" && m.documents.Contested(uri)
	} else {
		m.emit(m.documents.View(key, uri))
		r.viewing = !r.notification
	}
}

// dispatch switches the server to the text of the client that made the request, and then sends the request with an ID that is unique in this incarnation.
func (m *Mux) dispatch(r *request) {
	b := m.server
	originals, ok := m.unstamp(r)
	if !ok {
		return
	}
	m.view(r)
	if r.inquiry != nil {
		m.renew(r.inquiry.uri)
	}
	if r.notification {
		b.put(r.body)
		m.forget(r)
		return
	}
	if !r.sent.IsZero() {
		m.counters.Replayed++
	}
	b.flight.begin(r, m.now())
	m.dirty = true
	switch r.method {
	case methodCompletion:
		m.noteCompletion(r)
	case methodExecute:
		m.causes.command(r.session.key, m.now())
	}
	replacements := append(b.flight.substitute(r), originals...)
	b.add(func(buffer []byte) []byte { return wire.AppendReplaced(buffer, r.body, replacements) })
	m.nudge()
}

// cancelAtServer requests the server to cancel a request. The protocol requires that the server answers the request nevertheless.
func (m *Mux) cancelAtServer(r *request) {
	m.server.put(wire.NotificationBody("$/cancelRequest", wire.Encode(map[string]int64{"id": r.number})))
}

// fail answers a request with an error of the multiplexer. The caller has already removed the request from its list.
func (m *Mux) fail(r *request, code int, message string, data any) {
	if r.session != nil && !r.notification {
		m.counters.Failed++
		m.dirty = true
		m.send(r.session, wire.ErrorBody(r.id, code, message, data))
	}
	m.forget(r)
}

// failWaiting fails a request that cannot wait, or cannot wait any longer. The error states why the request had to wait.
func (m *Mux) failWaiting(r *request, held bool) {
	data := &detail{Reason: "Busy", Incarnation: m.incarnation, Retriable: true, RetryAfterMs: retryAfter.Milliseconds()}
	message := "the language server is overloaded; retry later"
	switch {
	case held && m.server.accepts():
		data.Reason, message = "Indexing", "the language server is still indexing its workspace; retry later"
	case held && m.incarnation == 0:
		data.Reason, message = "Starting", "the language server has not started yet; retry later"
	case held:
		data.Reason, message = "Restarting", fmt.Sprintf("the language server is restarting (%s); retry later", m.reason)
	}
	m.fail(r, wire.CodeRequestFailed, message, data)
}

// expire fails requests that have waited for too long.
func (m *Mux) expire(now time.Time) {
	held := !m.serves()
	patience := m.config.Hold.Timeout
	if !held {
		patience = m.config.Limits.RequestTimeout
	}
	m.waiting.removeFunc(now, func(r *request) bool { return now.Sub(r.since) >= patience }, func(r *request) { m.failWaiting(r, held) })
	for _, s := range m.clients.sessions {
		since := s.initSince
		if m.server != nil && m.server.heard().After(since) {
			since = m.server.heard()
		}
		if s.stage == initializing && now.Sub(since) >= initializePatience {
			s.stage = fresh
			m.counters.Failed++
			m.send(s, wire.ErrorBody(s.initID, wire.CodeRequestFailed, fmt.Sprintf("the language server did not answer initialize (%s)", m.reason), &detail{
				Reason: "Starting", Incarnation: m.incarnation, Retriable: true, RetryAfterMs: retryAfter.Milliseconds(),
			}))
		}
	}
}

// initializePatience is how long the initialize request of a client waits while no server is running or the server is silent.
const initializePatience = 60 * time.Second

// waiting holds the requests and notifications that wait to be sent to a server, in order of arrival.
type waiting struct {
	list     []*request
	rounds   int64 // number of calls of Mux.sendWaiting
	counters *lsp.Counters
}

// add adds a request; held: it waits because no server accepts requests.
func (w *waiting) add(r *request, now time.Time, held bool) {
	r.place, r.since, r.held = waits, now, held
	w.list = append(w.list, r)
	r.session.waiting++
	r.session.waitingBytes += len(r.body)
	if held && !r.notification {
		w.counters.HeldTotal++
	}
	if n := len(w.list); n > 1 && w.list[n-2].sequence > r.sequence { // it was in flight at a server that is gone
		slices.SortStableFunc(w.list, func(one, other *request) int { return cmp.Compare(one.sequence, other.sequence) })
	}
}

// remove removes a request.
func (w *waiting) remove(r *request, now time.Time) {
	w.removeFunc(now, func(other *request) bool { return other == r }, func(*request) {})
}

// removeFunc calls remove for each request, in order, and removes those for which it returns true. It calls removed for each of them before it calls remove for
// the next one. Neither function may add or remove requests.
func (w *waiting) removeFunc(now time.Time, remove func(*request) bool, removed func(*request)) {
	kept := w.list[:0]
	for _, r := range w.list {
		if !remove(r) {
			kept = append(kept, r)
			continue
		}
		r.place = nowhere
		r.session.waiting--
		r.session.waitingBytes -= len(r.body)
		if r.held && !r.notification {
			w.counters.HeldNanos += int64(now.Sub(r.since))
		}
		removed(r)
	}
	clear(w.list[len(kept):])
	w.list = kept
}

// requests returns how many requests wait. Notifications do not count.
func (w *waiting) requests() (count int) {
	for _, r := range w.list {
		if !r.notification {
			count++
		}
	}
	return count
}
