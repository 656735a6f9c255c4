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
	// youth is how long a multiplexer that was just started may take to be heard of.
	youth = 30 * time.Second

	dialTimeout  = time.Second
	startTimeout = 5 * time.Second
	askTimeout   = 2 * time.Second
	killTimeout  = time.Second
)

// link is what is kept of one UID: the connection to its multiplexer, what that said last, and what it has to be told.
type link struct {
	runtime *Runtime
	uid     types.UID

	// acting makes starts and ends come one after another. It is taken before mu.
	acting sync.Mutex

	mu        sync.Mutex
	forgotten bool
	watched   bool // a goroutine dials and listens
	// generation grows with every multiplexer that is started, so that whoever saw the one before gone doesn't take it for the new one.
	generation int64
	starting   bool // one is being started, and the rest is still about the one before
	client     *control.Client
	report     *lsp.Report   // of the multiplexer that lives
	since      time.Time     // when the multiplexer was started, or last heard of
	heard      chan struct{} // closed when it was first reached and has reported
	hasHeard   bool
	// pending is a start that the multiplexer was not told of yet; cancelled is one that was ended before.
	pending   *lsp.Launch
	offered   bool // it may have been told of pending, without an answer
	cancelled int64

	// told is the newest incarnation that was observed as ended.
	told int64

	keep     bool // the multiplexer stays when no server lives
	bare     bool // the multiplexer was started by us with nothing to start, and was not heard of yet
	reviving bool // somebody is about to start a multiplexer with nothing to start
	revived  int  // how often that was done since one lived for long
	retiring bool // somebody is about to tell it to quit
	quitting bool // it was told to
}

// watch keeps the connection for as long as a multiplexer lives.
func (l *link) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched || l.forgotten {
		return
	}
	l.watched = l.runtime.spawn(l.follow)
}

// follow dials and listens until the multiplexer is gone.
func (l *link) follow() {
	defer measures.drop(l.uid)
	ctx := l.runtime.life
	pause := 5 * time.Millisecond
	for ctx.Err() == nil {
		if l.lost(ctx) {
			l.runtime.tell(l.uid)
			return
		}
		if l.connect(ctx) {
			pause = 5 * time.Millisecond
			l.runtime.tell(l.uid)
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

// lost says that there is no multiplexer to follow, and forgets what it said.
func (l *link) lost(ctx context.Context) bool {
	l.mu.Lock()
	generation := l.generation
	l.mu.Unlock()
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

// connect keeps one connection until it ends; false when there was none.
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
	if l.generation != generation {
		client.Close() // nobody knows to whom it leads
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

// took is told every report.
func (l *link) took(generation int64, report lsp.Report) {
	l.mu.Lock()
	if l.generation != generation {
		l.mu.Unlock()
		return
	}
	l.report, l.since, l.bare = &report, time.Now(), false
	measures.note(l.uid, report)
	if l.pending != nil && l.pending.Incarnation <= report.Incarnation {
		l.pending = nil // the answer is on its way, or was lost
	}
	l.hears()
	l.mu.Unlock()
	l.retire()
	l.runtime.tell(l.uid)
}

// hears is called with the lock held.
func (l *link) hears() {
	if !l.hasHeard && l.client != nil && l.report != nil {
		l.hasHeard = true
		close(l.heard)
	}
}

// newest is the last report, as long as there is no doubt that it holds.
func (l *link) newest() (lsp.Report, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.report == nil || (l.client == nil && time.Since(l.since) > l.runtime.site.silence()) {
		return lsp.Report{}, false
	}
	return *l.report, true
}

func (l *link) connection() *control.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client
}

// deliver tells the multiplexer of a start that came before it could be reached.
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
		l.runtime.log.Error(err, "A language server could not be started; it is tried again", "uid", l.uid)
	default:
		return // the connection: it goes on with the next
	}
	l.mu.Lock()
	l.pending = nil
	l.mu.Unlock()
}

var (
	errRefused     = errors.New("the multiplexer refuses to start the language server")
	errUnavailable = errors.New("the multiplexer cannot start the language server now")
)

// send has the multiplexer start an incarnation.
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
