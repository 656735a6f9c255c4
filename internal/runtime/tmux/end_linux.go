// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Observe implements runtime.Runtime. It does not query tmux for processes that the host runs.
func (r *Runtime) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	rec, err := r.read(uid)
	if err != nil {
		return nil, err
	}
	if rec == nil || !rec.Adopted {
		return r.host.Observe(ctx, uid)
	}
	l := r.links.Acquire(uid)
	defer l.Unlock()
	if rec, err = r.read(uid); err != nil {
		return nil, err
	}
	if rec == nil || !rec.Adopted { // released or started since the first read
		return r.host.Observe(ctx, uid)
	}
	now := l.lookAdopted(ctx, rec)
	if now.Alive() {
		l.followed()
	}
	return []facts.Incarnation{now}, nil
}

// Stop implements runtime.Runtime.
func (r *Runtime) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	return r.ask(ctx, uid, incarnation, false)
}

// Kill implements runtime.Runtime. For an adopted program it also kills the session.
func (r *Runtime) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	return r.ask(ctx, uid, incarnation, true)
}

func (r *Runtime) ask(ctx context.Context, uid types.UID, incarnation int64, kill bool) error {
	rec, err := r.read(uid)
	if err != nil {
		return err
	}
	if rec == nil || !rec.Adopted {
		if kill {
			return r.host.Kill(ctx, uid, incarnation)
		}
		return r.host.Stop(ctx, uid, incarnation)
	}
	l := r.links.Acquire(uid)
	defer l.Unlock()
	if rec, err = r.read(uid); err != nil || rec == nil || !rec.Adopted || rec.Incarnation != incarnation || rec.Exit != nil || rec.BootID != r.boot {
		return err
	}
	defer l.follow()
	if err := r.mayControl(rec.Server, rec.Pane); err != nil {
		return fmt.Errorf("stop incarnation %d of %s: %w", incarnation, uid, err)
	}
	if kill {
		err = l.kill(ctx, rec)
	} else {
		err = l.stop(rec)
	}
	if err != nil {
		return fmt.Errorf("stop incarnation %d of %s: %w", incarnation, uid, err)
	}
	return nil
}

// errInside is the error for stopping or killing a session in which this process itself runs.
var errInside = errors.New("berth itself is running in this session; start berth elsewhere first")

func (l *link) stop(rec *record) error {
	if inside(serverOf{pid: rec.Server.PID, socket: rec.SocketPath}, rec.PaneID, rec.Pane.PID) {
		return errInside
	}
	signal, known := shim.SignalNumber(rec.StopSignal)
	if !known {
		signal = unix.SIGTERM
	}
	if _, err := l.members(rec); err != nil {
		return err
	}
	if err := rec.tree().Signal(signal); err != nil {
		return err
	}
	rec.StopSent = true
	return l.runtime.write(rec)
}

func (l *link) kill(ctx context.Context, rec *record) error {
	if inside(serverOf{pid: rec.Server.PID, socket: rec.SocketPath}, rec.PaneID, rec.Pane.PID) {
		return errInside
	}
	rec.KillSent = true
	if err := l.runtime.write(rec); err != nil {
		return err
	}
	if err := l.killAll(rec); err != nil {
		return err
	}
	if server, err := procstat.Alive(rec.Server); err != nil || !server {
		return err
	}
	s := &Session{ID: rec.SessionID, server: serverOf{pid: rec.Server.PID}}
	return l.runtime.guarded(ctx, l.runtime.clientOf(rec), s, rec.UID, []string{"kill-session", "-t", s.ID})
}

// killAll kills the tree of an adopted program, including members of earlier checks that have since lost the environment by which they were identified.
func (l *link) killAll(rec *record) error {
	members, err := l.members(rec)
	if err != nil {
		return err
	}
	if err := rec.tree().Kill(); err != nil {
		return err
	}
	for _, p := range members {
		if err := procstat.Signal(p, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill process %d: %w", p.PID, err)
		}
	}
	return nil
}

// Forget implements runtime.Runtime. It kills the session if Berth created it; an adopted session only loses its mark.
func (r *Runtime) Forget(ctx context.Context, uid types.UID) error {
	if !runtime.ValidUID(uid) {
		return r.host.Forget(ctx, uid)
	}
	l := r.links.Acquire(uid)
	defer l.Unlock()
	rec, err := r.read(uid)
	if err != nil {
		return err
	}
	if rec != nil && rec.Adopted {
		if now := l.lookAdopted(ctx, rec); now.Alive() {
			return fmt.Errorf("forget %s: incarnation %d is still %s", uid, now.Number, now.Phase)
		}
	}
	if err := r.host.Forget(ctx, uid); err != nil {
		return err
	}
	if rec != nil {
		if err := r.endSession(ctx, rec); err != nil {
			return fmt.Errorf("forget %s: %w", uid, err)
		}
		if err := r.erase(uid); err != nil {
			return err
		}
	}
	l.kick()
	r.links.Forget(uid, l)
	return nil
}

// Release releases an adopted session: it removes the mark and the record, and nothing else. It returns an error for a session that is not adopted, and nil if
// the UID has no session.
func (r *Runtime) Release(ctx context.Context, uid types.UID) error {
	l := r.links.Acquire(uid)
	defer l.Unlock()
	rec, err := r.read(uid)
	if err != nil || rec == nil {
		return err
	}
	if !rec.Adopted {
		return fmt.Errorf("release %s: Berth started its process, so it cannot be released; stop it, or leave it running", uid)
	}
	if alive, err := procstat.Alive(rec.Server); err != nil || alive {
		if err == nil {
			err = r.endSession(ctx, rec)
		}
		if err != nil {
			return fmt.Errorf("release %s: %w", uid, err)
		}
	}
	if err := r.erase(uid); err != nil {
		return err
	}
	l.kick()
	r.links.Forget(uid, l)
	return nil
}
