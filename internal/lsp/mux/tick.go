// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	// methodPing is a method that no server knows. All servers answer it, because the protocol requires an error response to an unknown request.
	methodPing = "$/berth/ping"
	// cancelPatience is how long a server may take to answer a request that was canceled because it timed out.
	cancelPatience = 5 * time.Second
	// diagnosticsPatience is how long the server keeps a text that it was given only to produce diagnostics.
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
			m.emit(m.documents.Recheck())
		}
		m.examineAge(b, now) // even for a server that is being stopped, so that no client waits forever
		if b.health.fault == "" && !b.stopping {
			m.examine(b, now)
		}
		m.pullLate(b, now)
	}
	m.stopAwaiting(now)
	if len(m.files.pending) > 0 {
		m.tellPending()
	}
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

// stopAwaiting ends the wait for diagnostics of a text of another client after diagnosticsPatience. The server then gets the texts of the authors again.
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

// examine checks the health of a server, and carries out what the result requires.
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

// indexed is called when the server has finished reading its workspace.
func (m *Mux) indexed(b *backend) {
	m.changed = true
	m.unregisterStale()
	if m.counters.Incarnations > 1 {
		for _, kind := range []string{"semanticTokens", "inlayHint", "codeLens"} {
			m.refresh("workspace/"+kind+"/refresh", kind)
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

// timeOut fails a request that has timed out. The caller has already removed the request from the list that contained it.
func (m *Mux) timeOut(r *request) {
	m.server.health.timedOut[poisonKey(r)] = true
	if r.cancelled {
		m.fail(r, wire.CodeRequestCancelled, "canceled", nil)
		return
	}
	m.fail(r, wire.CodeRequestFailed, fmt.Sprintf("the language server did not answer within %s", m.config.Limits.RequestTimeout), &detail{
		Reason: "Timeout", Incarnation: m.incarnation, Retriable: outcome(r) == "", Outcome: outcome(r),
	})
}

// canaryResponse handles the server's response to the canary request.
func (m *Mux) canaryResponse(b *backend, e *wire.Envelope) {
	problem := ""
	if e.IsError || isEmpty(e.Result) {
		problem = cmp.Or(abridged(e.Result), "an empty response")
	}
	m.canaryAnswered(b, problem)
}

// canaryAnswered handles the answer to the test request. problem is empty if the answer is usable.
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

// Fill sets the fields of a report that the mux knows. InFlight and OldestRequest must be zero before the call.
func (m *Mux) Fill(r *lsp.Report) {
	m.lock()
	defer m.unlock()
	documents, _, switches := m.documents.Stats()
	r.Clients, r.OpenDocuments, r.IdleSince = len(m.clients.sessions), documents, m.clients.idleSince
	if !m.serves() {
		r.Held = m.waiting.requests()
	}
	r.Counters = m.counters
	r.Counters.ViewSwitches = switches
	if m.features.answer != nil {
		r.ServerName, r.ServerVersion = abridged([]byte(m.features.answer.result.ServerInfo.Name)), m.features.answer.result.version()
	}
	r.Folders = m.config.Folders
	b := m.server
	if b != nil {
		r.StartFolders, r.FoldersChange = b.startFolders, b.foldersChange
		r.Initialized, r.Indexed, r.IndexedBy = b.ready(), b.health.indexed, b.health.indexedBy
		for _, pending := range b.flight.pending {
			if pending.own != ofClient {
				continue
			}
			r.InFlight++
			if r.OldestRequest.IsZero() || pending.arrived.Before(r.OldestRequest) {
				r.OldestRequest = pending.arrived
			}
		}
	}
	r.Unhealthy, r.Message, r.Restart = m.condition(b)
}

// condition returns the most severe problem of a server, or empty strings. restart reports whether the server must be restarted.
func (m *Mux) condition(b *backend) (reason, message string, restart bool) {
	switch {
	case b != nil && b.health.fault != "":
		return b.health.fault, b.health.faultMessage, true
	case b != nil && b.health.canaryBad > 0:
		return lsp.ReasonCanaryFailed, b.health.canaryMessage, false
	case m.quarantine.problem() != "":
		return lsp.ReasonQuarantined, m.quarantine.problem(), false
	case b != nil && len(m.features.lost) > 0:
		return lsp.ReasonCapabilityLost, "clients use features that the language server no longer has: " + strings.Join(m.features.lost, ", "), false
	case b != nil && m.files.problem(m.root()) != "":
		return lsp.ReasonFilesUnseen, "the language server may not learn what other programs change on disk: " + m.files.problem(m.root()), false
	}
	return "", "", false
}

// Intervals between calls of Tick: busyRest while requests or indexing are in progress, otherwise idleRest. Tick is not called while there are no clients, no
// server and no quarantine. While an inquiry waits until the server is quiet, the interval is inquiryRest.
const (
	inquiryRest = 20 * time.Millisecond
	busyRest    = 200 * time.Millisecond
	idleRest    = time.Second
)

// untilNextTick returns the time until the next Tick. 0 means that Tick is not called before the next nudge.
func (m *Mux) untilNextTick() time.Duration {
	m.lock()
	defer m.unlock()
	b := m.server
	busy := len(m.waiting.list) > 0 || m.documents.Unattributed() || m.documents.Defers() || m.dirty || b != nil && (!b.health.indexed || len(b.flight.pending) > 0)
	switch {
	case len(m.inquiries) > 0:
		m.resting = inquiryRest
	case busy:
		m.resting = busyRest
	case b != nil || len(m.clients.sessions) > 0 || !m.quarantine.isEmpty():
		m.resting = idleRest
	default:
		m.resting = 0
	}
	return m.resting
}

// nudge makes the next Tick run soon, unless the interval is busyRest or inquiryRest already. It is called when something begins that has a timeout.
func (m *Mux) nudge() {
	if m.resting == busyRest || m.resting == inquiryRest {
		return
	}
	m.resting = busyRest
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// wakeUp calls Tick until Quit.
func (m *Mux) wakeUp() {
	defer m.awake.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-m.over:
			return
		case <-m.kick:
		case <-timer.C:
		}
		m.Tick(m.now())
		timer.Stop()
		if rest := m.untilNextTick(); rest > 0 {
			timer.Reset(rest)
		}
	}
}
