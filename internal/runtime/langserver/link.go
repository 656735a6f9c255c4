// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/control"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// youth is how long a multiplexer may be unreachable after its start.
	youth = 30 * time.Second

	dialTimeout  = time.Second
	startTimeout = 5 * time.Second
	askTimeout   = 2 * time.Second
	killTimeout  = time.Second
)

// link is the in-memory state of one UID: the connection to its multiplexer, the last report, and the pending start.
type link struct {
	runtime *Runtime
	uid     types.UID

	// acting serializes starts and stops. It is locked before mu.
	acting sync.Mutex

	mu        sync.Mutex
	forgotten bool
	watched   bool // a goroutine maintains the connection
	// generation is incremented with every multiplexer that is started, so that a late observation of the previous one is not applied to the new one.
	generation int64
	starting   bool // a multiplexer is being started; the other fields still describe the previous one
	client     *control.Client
	report     *lsp.Report   // the last report of the running multiplexer
	since      time.Time     // the latest of: the start of the multiplexer, its last report, the end of the last connection
	born       time.Time     // when this manager started the multiplexer; zero if an earlier manager did
	heard      chan struct{} // closed after the first connection and report
	hasHeard   bool
	// pending is a start that was not sent to the multiplexer yet; cancelled is the number of a start that was canceled before it was sent.
	pending   *lsp.Launch
	offered   bool // pending may have been sent, but was not answered
	cancelled int64

	// told is the newest incarnation that was reported as exited.
	told int64

	keep     bool // the multiplexer remains when no server is running
	bare     bool // the multiplexer was started without a server, and has not reported yet
	reviving bool // bring is about to start a multiplexer without a server
	revived  int  // how often bring has started a multiplexer since the last reset of the back-off
	retiring bool // Quit is about to be sent
	quitting bool // Quit was sent
}

// watch maintains the connection for as long as a multiplexer is running.
func (l *link) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched || l.forgotten {
		return
	}
	l.watched = l.runtime.Go(l.follow)
}

// follow connects and reconnects until the multiplexer is gone.
func (l *link) follow() {
	defer measures.drop(l.uid)
	ctx := l.runtime.Lifetime()
	pause := 5 * time.Millisecond
	for ctx.Err() == nil {
		if l.lost(ctx) {
			l.runtime.Notify(l.uid)
			return
		}
		if l.connect(ctx) {
			pause = 5 * time.Millisecond
			l.runtime.Notify(l.uid)
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, 500*time.Millisecond)
	}
}

// lost reports whether the multiplexer is gone, or the object was forgotten: a later multiplexer then has another link. If so, it discards the last report.
func (l *link) lost(ctx context.Context) bool {
	l.mu.Lock()
	generation, forgotten := l.generation, l.forgotten
	l.mu.Unlock()
	if forgotten {
		return true
	}
	held, err := l.runtime.multiplexer(ctx, l.uid)
	if err != nil || (held != nil && held.Alive()) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.generation != generation {
		return false
	}
	l.watched, l.report, l.quitting = false, nil, false
	return true
}

// connect maintains one connection until the connection ends. It returns false if it could not connect.
func (l *link) connect(ctx context.Context) bool {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	l.mu.Lock()
	generation := l.generation
	l.mu.Unlock()
	conn, err := l.runtime.site.dial(dialing, l.uid)
	if err != nil {
		return false
	}
	client, err := control.Converse(dialing, conn, func(report lsp.Report) { l.took(generation, report) }, func(error) {})
	if err != nil {
		return false
	}
	stop := context.AfterFunc(ctx, client.Close)
	defer stop()
	l.mu.Lock()
	if l.generation != generation || l.forgotten {
		client.Close() // the connection may lead to another multiplexer
	} else {
		l.client, l.quitting = client, false
		l.hears()
	}
	l.mu.Unlock()
	l.deliver(ctx)
	l.retire()
	<-client.Ended()
	l.mu.Lock()
	if l.client == client {
		l.client, l.since = nil, time.Now()
	}
	l.mu.Unlock()
	return true
}

// took handles a report of the multiplexer with that generation.
func (l *link) took(generation int64, report lsp.Report) {
	l.mu.Lock()
	if l.generation != generation {
		l.mu.Unlock()
		return
	}
	l.report, l.since, l.bare = &report, time.Now(), false
	measures.note(l.uid, report)
	if l.pending != nil && l.pending.Incarnation <= report.Incarnation {
		l.pending = nil // the report shows the start; the answer follows, or was lost
	}
	l.hears()
	l.mu.Unlock()
	l.retire()
	l.runtime.Notify(l.uid)
}

// hears closes l.heard if the multiplexer is connected and has sent a report. It is called with mu held.
func (l *link) hears() {
	if !l.hasHeard && l.client != nil && l.report != nil {
		l.hasHeard = true
		close(l.heard)
	}
}

// newest returns the last report, unless it may be outdated because the connection was lost for too long.
func (l *link) newest() (lsp.Report, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.report == nil || (l.client == nil && time.Since(l.since) > l.runtime.site.silence()) {
		return lsp.Report{}, false
	}
	return *l.report, true
}

// deliver sends a start that was requested before the multiplexer was reachable.
func (l *link) deliver(ctx context.Context) {
	l.acting.Lock()
	defer l.acting.Unlock()
	l.mu.Lock()
	launch, client := l.pending, l.client
	l.offered = l.offered || launch != nil && client != nil
	l.mu.Unlock()
	if launch == nil || client == nil {
		return
	}
	switch err := l.send(ctx, client, launch); {
	case err == nil, errors.Is(err, runtime.ErrStale), errors.Is(err, errRefused):
	case errors.Is(err, runtime.ErrOldAlive), errors.Is(err, errUnavailable):
		l.runtime.log.Error(err, "Cannot start a language server; retrying", "uid", l.uid)
	default:
		return // the connection failed: the next one retries
	}
	l.mu.Lock()
	l.pending = nil
	l.mu.Unlock()
}

var (
	errRefused     = errors.New("the multiplexer rejects the start of the language server")
	errUnavailable = errors.New("the multiplexer cannot start the language server at the moment")
)

// send makes the multiplexer start an incarnation.
func (l *link) send(ctx context.Context, client *control.Client, launch *lsp.Launch) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	answer, err := client.Do(ctx, lsp.Command{Verb: lsp.Start, Incarnation: launch.Incarnation, Launch: launch})
	if err != nil {
		return err
	}
	switch answer.Code {
	case "":
		return nil
	case lsp.CodeStale:
		return fmt.Errorf("%w: %s", runtime.ErrStale, answer.Error)
	case lsp.CodeOldAlive:
		return fmt.Errorf("%w: %s", runtime.ErrOldAlive, answer.Error)
	case lsp.CodeInvalid:
		return fmt.Errorf("%w: %s", errRefused, answer.Error)
	default:
		return fmt.Errorf("%w: %s", errUnavailable, answer.Error)
	}
}
