// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Start implements runtime.Runtime: in the multiplexer that lives, or in one that is started for it.
func (r *Runtime) Start(ctx context.Context, p runtime.Process) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Incarnation <= 0 || len(p.Command) == 0 || !shim.ValidUID(string(p.UID)) {
		return fmt.Errorf("start %s: a UID, an incarnation above 0 and a command are needed", p.Name)
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
	launch, err := launchOf(p)
	if err != nil {
		return err
	}
	held, err := l.runtime.multiplexer(ctx, l.uid)
	if err != nil {
		return err
	}
	newest, err := l.newestNumber()
	if err != nil {
		return err
	}
	switch {
	case p.Incarnation < newest:
		return fmt.Errorf("%w: %d", runtime.ErrStale, newest)
	case p.Incarnation == newest:
		return nil
	case held != nil && held.Alive():
		return l.startIn(ctx, held, launch)
	}
	return l.startBoth(ctx, p, held, launch)
}

// newestNumber is the newest incarnation of the server that was ever asked for, as far as it is known.
func (l *link) newestNumber() (int64, error) {
	state, err := l.runtime.state(l.uid)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := max(state.Incarnation, l.cancelled)
	if l.report != nil {
		newest = max(newest, l.report.Incarnation)
	}
	if l.pending != nil {
		newest = max(newest, l.pending.Incarnation)
	}
	return newest, nil
}

// startIn starts a server in the multiplexer that lives, which may have to be reached first.
func (l *link) startIn(ctx context.Context, held *runtime.Incarnation, launch *lsp.Launch) error {
	l.mu.Lock()
	client, quitting := l.client, l.quitting
	switch {
	case held.Phase == runtime.Unknown:
		l.mu.Unlock()
		return fmt.Errorf("%w: %s", runtime.ErrOldAlive, held.Message)
	case quitting || held.LeaderExit != nil:
		l.mu.Unlock()
		return fmt.Errorf("%w: the multiplexer of the incarnation before is about to end", runtime.ErrOldAlive)
	case client == nil:
		l.pending, l.offered, l.keep = launch, false, true
		l.mu.Unlock()
		l.watch()
		return nil
	}
	l.keep = true
	l.mu.Unlock()
	return l.send(ctx, client, launch)
}

// startBoth starts a multiplexer, which is told what to start as soon as it can be reached.
func (l *link) startBoth(ctx context.Context, p runtime.Process, held *runtime.Incarnation, launch *lsp.Launch) error {
	if err := l.startMultiplexer(ctx, p.Name, held, launch); err != nil {
		return err
	}
	l.mu.Lock()
	l.keep = true
	l.mu.Unlock()
	l.watch()
	return nil
}

// startMultiplexer starts one in the place of the one before. A bare one, without a launch, has nothing to start for now.
func (l *link) startMultiplexer(ctx context.Context, name string, held *runtime.Incarnation, launch *lsp.Launch) error {
	dir := l.runtime.Directory(l.uid)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the multiplexer: %w", err)
	}
	if err := l.settle(held); err != nil {
		return err
	}
	var number int64 = 1
	if held != nil {
		number = held.Number + 1
	}
	l.mu.Lock()
	l.starting = true
	l.mu.Unlock()
	err := l.runtime.host.Start(ctx, runtime.Process{
		UID: l.uid, Incarnation: number, Name: name, Command: []string{l.runtime.program, "--dir", dir}, Dir: "/", StopSignal: "SIGTERM",
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starting = false
	if err != nil {
		return fmt.Errorf("start the multiplexer: %w", err)
	}
	if l.pending != nil { // the one before was lost with it
		l.cancelled = l.pending.Incarnation
	}
	l.generation++
	l.client, l.report, l.quitting, l.since = nil, nil, false, time.Now()
	l.pending, l.offered, l.bare = launch, false, launch == nil
	return nil
}

// settle writes down what became of a server whose multiplexer could not, while that can still be told.
func (l *link) settle(held *runtime.Incarnation) error {
	state, err := l.runtime.state(l.uid)
	if err != nil || state.Incarnation == 0 || state.Exit != nil || state.StartError != nil {
		return err
	}
	end := gone(view{}, held, state)
	state.Phase, state.LeaderExit = lsp.Exited, nil
	state.Exit = &lsp.Exit{
		Known: end.Exit.Known, Code: end.Exit.Code, Signal: end.Exit.Signal, FinishedAt: end.Exit.FinishedAt, Message: end.Exit.Message,
	}
	if err := shim.WriteFile(filepath.Join(l.runtime.Directory(l.uid), lsp.StateFile), state, false); err != nil {
		return fmt.Errorf("write down how the server ended: %w", err)
	}
	return nil
}

// launchOf says to a multiplexer what the spec says of a process.
func launchOf(p runtime.Process) (*lsp.Launch, error) {
	launch := &lsp.Launch{
		Incarnation: p.Incarnation, Command: p.Command, Dir: p.Dir, StopSignal: p.StopSignal, Grace: p.Grace, Env: environment(p.Env),
	}
	if len(p.Config) > 0 {
		if err := json.Unmarshal(p.Config, &launch.Config); err != nil {
			return nil, fmt.Errorf("read the configuration of the language server: %w", err)
		}
	}
	return launch, nil
}

// environment is what every process gets: the manager's own but for what is Berth's, and what the object asks for, which wins.
func environment(asked []string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "BERTH_") {
			env = append(env, entry)
		}
	}
	return append(env, asked...)
}
