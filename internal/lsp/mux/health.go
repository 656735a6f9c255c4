// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	// methodPing is a method that no server knows. All servers answer it, because the protocol requires an error response to an unknown request.
	methodPing = "$/berth/ping"

	settleTime       = time.Second      // how long a server must report no progress until the workspace counts as read
	progressGrace    = 10 * time.Second // replaces settleTime for a server that has never reported progress and has not answered the ping
	cancelPatience   = 5 * time.Second  // how long a server may take to answer a request that was canceled because it timed out
	outputPatience   = 3 * time.Second  // how long a server may take to exit after its output has ended
	staleDiagnostics = 60 * time.Second // how long old diagnostics are kept after a restart if the server does not publish them again

	// diagnosticsPatience is how long the server keeps a text only for its diagnostics.
	diagnosticsPatience = 10 * time.Second

	cpuPeriod    = 2 * time.Second // the interval between two measurements of a silent server's CPU time
	lateInARow   = 3               // how many different requests must time out without a success before the server counts as hung
	canaryInARow = 3               // how many consecutive canary requests must fail before the server is restarted
	busyFactor   = 5               // how many times HangTimeout a server that uses CPU may be silent
	startFactor  = 6               // how many times StartupTimeout a server that sends messages may take to start
	// unreadBytes is the default of Options.UnreadBytes.
	unreadBytes = 64 << 20
	doesNotRead = "the language server does not read its standard input"
)

// silence holds the CPU time of a server when it fell silent, and at the last measurement.
type silence struct {
	since, measured, last time.Time
	cpu, newest           time.Duration
}

