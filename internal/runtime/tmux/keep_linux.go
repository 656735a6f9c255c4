// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// reopenFirst and reopenLast are the first and the longest back-off before a lost window is opened again.
	reopenFirst = 50 * time.Millisecond
	reopenLast  = 30 * time.Second
	// longLife determines when the back-off is reset: if the lost window was opened more than longLife + reopenLast ago.
	longLife = 10 * time.Second

	// glanceEvery is how often an adopted session is polled in addition to events. No event reports a killed session whose program keeps running.
	glanceEvery = 10 * time.Second
	// watchEvery is the poll interval while a process is about to exit.
	watchEvery = 100 * time.Millisecond
)

// Keep sets whether the session remains while its process is not running, so that attached users see the next incarnation. Callers pass true between
// incarnations and false when the object is stopped. The setting applies until the next call. The session is never killed before the process has exited.
func (r *Runtime) Keep(uid types.UID, keep bool) {
	if rec, err := r.read(uid); err == nil && rec == nil {
		return
	}
	l := r.links.Get(uid)
	l.mu.Lock()
	changed := l.keep != keep
	l.keep = keep
	l.mu.Unlock()
	if changed || !keep {
		l.follow()
	}
}

// Tidy implements runtime.Terminals. It kills the session of a process that has exited.
func (r *Runtime) Tidy(ctx context.Context, uid types.UID) error {
	l := r.links.Acquire(uid)
	defer l.Unlock()
	rec, err := r.read(uid)
	if err != nil || rec == nil || rec.Adopted {
		return err
	}
	held, err := runtime.Newest(ctx, r.host, uid)
	if err != nil || held != nil && held.Alive() {
		return err
	}
	l.mu.Lock()
	l.keep = false
	l.mu.Unlock()
	return r.endSession(ctx, rec)
}

func (l *link) run() {
	ctx := l.runtime.Lifetime()
	for ctx.Err() == nil {
		select {
		case <-l.kicked:
		default:
		}
		wait, processes, over := l.tend(ctx)
		if over {
			return
		}
		l.wait(ctx, wait, processes)
	}
}

// tend reads the state and acts on it. It returns how long to wait before the next call, the processes whose exit ends the wait, and whether the link is done.
func (l *link) tend(ctx context.Context) (wait time.Duration, processes []procstat.Process, over bool) {
	l.Lock()
	defer l.Unlock()
	defer func() {
		if over {
			over = l.unfollow()
		}
	}()
	if l.Gone() {
		return 0, nil, true
	}
	rec, err := l.runtime.read(l.uid)
	switch {
	case err != nil:
		return l.logOnce(err), nil, false
	case rec == nil:
		return 0, nil, true
	case rec.Adopted:
		return l.tendAdopted(ctx, rec)
	}
	return l.tendWindow(ctx, rec)
}

// unfollow records that the goroutine that maintains the session returns. It reports false if a check was requested since the last one, because the method
// follow starts no goroutine while this one is recorded: the caller must then check again.
func (l *link) unfollow() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kicked) > 0 {
		return false
	}
	l.following = false
	return true
}

// tendWindow maintains the window for a process that the host runs.
func (l *link) tendWindow(ctx context.Context, rec *record) (wait time.Duration, processes []procstat.Process, over bool) {
	r := l.runtime
	l.mu.Lock()
	keep := l.keep
	l.mu.Unlock()
	held, err := runtime.Newest(ctx, r.host, l.uid)
	switch {
	case err != nil:
		return l.logOnce(err), nil, false
	case held == nil: // the host has forgotten the process, because its object no longer exists
		if err := r.endSession(ctx, rec); err != nil {
			return l.logOnce(err), nil, false
		}
		return 0, nil, r.erase(l.uid) == nil
	case !held.Alive() && !keep:
		if err := r.endSession(ctx, rec); err != nil {
			return l.logOnce(err), nil, false
		}
		return 0, nil, true
	}
	there, err := procstat.Alive(rec.Pane)
	switch {
	case err != nil:
		return l.logOnce(err), nil, false
	case there && !keep: // poll, because no event reports here that the process has exited
		return watchEvery, []procstat.Process{rec.Pane}, false
	case there:
		return 0, []procstat.Process{rec.Pane}, false
	case !held.Alive():
		return 0, nil, true // the next start opens the window again
	}
	if pause := l.pause(); pause > 0 {
		return pause, nil, false
	}
	return l.reopen(ctx, rec)
}

