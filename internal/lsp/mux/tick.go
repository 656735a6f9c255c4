// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	// methodPing is a method that no server knows. All servers answer it, because the protocol requires an error response to an unknown request.
	methodPing = "$/berth/ping"
	// cancelPatience is how long a server may take to answer a request that was canceled because it timed out.
	cancelPatience = 5 * time.Second
	// diagnosticsPatience is how long the server keeps a text only for its diagnostics.
	diagnosticsPatience = 10 * time.Second
)

// Tick performs the time-dependent work, such as timeouts. The goroutine that New starts calls it periodically.
func (m *Mux) Tick(now time.Time) {
	m.measureCPU(now)
	m.lock()
	defer m.unlock()
	m.expire(now)
	m.giveUpLate(now)
	m.changed = m.quarantine.lift(now) || m.changed
	if b := m.server; b != nil {
		if b.accepts() {
			m.admit(now)
		}
		m.examineAge(b, now) // even for a server that is being stopped, so that no client waits forever
		if b.health.fault == "" && !b.stopping {
			m.examine(b, now)
		}
		m.pullLate(b, now)
	}
	m.stopAwaiting(now)
	m.pump()
	m.settleAll()
	m.changed = m.changed || m.dirty
	m.dirty = false
}

// measureCPU measures the CPU time of a silent server. This reads many files, so it is done without the lock.
func (m *Mux) measureCPU(now time.Time) {
	m.lock()
	b := m.server
	wanted := m.options.CPU != nil && b != nil && b.health.wantsCPU(now, b.heard(), &m.config)
	m.unlock()
	if !wanted {
		return
	}
	cpu := m.options.CPU()
	m.lock()
	defer m.unlock()
	b.health.noteCPU(now, b.heard(), cpu)
}

// stopAwaiting lets the server have the texts of the authors again if it sends no diagnostics for another text.
func (m *Mux) stopAwaiting(now time.Time) {
	switch {
	case !m.documents.Awaits():
		m.awaitingSince = time.Time{}
	case m.awaitingSince.IsZero():
		m.awaitingSince = now
	case now.Sub(m.awaitingSince) >= diagnosticsPatience:
		m.awaitingSince = time.Time{}
		m.documents.StopAwaiting()
	}
}

// examine checks the health of a server, and does what the examination found to be done.
func (m *Mux) examine(b *backend, now time.Time) {
	v := vitals{now: now, heard: b.heard(), owedSince: b.flight.owedSince(now), tasks: len(b.work)}
	canary := b.flight.ofMux(ownCanary)
	if canary != nil {
		v.canarySent = canary.sent
	}
	found := b.health.examine(v, &m.config)
	if found.indexed {
		m.indexed(b)
	}
	if found.ping {
		m.request(b, ownPing, methodPing, nil)
	}
	if found.fault != "" {
		m.markFaulty(b, found.fault, found.message)
	}
	if found.canaryLate {
		b.flight.end(canary)
		m.forget(canary)
		m.canaryAnswered(b, "no answer")
	}
	if found.canary {
		m.request(b, ownCanary, m.config.Health.Canary.Method, m.config.Health.Canary.Params)
	}
	if found.outdated {
		m.clearStale()
	}
}

// indexed is called when the server has read its workspace.
func (m *Mux) indexed(b *backend) {
	m.changed = true
	m.unregisterStale()
	if m.counters.Incarnations > 1 {
		for _, kind := range []string{"semanticTokens", "inlayHint", "codeLens"} {
			m.refresh(b, "workspace/"+kind+"/refresh", kind)
		}
	}
}

// examineAge cancels requests that the server has not answered within RequestTimeout. It fails a canceled request if the server does not answer within
// cancelPatience.
func (m *Mux) examineAge(b *backend, now time.Time) {
	for _, r := range b.flight.pending {
		switch {
		case r.own != ofClient && r.own != ofNobody:
		case r.late.IsZero() && now.Sub(r.sent) >= m.config.Limits.RequestTimeout:
			r.late = now
			m.counters.Cancelled++
			m.cancelAtServer(r)
		case !r.late.IsZero() && now.Sub(r.late) >= cancelPatience:
			b.flight.end(r)
			m.timeOut(r)
		}
	}
}

// timeOut fails a request that has timed out. The caller has already removed the request from its list.
func (m *Mux) timeOut(r *request) {
	m.server.health.timedOut[poisonKey(r)] = true
	if r.cancelled {
		m.fail(r, codeRequestCancelled, "canceled", nil)
		return
	}
	m.fail(r, codeRequestFailed, fmt.Sprintf("the language server did not answer within %s", m.config.Limits.RequestTimeout), &detail{
		Reason: "Timeout", Incarnation: m.incarnation, Retriable: outcome(r) == "", Outcome: outcome(r),
	})
}

// canaryResponse handles the server's response to the canary request.
func (m *Mux) canaryResponse(b *backend, body []byte, e *wire.Envelope) {
	result := body[e.ResultSpan.Start:e.ResultSpan.End]
	problem := ""
	if e.IsError || isEmpty(result) {
		problem = cmp.Or(abridged(result), "an empty response")
	}
	m.canaryAnswered(b, problem)
}

func (m *Mux) canaryAnswered(b *backend, problem string) {
	m.changed = true
	if problem != "" {
		m.counters.CanaryFailed++
	}
	if b.health.canaryAnswered(m.config.Health.Canary.Method, problem) {
		m.markFaulty(b, lsp.ReasonCanaryFailed, b.health.canaryMessage)
	}
}

// isEmpty reports whether a result contains nothing: null, false, an empty string, list or object, or a completion list without items.
func isEmpty(result []byte) bool {
	switch string(bytes.Join(bytes.Fields(result), nil)) {
	case "", "null", "[]", "{}", `""`, "false":
		return true
	}
	var list struct {
		Items *[]json.RawMessage `json:"items"`
	}
	return json.Unmarshal(result, &list) == nil && list.Items != nil && len(*list.Items) == 0
}
