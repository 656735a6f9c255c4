// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"io"
	"maps"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	// streamPatience is how long reading the last output of a server that has exited may take.
	streamPatience = 2 * time.Second
	// soon is how long a crash is attributed to a text after the server has received it.
	soon = 30 * time.Second
	// poisonCrashes is the number of consecutive crashes after which documents are withheld. requestCrashes is the number of crashes after which a request of
	// class read is quarantined. requestKills is how often such a request is sent again after another program has killed the server.
	poisonCrashes, requestCrashes, requestKills = 3, 2, 5
)

// Detach must be called when the server has exited or its connection was lost. The requests that the server has not answered are sent to the next server, or
// answered with an error.
func (m *Mux) Detach(incarnation int64, ending lsp.Ending) {
	m.lock()
	b := m.server
	m.unlock()
	if b == nil || b.incarnation != incarnation {
		return
	}
	lastWords := time.NewTimer(streamPatience)
	defer lastWords.Stop()
	select {
	case <-b.read:
	case <-b.gone:
	case <-lastWords.C:
	}
	m.lock()
	defer m.unlock()
	if m.server == b {
		m.detach(b, ending)
	}
}

func (m *Mux) detach(b *backend, ending lsp.Ending) {
	why := map[lsp.Ending]string{lsp.Asked: "a stop was requested", lsp.Killed: "the server was killed", lsp.Crashed: "the server crashed"}[ending]
	if b.health.fault != "" {
		ending, why = lsp.Crashed, b.health.faultMessage
	}
	if !b.stopping {
		m.reason = why
	}
	m.documents.Detach()
	m.endProgress(b)
	m.suspect(b, ending)
	m.settleOwed(b, ending)
	for _, s := range m.clients.sessions {
		maps.DeleteFunc(s.asked, func(_ int64, q *serverRequest) bool { return q.id != nil })
	}
	m.published.serverGone()
	m.features.serverGone()
	m.server = nil
	m.repeatInquiries()
	b.release()
	m.urgent = true
}

// settleOwed settles the requests that a lost server has not answered, in order of arrival.
func (m *Mux) settleOwed(b *backend, ending lsp.Ending) {
	owed := b.flight.inOrder()
	if ending == lsp.Crashed {
		m.quarantine.crashedWith(owed, m.now())
	}
	for _, r := range owed {
		b.flight.end(r)
		if r.own != ofClient {
			m.forget(r)
			continue
		}
		m.interrupted(r, ending)
	}
}

// release ends the goroutines of a lost server.
func (b *backend) release() {
	close(b.gone)
	b.out.abort()
	_ = b.stdin.Close()
	if c, ok := b.stdout.(io.Closer); ok {
		_ = c.Close()
	}
}

// interrupted handles a request that has no answer because its server exited or the multiplexer withdrew the request. It queues the request for the next
// server if the request may be sent again, and fails it otherwise. The caller has already removed the request from its list.
func (m *Mux) interrupted(r *request, ending lsp.Ending) {
	r.withdrawn = false
	switch {
	case m.quitting:
		m.fail(r, wire.CodeRequestFailed, m.reason, &detail{Reason: "Quit", Incarnation: m.incarnation, Outcome: outcome(r)})
	case r.cancelled:
		m.fail(r, wire.CodeRequestCancelled, "canceled", nil)
	case !r.late.IsZero():
		m.timeOut(r)
	case r.class == bound, r.class == read && r.streamed:
		m.fail(r, wire.CodeContentModified, "the language server restarted, and the request refers to data of the previous incarnation; send the request again", nil)
	case r.class != read:
		m.fail(r, wire.CodeRequestFailed, "the language server exited during this request; it is unknown whether the request took effect", &detail{
			Reason: "Restarting", Incarnation: m.incarnation, Outcome: outcome(r),
		})
	default:
		m.interruptedRead(r, ending)
	}
}

func (m *Mux) interruptedRead(r *request, ending lsp.Ending) {
	switch ending {
	case lsp.Crashed:
		r.crashes++
	case lsp.Killed:
		r.kills++
	}
	if r.kills > requestKills {
		m.fail(r, wire.CodeContentModified, "the language server was killed repeatedly during this request; send the request again", nil)
		return
	}
	if r.crashes >= requestCrashes {
		m.quarantine.add(r, m.now())
		m.refusePoison(r)
		return
	}
	if m.config.Hold.Timeout < 0 {
		m.failWaiting(r, true)
		return
	}
	if r.inquiry != nil {
		m.rewind(r)
	}
	m.wait(r, true)
}

// outcome returns "unknown" for a request that may have an effect and was sent to a server.
func outcome(r *request) string {
	if !r.sent.IsZero() && (r.class == effect || r.class == unknown) {
		return "unknown"
	}
	return ""
}

// suspect determines which documents are withheld from the next server. A requested stop ends all withholding. A kill by another program says nothing about the
// documents.
func (m *Mux) suspect(b *backend, ending lsp.Ending) {
	switch {
	case ending == lsp.Asked:
		m.cleared(m.quarantine.reset())
	case ending == lsp.Crashed && b.ready():
		if cause := m.quarantine.crashed(m.now()); cause != "" {
			m.accuse(cause)
		}
	}
}

// accuse tells the clients that have a document open that it is withheld.
func (m *Mux) accuse(key string) {
	text := "The language server crashes with this text, so Berth withholds the document from it until the text changes, or for up to 10 minutes."
	m.log(key + ": " + text)
	message := wire.NotificationBody("window/showMessage", wire.Encode(map[string]any{"type": 2, "message": key + ": " + text}))
	position := map[string]int{"line": 0, "character": 0}
	m.toHolders(key, func(s *session, uri string) {
		m.sendAs(s, message, logging, "")
		m.sendAs(s, wire.NotificationBody("textDocument/publishDiagnostics", wire.Encode(map[string]any{"uri": uri, "diagnostics": []any{map[string]any{
			"range": map[string]any{"start": position, "end": position}, "severity": 2, "source": "berth", "message": text,
		}}})), diagnostics, uri)
	})
}

// cleared removes the diagnostics of accuse.
func (m *Mux) cleared(keys []string) {
	for _, key := range keys {
		m.changed = true
		m.toHolders(key, func(s *session, uri string) {
			m.sendAs(s, wire.NotificationBody("textDocument/publishDiagnostics", wire.Encode(map[string]any{"uri": uri, "diagnostics": []any{}})), diagnostics, uri)
		})
	}
}

// toHolders calls tell for each client that has a document open, with the URI of the document.
func (m *Mux) toHolders(key string, tell func(s *session, uri string)) {
	for _, uri := range m.documents.URIs() {
		if document.Key(uri) != key {
			continue
		}
		for s := range m.clients.ready() {
			if m.documents.Holds(s.key, uri) {
				tell(s, uri)
			}
		}
	}
}

// admit sends a running server the withheld documents that it may receive.
func (m *Mux) admit(now time.Time) {
	for _, key := range slices.Concat(m.quarantine.due(now), m.quarantine.next(now)) {
		m.cleared([]string{key})
		m.emit(m.documents.Admit(key))
	}
}

// refusePoison reports whether a request or its document is quarantined, and fails such a request.
func (m *Mux) refusePoison(r *request) bool {
	why, rest := m.quarantine.refuses(r, m.now())
	if why == "" {
		return false
	}
	m.fail(r, wire.CodeRequestFailed, why, &detail{Reason: "Quarantined", Incarnation: m.incarnation, RetryAfterMs: max(rest.Milliseconds(), 1000)})
	return true
}
