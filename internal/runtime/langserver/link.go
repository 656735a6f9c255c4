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

// link is the in-memory state of one UID. The functions in judge.go decide from a snapshot of it, and the goroutine in maintain.go acts on these decisions.
type link struct {
	runtime *Runtime
	uid     types.UID

	// acting serializes the commands Start, Stop, Kill and Quit and the starts of multiplexers. It is locked before mu, and held until the multiplexer or the
	// Host has answered. mu cannot replace it: a command is answered only after its report was handled, and took locks mu to handle it.
	acting sync.Mutex

	mu         sync.Mutex
	phase      phase
	keep       bool          // the multiplexer remains when no server is running
	maintained bool          // the goroutine maintain is running
	changed    chan struct{} // makes maintain decide again; its capacity is 1
	// generation is incremented with every multiplexer that is started, so that a late observation of the previous one is not applied to the new one.
	generation int64
	revived    int         // how often a multiplexer was started without a server since the last reset of the back-off
	born       time.Time   // when this manager started the multiplexer; zero if an earlier manager did
	since      time.Time   // the latest of: the start of the multiplexer, its last report, the end of the last connection
	report     *lsp.Report // the last report of the running multiplexer

	met    bool            // Observe has waited for the first report, or need not wait
	client *control.Client // nil while not connected
	heard  chan struct{}   // closed by hear after the first connection and report
	hear   sync.Once

	// pending is a start that was not sent to the multiplexer yet; cancelled is the number of a start that was canceled before it was sent.
	pending   *lsp.Launch
	offered   bool // pending may have been sent, but was not answered
	cancelled int64
	told      int64 // the newest incarnation that was reported as exited
}

// watch maintains the connection to a multiplexer that the Host reports as alive.
func (l *link) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == phaseNone || l.phase == phaseReviving {
		l.become(phaseRunning)
	}
}

// become sets the phase, and makes the goroutine act on it. It is called with mu held.
func (l *link) become(p phase) {
	l.phase = p
	l.maintained = l.maintained || l.runtime.Go(l.maintain)
	l.recheck()
}

// recheck makes the goroutine decide again, because something has changed.
func (l *link) recheck() {
	select {
	case l.changed <- struct{}{}:
	default: // an earlier change was not handled yet
	}
}

// view returns a snapshot.
func (l *link) view() view {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.snapshot()
}

// snapshot returns a snapshot. It is called with mu held.
func (l *link) snapshot() view {
	v := view{
		phase: l.phase, client: l.client, report: l.report, young: time.Since(l.since) < youth,
		cancelled: l.cancelled, told: l.told, leaving: l.phase == phaseQuitting || !l.keep, generation: l.generation,
	}
	if l.runtime.known(l.uid) != l { // forgotten: a later multiplexer has another link
		v.phase = phaseNone
	}
	v.bare = l.phase == phaseBare && v.young
	if v.client == nil && time.Since(l.since) > l.runtime.site.silence() {
		v.report = nil
	}
	if l.pending != nil {
		v.pending = l.pending.Incarnation
	}
	return v
}

// took handles a report of the multiplexer with that generation.
func (l *link) took(generation int64, report lsp.Report) {
	l.mu.Lock()
	if l.generation != generation || l.snapshot().phase == phaseNone { // forgotten, or no longer maintained: the report would be kept for ever
		l.mu.Unlock()
		return
	}
	l.report, l.since = &report, time.Now()
	measures.note(l.uid, report)
	if l.pending != nil && l.pending.Incarnation <= report.Incarnation {
		l.pending = nil // the report shows the start; the answer follows, or was lost
	}
	l.mu.Unlock()
	l.recheck()
	l.runtime.host.Announce(l.uid)
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
