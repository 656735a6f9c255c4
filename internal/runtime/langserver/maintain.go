// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
)

// Attempts to connect to a multiplexer are separated by pauses: each one is twice the previous one, but at most lastPause.
const firstPause, lastPause = 5 * time.Millisecond, 500 * time.Millisecond

// Back-off between restarts of a multiplexer that exits repeatedly. The first restart is not delayed, the second is delayed by twice reviveFirst, and each
// later delay is twice the previous one, but at most reviveLast.
const (
	reviveFirst = 250 * time.Millisecond
	reviveLast  = 5 * time.Minute
	// longLife is the minimum time since the last start of a multiplexer for the back-off to be reset.
	longLife = 10 * time.Minute
)

// maintain is the goroutine of a link, which runs while there is a multiplexer to connect to or to start. Only maintain connects, sends Quit and starts
// multiplexers without a server.
func (l *link) maintain() {
	defer measures.drop(l.uid)
	ctx := l.runtime.Lifetime()
	pause := firstPause
	for ctx.Err() == nil {
		switch l.plan(ctx) {
		case stepEnd:
			return
		case stepDiscard:
			l.runtime.host.Announce(l.uid)
			return
		case stepRevive:
			l.revive(ctx)
			continue
		case stepConnect:
			if l.connect(ctx) {
				pause = firstPause
				l.runtime.host.Announce(l.uid)
				continue
			}
		}
		if l.wait(ctx, pause) {
			pause = min(2*pause, lastPause)
		} else {
			pause = firstPause
		}
	}
}

// plan returns what maintain does next while it is not connected. If maintain must end, a later change of the phase starts it again.
func (l *link) plan(ctx context.Context) step {
	generation := l.view().generation
	held, err := l.runtime.multiplexer(ctx, l.uid)
	l.mu.Lock()
	defer l.mu.Unlock()
	// If another multiplexer was started in the meantime, held may be the previous one.
	does := next(l.snapshot(), held, err == nil && l.generation == generation)
	if does == stepEnd || does == stepDiscard {
		l.phase, l.maintained, l.report = phaseNone, false, nil
	}
	return does
}

// wait returns true after a pause, or false as soon as the link has changed or the Runtime is closed.
func (l *link) wait(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.changed:
	case <-ctx.Done():
	}
	return false
}

// connect maintains one connection until the connection ends. It returns false if it could not connect.
func (l *link) connect(ctx context.Context) bool {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	generation := l.view().generation
	conn, err := l.runtime.site.dial(dialing, l.uid)
	if err != nil {
		return false
	}
	client, err := control.Converse(dialing, conn, func(report lsp.Report) { l.took(generation, report) })
	if err != nil {
		return false
	}
	stop := context.AfterFunc(ctx, client.Close)
	defer stop()
	if !l.adopt(client, generation) {
		client.Close()
		return false
	}
	l.deliver(ctx)
	for {
		switch next(l.view(), nil, false) {
		case stepWait:
		case stepQuit:
			l.quit()
		default: // another multiplexer was started, or the link was forgotten, and the network has not closed this connection
			client.Close()
		}
		select {
		case <-l.changed:
		case <-client.Ended():
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.client == client {
				l.client, l.since = nil, time.Now()
			}
			return true
		}
	}
}

// adopt makes client the connection of the link, unless it may lead to another multiplexer than that with the given generation.
func (l *link) adopt(client *control.Client, generation int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.snapshot(); v.generation != generation || v.phase == phaseStarting || v.phase == phaseNone { // phaseNone: the link was forgotten
		return false
	}
	l.client, l.phase = client, phaseRunning
	l.hear.Do(func() { close(l.heard) })
	return true
}

// quit sends Quit.
func (l *link) quit() {
	l.acting.Lock()
	defer l.acting.Unlock()
	l.mu.Lock()
	if next(l.snapshot(), nil, false) != stepQuit { // for example, a start was requested before acting was locked
		l.mu.Unlock()
		return
	}
	l.phase = phaseQuitting
	client := l.client
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.runtime.Lifetime(), askTimeout)
	defer cancel()
	answer, err := client.Do(ctx, lsp.Command{Verb: lsp.Quit, Reason: "the language server is stopped"})
	// A multiplexer that exits may close the connection before it answers, and needs no other command. If the multiplexer has rejected Quit or did not answer
	// in time, close the connection: maintain then reconnects, and Quit is sent again.
	if rejected := err == nil && answer.Code != ""; rejected || err != nil && ctx.Err() != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.phase = phaseRunning
		client.Close()
	}
}

// revive starts a multiplexer without a server after the back-off. If the link changes first, it does nothing, and maintain decides again.
func (l *link) revive(ctx context.Context) {
	if !l.wait(ctx, l.delay()) {
		return
	}
	l.acting.Lock()
	defer l.acting.Unlock()
	held, err := l.runtime.multiplexer(ctx, l.uid)
	if next(l.view(), held, err == nil) != stepRevive {
		return
	}
	state, err := l.runtime.site.state(ctx, l.uid)
	if err == nil && state.Incarnation > 0 { // the first multiplexer is started with the first server
		if err := l.startMultiplexer(ctx, held.Name, held, nil, nil); err != nil {
			l.runtime.log.Error(err, "Cannot restart the lost multiplexer of a language server", "uid", l.uid)
		} else {
			l.runtime.host.Announce(l.uid)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == phaseReviving { // no multiplexer was started; only another call of Keep tries again
		l.phase = phaseNone
	}
}

// delay returns the back-off before the next restart, and resets it after a long life.
func (l *link) delay() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revived == 0 || time.Since(l.born) > longLife {
		l.revived = 0
		return 0
	}
	return min(reviveFirst<<min(l.revived, 12), reviveLast)
}
