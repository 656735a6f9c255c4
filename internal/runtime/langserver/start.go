// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Start implements runtime.Runtime. It starts the server in the running multiplexer, or in a new one.
func (r *Runtime) Start(ctx context.Context, p runtime.Process) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Incarnation <= 0 || !runtime.ValidUID(p.UID) {
		return fmt.Errorf("start %s: a UID and an incarnation greater than 0 are required", p.Name)
	}
	l := r.link(p.UID)
	l.acting.Lock()
	defer l.acting.Unlock()
	if err := l.start(ctx, p); err != nil {
		return fmt.Errorf("start incarnation %d of %s: %w", p.Incarnation, p.Name, err)
	}
	return nil
}

func (l *link) start(ctx context.Context, p runtime.Process) error {
	launch, err := l.runtime.launchOf(p)
	if err != nil {
		return err
	}
	held, err := l.runtime.multiplexer(ctx, l.uid)
	if err != nil {
		return err
	}
	noted := l.runtime.site.noted(l.uid, held)
	if noted == p.Incarnation && held != nil && held.Phase == facts.Running { // the multiplexer may have started it for an earlier manager
		l.watch()
		l.await(ctx)
	}
	state, err := l.runtime.site.state(ctx, l.uid)
	if err != nil {
		return err
	}
	newest := l.newestRequested(state)
	switch {
	case p.Incarnation < max(newest, noted):
		return fmt.Errorf("%w: %d", runtime.ErrStale, max(newest, noted))
	case p.Incarnation == newest:
		return nil
	case held != nil && held.Alive() && !l.runtime.site.fits(l.uid, held, p):
		return l.replace(ctx, held)
	case held != nil && held.Alive():
		return l.startIn(ctx, held, launch)
	}
	return l.startMultiplexer(ctx, p.Name, held, &p, launch)
}

// newestRequested returns the number of the newest incarnation of the server whose start was requested, as far as it is known.
func (l *link) newestRequested(state lsp.Report) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.snapshot()
	v.report = l.report // even an outdated report shows which start was requested
	return newestOf(v, state)
}

// replace stops a multiplexer that does not match the spec, even if the multiplexer cannot be reached. It always returns an error, so that the caller retries
// the start.
func (l *link) replace(ctx context.Context, held *facts.Incarnation) error {
	if !held.StopSent {
		if err := l.runtime.host.Stop(ctx, l.uid, held.Number); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: its multiplexer is running with an older spec and is being stopped", runtime.ErrOldAlive)
}

// startIn starts a server in the running multiplexer. If this manager is not connected to the multiplexer, the start is sent later.
func (l *link) startIn(ctx context.Context, held *facts.Incarnation, launch *lsp.Launch) error {
	v := l.view()
	switch {
	case held.Phase == facts.Unknown:
		return fmt.Errorf("%w: %s", runtime.ErrOldAlive, held.Message)
	case v.pending > 0: // it is older, because it is not the newest incarnation
		return fmt.Errorf("%w: incarnation %d is being started", runtime.ErrOldAlive, v.pending)
	case v.phase == phaseQuitting || held.LeaderExit != nil || held.StopSent:
		return fmt.Errorf("%w: the multiplexer of the previous incarnation is being stopped", runtime.ErrOldAlive)
	}
	l.mu.Lock()
	l.keep = true
	l.mu.Unlock()
	if err := l.runtime.site.note(ctx, l.uid, held, launch.Incarnation); err != nil {
		return err
	}
	if v.client != nil {
		return l.send(ctx, v.client, launch)
	}
	l.mu.Lock()
	l.pending, l.offered = launch, false
	l.mu.Unlock()
	l.watch()
	return nil
}

// startMultiplexer starts a multiplexer that replaces the previous one, and starts the server in it as soon as the multiplexer can be reached. If p and launch
// are nil, the multiplexer is started without a server.
func (l *link) startMultiplexer(ctx context.Context, name string, held *facts.Incarnation, p *runtime.Process, launch *lsp.Launch) error {
	started, err := l.runtime.site.begin(ctx, l.uid, held, p)
	if err != nil {
		return err
	}
	started.UID, started.Name = l.uid, name
	l.mu.Lock()
	before := l.phase
	l.phase = phaseStarting
	l.mu.Unlock()
	err = l.runtime.host.Start(ctx, started)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.phase = before
		return fmt.Errorf("start the multiplexer: %w", err)
	}
	if l.pending != nil { // the pending start was lost with the previous multiplexer
		l.cancelled = l.pending.Incarnation
	}
	l.generation++
	l.client, l.report, l.since, l.born = nil, nil, time.Now(), time.Now()
	l.pending, l.offered = launch, false
	if launch == nil {
		l.revived++
		l.become(phaseBare)
	} else {
		l.keep = true
		l.become(phaseRunning)
	}
	return nil
}

// CheckProgram implements runtime.Inspection for servers on this machine. It cannot check servers in Pods, because their program is in an image.
func (r *Runtime) CheckProgram(p runtime.Process) (failure *facts.StartError, known bool) {
	if _, here := r.site.(*onHost); !here {
		return nil, false
	}
	launch, err := r.launchOf(p)
	if err != nil {
		return nil, false //nolint:nilerr // the start reports it
	}
	asked := shim.Launch{Command: launch.Command, Dir: launch.Dir, Env: launch.Env, RunAs: launch.RunAs}
	_, failed := asked.Resolve()
	return failed, true
}

// launchOf converts a process to the multiplexer's Launch.
func (r *Runtime) launchOf(p runtime.Process) (*lsp.Launch, error) {
	launch := &lsp.Launch{Incarnation: p.Incarnation, Command: p.Command, Dir: p.Dir, StopSignal: p.StopSignal, Grace: p.Grace}
	r.site.environment(launch, p.Env)
	if len(p.Config) > 0 {
		if err := json.Unmarshal(p.Config, &launch.Config); err != nil {
			return nil, fmt.Errorf("read the configuration of the language server: %w", err)
		}
	}
	return launch, nil
}
