// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The back-off before a multiplexer that exits repeatedly is started again.
const (
	reviveFirst = 250 * time.Millisecond
	reviveLast  = 5 * time.Minute
	// longLife: the exit of a multiplexer that lived for longer than this resets the back-off.
	longLife = 10 * time.Minute
)

// Keep sets whether the multiplexer must be running although no server runs. It is true when clients may connect to a server that sleeps or is about to be
// restarted, and false when its object is stopped or deleted. A lost multiplexer is started again where that is possible (see Gone); the first one is started
// with the first server.
func (r *Runtime) Keep(uid types.UID, keep bool) {
	l := r.known(uid)
	if l == nil {
		if state, err := r.site.state(r.life, uid); !keep || err != nil || state.Incarnation == 0 {
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

// revive starts the multiplexer if it should be running and is not.
func (l *link) revive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reviving || !l.mayRevive() {
		return
	}
	pause := reviveLast
	if l.revived == 0 || time.Since(l.since) > longLife {
		l.revived = 0
		pause = 0
	} else if l.revived < 12 {
		pause = min(reviveFirst<<l.revived, reviveLast)
	}
	l.reviving = l.runtime.spawn(func() { l.bring(pause) })
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
	ctx := l.runtime.life
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
	l.runtime.tell(l.uid)
}
