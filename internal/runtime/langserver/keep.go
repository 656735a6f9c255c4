// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
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
	l.keep = keep
	l.mu.Unlock()
	if keep {
		l.revive()
	} else {
		l.retire()
	}
}

// If the multiplexer should be running but is not, revive schedules its start after a back-off.
func (l *link) revive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reviving || !l.mayRevive() {
		return
	}
	pause := reviveLast
	if l.revived == 0 || time.Since(l.born) > longLife {
		l.revived = 0
		pause = 0
	} else if l.revived < 12 {
		pause = min(reviveFirst<<l.revived, reviveLast)
	}
	l.reviving = l.runtime.Go(func() { l.bring(pause) })
}

func (l *link) mayRevive() bool {
	return l.keep && !l.watched && !l.forgotten && l.runtime.site.revives()
}

// bring starts a multiplexer after a pause, unless it is no longer needed or already running.
func (l *link) bring(pause time.Duration) {
	defer func() {
		l.mu.Lock()
		l.reviving = false
		l.mu.Unlock()
	}()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	ctx := l.runtime.Lifetime()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	l.acting.Lock()
	defer l.acting.Unlock()
	l.mu.Lock()
	needed := l.mayRevive()
	l.mu.Unlock()
	held, err := l.runtime.multiplexer(ctx, l.uid)
	if err != nil || !needed || held == nil { // the first multiplexer is started with the first server
		return
	}
	state, err := l.runtime.site.state(ctx, l.uid)
	if err != nil || state.Incarnation == 0 {
		return
	}
	if !held.Alive() {
		if err := l.startMultiplexer(ctx, held.Name, held, nil, nil); err != nil {
			l.runtime.log.Error(err, "Cannot restart the lost multiplexer of a language server", "uid", l.uid)
			return
		}
		l.mu.Lock()
		l.revived++
		l.mu.Unlock()
	}
	l.watch()
	l.runtime.Notify(l.uid)
}