// Tick performs the time-dependent work, such as timeouts. The goroutine that New starts calls it periodically.
func (m *Mux) Tick(now time.Time) {
	if b := m.wantsCPU(now); b != nil {
		m.noteCPU(b, now, m.options.CPU()) // CPU reads many files, so it is called without the lock
	}
	m.lock()
	defer m.unlock()
	m.expire(now)
	m.giveUpLate(now)
	m.lift(now)
	if b := m.server; b != nil {
		if b.ready && b.fault == "" && !m.holding {
			m.admit(now)
		}
		m.examineAge(b, now) // even for a server that is being stopped, so that no client waits forever
		if b.fault == "" && !m.holding {
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

// wantsCPU returns the server if its CPU time has to be measured, and nil otherwise. A measurement is needed when the server has just fallen silent. It is
// repeated every cpuPeriod once the server has been silent for HangTimeout.
func (m *Mux) wantsCPU(now time.Time) *backend {
	m.lock()
	defer m.unlock()
	b := m.server
	if m.options.CPU == nil || b == nil || !b.indexed || b.fault != "" || now.Sub(b.heard()) < pingAfter(m.config.Health) {
		return nil
	}
	begins := !b.silence.since.Equal(b.heard())
	if begins || now.Sub(b.heard()) >= m.config.Health.HangTimeout && now.Sub(b.silence.last) >= cpuPeriod {
		return b
	}
	return nil
}

func (m *Mux) noteCPU(b *backend, now time.Time, cpu time.Duration) {
	m.lock()
	defer m.unlock()
	if heard := b.heard(); !b.silence.since.Equal(heard) {
		b.silence = silence{since: heard, measured: now, cpu: cpu}
	}
	b.silence.last, b.silence.newest = now, cpu
}

// computes reports whether a silent server is working: since it fell silent, it has used at least 1% of one CPU.
func (s silence) computes() bool {
	computed := s.newest - s.cpu
	return computed > 0 && computed >= s.last.Sub(s.measured)/100
}

// examine checks the health of a server.
func (m *Mux) examine(b *backend, now time.Time) {
	switch {
	case !b.endedAt.IsZero() && now.Sub(b.endedAt) >= outputPatience:
		m.markFaulty(b, lsp.ReasonProtocolError, "the language server closed its standard output but is still running")
	case b.overflow:
		m.markFaulty(b, lsp.ReasonHung, doesNotRead)
	case !b.ready:
		m.examineStart(b, now)
	default:
		m.examineWork(b, now)
		if b.indexed && b.fault == "" {
			m.examineSilence(b, now)
			m.examineUse(b, now)
		}
		if now.Sub(b.readyAt) >= staleDiagnostics {
			m.clearStale()
		}
	}
}

func (m *Mux) examineStart(b *backend, now time.Time) {
	patience, last := m.config.StartupTimeout, b.attachedAt
	if heard := b.heard(); heard.After(last) {
		last = heard
	}
	if now.Sub(last) >= patience || now.Sub(b.attachedAt) >= startFactor*patience {
		m.markFaulty(b, lsp.ReasonHung, fmt.Sprintf("the language server has not answered initialize for %s", now.Sub(b.attachedAt).Round(time.Second)))
	}
}

// examineWork determines whether the server has read its workspace.
func (m *Mux) examineWork(b *backend, now time.Time) {
	if b.indexed {
		return
	}
	idle := len(b.work) == 0 && !b.busyStatus
	quiet := now.Sub(b.workAt)
	switch {
	case idle && quiet >= settleTime && (b.worked || b.responsive):
		b.indexedBy = lsp.IndexedBySettled
	case idle && !b.worked && quiet >= progressGrace, quiet >= m.config.StartupTimeout:
		b.indexedBy = lsp.IndexedByProgressTimeout
	default:
		return
	}
	b.indexed, b.canaryAt, m.changed = true, now, true
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
	if len(m.timedOut) >= lateInARow {
		m.markFaulty(b, lsp.ReasonHung, fmt.Sprintf("the language server did not answer %d consecutive requests within %s",
			len(m.timedOut), m.config.Limits.RequestTimeout))
	}
}

// timeOut fails a request that has timed out. The caller has already removed the request from its list.
func (m *Mux) timeOut(r *request) {
	m.timedOut[poisonKey(r)] = true
	if r.cancelled {
		m.fail(r, codeRequestCancelled, "canceled", nil)
		return
	}
	m.fail(r, codeRequestFailed, fmt.Sprintf("the language server did not answer within %s", m.config.Limits.RequestTimeout), &detail{
		Reason: "Timeout", Incarnation: m.incarnation, Retriable: outcome(r) == "", Outcome: outcome(r),
	})
}

// pingAfter returns how long a server may be silent before it is pinged: at most half of HangTimeout, so that it has the other half to answer.
func pingAfter(health lsp.Health) time.Duration {
	return min(health.PingAfter, health.HangTimeout/2)
}

// examineSilence pings a silent server, and marks it as hung if it has been silent for HangTimeout and has owed an answer since it was pinged. The second condition
// matters after the machine was suspended: the server has then been silent for long, but was not asked. Any output ends the silence.
func (m *Mux) examineSilence(b *backend, now time.Time) {
	heard, health := b.heard(), m.config.Health
	silent := now.Sub(heard)
	if silent < pingAfter(health) {
		return
	}
	if !b.pinged {
		b.pinged = true
		m.request(b, ownPing, methodPing, nil)
	}
	patience := health.HangTimeout
	if b.silence.since.Equal(heard) && b.silence.computes() {
		patience *= busyFactor
	}
	if silent >= patience && now.Sub(b.flight.owedSince(now)) >= patience-pingAfter(health) {
		m.markFaulty(b, lsp.ReasonHung, fmt.Sprintf("the language server has pending requests but has sent nothing for %s", silent.Round(time.Second)))
	}
}

// examineUse sends the canary request, whose answer shows whether the server returns usable results.
func (m *Mux) examineUse(b *backend, now time.Time) {
	canary := m.config.Health.Canary
	if canary.Method == "" || now.Before(b.canaryAt) {
		return
	}
	if b.canaryOwed {
		if r := b.flight.ofMux(ownCanary); r != nil && now.Sub(r.sent) >= m.config.Limits.RequestTimeout {
			b.flight.end(r)
			m.forget(r)
			m.canaryFailed(b, "no answer")
		}
		return
	}
	b.canaryOwed, b.canaryAt = true, now.Add(canary.Period)
	m.request(b, ownCanary, canary.Method, canary.Params)
}

func (m *Mux) canaryAnswered(b *backend, body []byte, e *wire.Envelope) {
	result := body[e.ResultSpan.Start:e.ResultSpan.End]
	if e.IsError || isEmpty(result) {
		m.canaryFailed(b, abridged(result))
		return
	}
	b.canaryOwed, b.canaryBad, m.changed = false, 0, true
}

func (m *Mux) canaryFailed(b *backend, got string) {
	m.counters.CanaryFailed++
	b.canaryOwed = false
	b.canaryBad++
	b.canaryMessage = fmt.Sprintf("the language server did not return a usable response to %s: %s", m.config.Health.Canary.Method, got)
	m.changed = true
	if b.canaryBad >= canaryInARow {
		m.markFaulty(b, lsp.ReasonCanaryFailed, b.canaryMessage)
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

// lift ends the quarantine of requests whose time has elapsed.
func (m *Mux) lift(now time.Time) {
	for key, until := range m.quarantine {
		if !now.Before(until) {
			delete(m.quarantine, key)
			m.changed = true
		}
	}
}
