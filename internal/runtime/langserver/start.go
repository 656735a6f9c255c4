// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
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
		l.pending, l.keep = launch, true
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
	dir := l.runtime.Directory(l.uid)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the multiplexer: %w", err)
	}
	var number int64 = 1
	if held != nil {
		number = held.Number + 1
	}
	err := l.runtime.host.Start(ctx, runtime.Process{
		UID: p.UID, Incarnation: number, Name: p.Name, Command: []string{l.runtime.program, "--dir", dir}, Dir: "/", StopSignal: "SIGTERM",
	})
	if err != nil {
		return fmt.Errorf("start the multiplexer: %w", err)
	}
	l.mu.Lock()
	l.generation++
	l.client, l.report, l.quitting = nil, nil, false
	l.pending, l.since, l.keep = launch, time.Now(), true
	l.mu.Unlock()
	l.watch()
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
