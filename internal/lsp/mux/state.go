// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// tellState answers a request lsp.MethodState. The answer never waits for the server.
func (m *Mux) tellState(r *request) {
	state := lsp.State{Incarnation: m.incarnation, Serving: m.serves()}
	if !state.Serving {
		state.Reason = m.reason
	}
	if b := m.server; b.accepts() {
		state.Indexed = b.health.indexed
		// A task that a server forgot to end counts as long as it counts for Indexed.
		state.Working = b.health.busyStatus || len(b.work) > 0 && m.now().Sub(b.health.workAt) < m.config.StartupTimeout
	}
	m.send(r.session, wire.ResultBody(r.id, wire.Encode(state)))
	m.forget(r)
}
