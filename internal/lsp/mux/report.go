// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
)

// Fill sets all fields of a report that the mux knows.
func (m *Mux) Fill(r *lsp.Report) {
	m.lock()
	defer m.unlock()
	documents, _, switches := m.documents.Stats()
	r.Clients, r.OpenDocuments, r.IdleSince = len(m.clients.sessions), documents, m.clients.idleSince
	r.Held, r.InFlight, r.OldestRequest = 0, 0, time.Time{}
	if !m.serves() {
		r.Held = m.waiting.requests()
	}
	r.Counters = m.counters
	r.Counters.ViewSwitches = switches
	if m.features.answer != nil {
		r.ServerName, r.ServerVersion = abridged([]byte(m.features.answer.result.ServerInfo.Name)), m.features.answer.result.version()
	}
	r.Initialized, r.Indexed, r.IndexedBy = false, false, ""
	r.Folders, r.StartFolders, r.FoldersChange = m.config.Folders, nil, false
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

// condition returns the most severe problem.
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
	}
	return "", "", false
}

// Intervals between calls of Tick: busyRest while requests or indexing are in progress, otherwise idleRest. Tick is not called while there are no clients, no
// server and no quarantine. An inquiry waits until the server is quiet, so that Tick is called more often.
const (
	inquiryRest = 20 * time.Millisecond
	busyRest    = 200 * time.Millisecond
	idleRest    = time.Second
)

// rest returns the time until the next Tick. 0 means that Tick is not called before the next nudge.
func (m *Mux) rest() time.Duration {
	m.lock()
	defer m.unlock()
	b := m.server
	busy := len(m.waiting.list) > 0 || m.dirty || b != nil && (!b.health.indexed || len(b.flight.pending) > 0)
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

// nudge makes the next Tick run soon, unless the interval is busyRest already. It is called when something begins that has a timeout.
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
		if rest := m.rest(); rest > 0 {
			timer.Reset(rest)
		}
	}
}