// reopen opens a window that was lost.
func (l *link) reopen(ctx context.Context, rec *record) (wait time.Duration, processes []procstat.Process, over bool) {
	r := l.runtime
	l.tries++
	l.opened = time.Now()
	next := &record{
		UID: rec.UID, Name: rec.Name, Incarnation: rec.Incarnation, Socket: rec.Socket, Session: rec.Session, Dir: rec.Dir, Columns: rec.Columns, Rows: rec.Rows,
	}
	all, err := r.client(rec.Socket).sessions(ctx)
	if err == nil {
		own, _ := of(all, rec.UID, r.install, rec.Session)
		next.Made = rec.Made
		if own != nil {
			err = r.reuse(ctx, next, own)
		} else {
			err = r.makeSession(ctx, next)
			if refused(err, "duplicate session") {
				next.Made = false
				_ = r.write(rec) // restore the earlier record
			}
		}
	}
	if err != nil {
		return l.logOnce(err), nil, false
	}
	if next.Pane.PID == 0 {
		return l.logOnce(errors.New("the window closed immediately; check that berth-shim is executable and has the same version as berth")), nil, false
	}
	l.lastLogged = ""
	r.log.Info("Restored the lost tmux session of a process", "uid", l.uid, "session", rec.Session)
	r.host.Announce(l.uid)
	return 0, []procstat.Process{next.Pane}, false
}

// pause returns the back-off before a window is opened again.
func (l *link) pause() time.Duration {
	since := time.Since(l.opened)
	if since > longLife+reopenLast {
		l.tries = 0
	}
	if l.tries == 0 {
		return 0
	}
	return max(min(reopenFirst<<min(l.tries-1, 12), reopenLast)-since, 0)
}

// logOnce logs an error, unless it is equal to the last logged error. It returns the delay before the next attempt.
func (l *link) logOnce(err error) time.Duration {
	if l.runtime.Lifetime().Err() == nil && l.lastLogged != err.Error() {
		l.lastLogged = err.Error()
		l.runtime.log.Error(err, "Cannot maintain the tmux session of a process; retrying", "uid", l.uid)
	}
	l.tries++
	return min(reopenFirst<<min(l.tries, 12), reopenLast)
}

// tendAdopted follows an adopted program.
func (l *link) tendAdopted(ctx context.Context, rec *record) (wait time.Duration, processes []procstat.Process, over bool) {
	now := l.lookAdopted(ctx, rec)
	if ctx.Err() != nil {
		return 0, nil, false
	}
	if phase := now.Phase; phase != l.phase || now.LeaderExit != nil || l.active.After(l.told) {
		l.phase, l.told = phase, l.active
		l.runtime.host.Announce(l.uid)
	}
	switch {
	case !now.Alive():
		return 0, nil, true
	case now.LeaderExit != nil:
		l.sweep(rec)
		return watchEvery, nil, false
	case now.Phase == facts.Unknown:
		return time.Second, []procstat.Process{rec.Pane}, false
	}
	return glanceEvery, []procstat.Process{rec.Pane, rec.Server}, false
}

// sweep terminates the processes that an adopted program left behind.
func (l *link) sweep(rec *record) {
	var err error
	switch due := l.leftovers.Due(time.Now(), rec.StopSent); {
	case rec.KillSent || due == unix.SIGKILL:
		err = l.killAll(rec)
	case due != 0:
		err = rec.tree().Signal(due)
	}
	if err != nil {
		l.runtime.log.Error(err, "Cannot terminate the processes that a program left behind", "uid", l.uid)
	}
}
