// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/transport"
)

// Observe implements runtime.Runtime. The incarnations are those of the server.
func (r *Runtime) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	l := r.known(uid)
	v, held, state, err := r.look(ctx, uid, l)
	if err != nil {
		return nil, err
	}
	if held != nil && held.Alive() {
		l = r.link(uid)
		l.watch() // even if the start of the multiplexer seemed to fail
		if held.Phase == facts.Running && l.meets() {
			l.await(ctx)
			if v, held, state, err = r.look(ctx, uid, l); err != nil {
				return nil, err
			}
		}
	}
	found := judge(v, held, state)
	if found == nil {
		return nil, nil
	}
	lostWith(held, found)
	r.endable(held, found)
	found.UID = string(uid)
	if held != nil {
		found.Name, found.Node, found.Containment = held.Name, held.Node, held.Containment
		found.Namespace, found.PodName, found.ContainerID, found.Address = held.Namespace, held.PodName, held.ContainerID, held.Address
	}
	l.tells(*found)
	return []facts.Incarnation{*found}, nil
}

// endable marks a server in a Pod as killable if the manager cannot reach its multiplexer. The exit of such a server can be observed, because the node reports
// when the Pod has ended.
func (r *Runtime) endable(held, found *facts.Incarnation) {
	if found.Phase == facts.Unknown && held != nil && held.Phase == facts.Running && !r.site.revives() {
		found.Killable = true
		found.Message = fmt.Sprintf("the manager cannot reach the multiplexer in Pod %s at port %d; check that no NetworkPolicy blocks the connection", held.PodName, transport.Port)
	}
}

// meets returns true once, for a multiplexer that an earlier manager has started.
func (l *link) meets() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.met && l.born.IsZero()
	l.met = true
	return first
}

// await waits for the first report of a multiplexer that was running before this manager was started. Without that report, the state of the server is unknown.
func (l *link) await(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, adoptPatience)
	defer cancel()
	select {
	case <-l.heard:
	case <-ctx.Done():
	case <-l.runtime.Lifetime().Done():
	}
}

// tells records that an incarnation was reported as exited.
func (l *link) tells(found facts.Incarnation) {
	if l == nil || found.Alive() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = max(l.told, found.Number)
}

// look collects a consistent snapshot of a UID. It retries if another multiplexer was started while it was reading.
func (r *Runtime) look(ctx context.Context, uid types.UID, l *link) (v view, held *facts.Incarnation, state lsp.Report, err error) {
	for range 3 {
		// The link is read first: if the multiplexer exits in between, its state file is newer than its report.
		if l != nil {
			v = l.view()
		}
		if held, err = r.multiplexer(ctx, uid); err == nil {
			state, err = r.site.state(ctx, uid)
			v.noted = r.site.noted(uid, held)
			v.young = v.young || held != nil && time.Since(held.StartedAt) < youth
		}
		if err != nil || l == nil {
			return v, held, state, err
		}
		if now := l.view(); now.generation == v.generation && (now.phase == phaseStarting) == (v.phase == phaseStarting) {
			break
		}
	}
	return v, held, state, nil
}
