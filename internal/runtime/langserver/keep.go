// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Back-off between restarts of a multiplexer that exits repeatedly. The first restart is not delayed, the second is delayed by twice reviveFirst, and each
// later delay is twice the previous one, but at most reviveLast.
const (
	reviveFirst = 250 * time.Millisecond
	reviveLast  = 5 * time.Minute
	// longLife is the minimum time since the last start of a multiplexer for the back-off to be reset.
	longLife = 10 * time.Minute
)

// Keep sets whether the multiplexer must keep running while no server runs. Pass true while clients may connect to a server that sleeps or is about to be
// restarted, and false when the object is stopped or deleted. While keep is true, a lost multiplexer is started again if the site supports that (see Gone). The
// first multiplexer of an object is started together with its first server.
func (r *Runtime) Keep(uid types.UID, keep bool) {
	l := r.known(uid)
	if l == nil {
		if state, err := r.site.state(r.Lifetime(), uid); !keep || err != nil || state.Incarnation == 0 {
			return
		}
		l = r.link(uid)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keep = keep
	switch {
	case !keep:
		l.recheck()
	case l.phase == phaseNone && r.site.revives():
		l.become(phaseReviving)
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
			l.runtime.Notify(l.uid)
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
	if time.Since(l.born) > longLife {
		l.revived = 0
	}
	if l.revived == 0 {
		return 0
	}
	return min(reviveFirst<<min(l.revived, 12), reviveLast)
}
