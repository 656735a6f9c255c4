// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
)

// adoptable returns the session that a start has to adopt, or nil if there is none. It chooses among all sessions of the server whose sessions may be adopted.
func (r *Runtime) adoptable(uid types.UID, config sessionConfig, rec *record, all []Session) *Session {
	own, named := of(all, uid, r.install, config.Session)
	switch {
	case own != nil && config.Adopt != adoptNever && claimedHalf(own, rec):
		return own
	case own == nil && named != nil && !r.halfMade(uid, named):
		return named
	}
	return nil // a session that the object has already has no other program to adopt: its other panes belong to users
}

// sessions returns the sessions on the server of a configuration on which Berth creates sessions, and on the one whose sessions may be adopted.
func (r *Runtime) sessions(ctx context.Context, config sessionConfig) (ours, theirs []Session, err error) {
	if ours, err = r.client(config.Socket).sessions(ctx); err != nil || !r.separate() {
		return ours, ours, err
	}
	if config.Adopt != adoptNever {
		theirs, err = r.adoptionClient(config.Socket).sessions(ctx)
	}
	return ours, theirs, err
}

// mayAdopt returns an error if an existing session must not be adopted. A caller that adopts the session afterwards must hold the claiming lock from before
// this check until it has adopted the session.
func (r *Runtime) mayAdopt(uid types.UID, config sessionConfig, s *Session) error {
	where := fmt.Sprintf("the tmux session %q on socket %s", config.Session, config.Socket)
	p := s.program()
	switch {
	case s.UID != "" && s.UID != uid && s.install != r.install:
		return taken("%s belongs to object %s of another Berth installation; choose another name, or stop that object", where, s.UID)
	case s.UID != "" && s.UID != uid:
		if rec, err := r.read(s.UID); err != nil || rec != nil {
			return taken("%s already belongs to object %s; choose another name", where, s.UID)
		}
	}
	switch {
	case config.Adopt == adoptNever:
		return taken("%s already exists and does not belong to Berth; choose another name, end the session (tmux -L %s kill-session -t %s), or permit its adoption", where, config.Socket, target(config.Session))
	case p == nil:
		return taken("%s has no running program to adopt; end the session (tmux -L %s kill-session -t %s) or choose another name", where, config.Socket, target(config.Session))
	case inside(s.server, p.id, p.pid):
		return taken("%s is the session in which berth itself is running; run berth elsewhere or choose another session", where)
	}
	if err := r.mayUse(s, p); err != nil {
		return taken("%s must not be adopted: %v", where, err)
	}
	return nil
}

// mayUse checks whether a session and one of its programs belong to the user that programs run as. It returns nil for a program that has exited.
func (r *Runtime) mayUse(s *Session, p *pane) error {
	server, err := procstat.Identify(s.server.pid)
	if err != nil {
		return fmt.Errorf("identify the tmux server: %w", err)
	}
	program, err := procstat.Identify(p.pid)
	if errors.Is(err, procstat.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("identify the program: %w", err)
	}
	return r.mayControl(server, program)
}

// inside reports whether the current process runs in the pane with this ID, or is a descendant of process pid.
func inside(server serverOf, id string, pid int) bool {
	if os.Getenv("TMUX_PANE") == id && strings.HasPrefix(os.Getenv("TMUX"), fmt.Sprintf("%s,%d,", server.socket, server.pid)) {
		return true
	}
	return slices.Contains(procstat.Ancestors(os.Getpid()), pid)
}

// adopt adopts the program in a session: it marks the session, unless the mark has changed since the check, and writes the record. The caller holds the
// claiming lock.
func (r *Runtime) adopt(ctx context.Context, p runtime.Process, rec *record, s *Session) error {
	program := s.program()
	if program == nil {
		return taken("the program in the tmux session %q just exited", rec.Session)
	}
	rec.at(r.boot, s, program)
	if rec.Pane.PID == 0 || rec.Server.PID == 0 {
		return taken("the program in the tmux session %q just exited", rec.Session)
	}
	if err := r.mayControl(rec.Server, rec.Pane); err != nil { // checked again with the recorded identities, because a PID may be reused
		return taken("the tmux session %q on socket %s must not be adopted: %v", rec.Session, rec.Socket, err)
	}
	rec.Adopted, rec.Made, rec.StopSignal, rec.StartedAt = true, false, p.StopSignal, startedAt(rec.Pane)
	if err := r.compare(ctx, r.clientOf(rec), s, s.UID, r.marks(rec, s.ID+":")...); err != nil {
		if errors.Is(err, errChanged) || refused(err, "can't find") {
			return taken("the tmux session %q on socket %s was just ended, or claimed by another program", rec.Session, rec.Socket)
		}
		return fmt.Errorf("mark the session: %w", err)
	}
	return r.write(rec)
}

// startedAt returns the start time of a process, with a resolution of one clock tick.
func startedAt(p procstat.Process) time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Now().UTC().Round(0)
	}
	age := time.Duration(now.Nano()) - time.Duration(p.Ticks)*(time.Second/procstat.TicksPerSecond)
	return time.Now().Add(-max(age, 0)).UTC().Round(0)
}

const (
	// noticeAfter is how long tmux may take to notice that a program has exited.
	noticeAfter = 2 * time.Second
	noticeEvery = 10 * time.Millisecond
)

// lookAdopted determines the state of an adopted program. It records an exit, so that later calls return the same result. The caller holds the lock of l.
func (l *link) lookAdopted(ctx context.Context, rec *record) facts.Incarnation {
	if rec.Exit != nil {
		return rec.incarnation(facts.Exited)
	}
	if rec.BootID != l.runtime.boot {
		return l.settle(rec, unseen("the machine was restarted while the program was running"))
	}
	for deadline := time.Now().Add(noticeAfter); ; {
		now, exit, again := l.judge(ctx, rec)
		switch {
		case exit != nil:
			return l.rest(rec, exit)
		case !again:
			return now
		case time.Now().After(deadline):
			return unknown(rec, "tmux reports a running program, but process %d does not exist", rec.Pane.PID)
		}
		select {
		case <-ctx.Done():
			return unknown(rec, "the check was interrupted: %v", ctx.Err())
		case <-time.After(noticeEvery):
		}
	}
}

// judge compares the report of tmux with the process table. If judge returns a non-nil exit, the program has exited, and the caller must ignore the other
// results. If again is true, the process does not exist any more, but tmux has not noticed this yet, and the caller must call judge again. Otherwise now is the
// incarnation to report.
func (l *link) judge(ctx context.Context, rec *record) (now facts.Incarnation, exit *facts.Exit, again bool) {
	leader, err := procstat.Alive(rec.Pane)
	if err != nil {
		return unknown(rec, "cannot inspect the program: %v", err), nil, false
	}
	server, err := procstat.Alive(rec.Server)
	switch {
	case err != nil:
		return unknown(rec, "cannot inspect the tmux server: %v", err), nil, false
	case !server && leader:
		return unknown(rec, "the tmux server has exited, but the program (process %d) is still running without a terminal; end the program, or stop the object", rec.Pane.PID), nil, false
	case !server:
		return now, unseen("the exit status is unknown, because the tmux server has exited"), false
	case leader: // a program can change its user, and this manager may run programs as another user than the one that adopted the session
		if err := l.runtime.mayControl(rec.Server, rec.Pane); err != nil {
			return unknown(rec, "Berth does not control this session: %v; delete the object to release the session", err), nil, false
		}
	}
	return l.judgePane(ctx, rec, leader)
}

// judgePane is the part of judge for a tmux server that runs. leader states whether the program is alive.
func (l *link) judgePane(ctx context.Context, rec *record, leader bool) (now facts.Incarnation, exit *facts.Exit, again bool) {
	all, err := l.runtime.clientOf(rec).sessions(ctx)
	if err != nil {
		return unknown(rec, "cannot inspect the session: %v", err), nil, false
	}
	s, p := find(all, rec)
	if s != nil && s.Activity.After(l.active) {
		l.active = s.Activity
	}
	switch {
	case p == nil && leader:
		return unknown(rec, "the session or pane was closed, but the program (process %d) is still running without a terminal; end the program, or stop the object", rec.Pane.PID), nil, false
	case p == nil:
		return now, unseen("the exit status is unknown, because the session ended with the program"), false
	case p.pid != rec.Pane.PID:
		return now, unseen("another program was started in the pane"), leader
	case p.dead:
		return now, exitOfPane(p), leader
	case leader:
		return rec.incarnation(facts.Running), nil, false
	}
	return now, nil, true
}

// find returns the pane of a record and the session that contains the pane now. It returns nil for both if the pane is gone.
func find(all []Session, rec *record) (*Session, *pane) {
	for i := range all {
		if all[i].server.pid != rec.Server.PID {
			return nil, nil // another server uses the socket now
		}
		for j := range all[i].panes {
			if p := &all[i].panes[j]; p.id == rec.PaneID {
				return &all[i], p
			}
		}
	}
	return nil, nil
}

func unknown(rec *record, format string, args ...any) facts.Incarnation {
	now := rec.incarnation(facts.Unknown)
	now.Message = fmt.Sprintf(format, args...)
	return now
}

func unseen(message string) *facts.Exit {
	return &facts.Exit{FinishedAt: time.Now().UTC().Round(0), Message: message}
}

// rest handles a program that has exited. The incarnation counts as exited only after the processes that it left behind have exited too.
func (l *link) rest(rec *record, exit *facts.Exit) facts.Incarnation {
	members, err := l.members(rec)
	if err != nil {
		return unknown(rec, "cannot inspect the processes that the program left behind: %v", err)
	}
	if len(members) == 0 {
		if rec.LeaderExit != nil {
			exit = rec.LeaderExit
		}
		return l.settle(rec, exit)
	}
	if rec.LeaderExit == nil {
		rec.LeaderExit = exit
		if err := l.runtime.write(rec); err != nil {
			l.runtime.log.Error(err, "Cannot record the exit of an adopted program", "uid", l.uid)
		}
	}
	return rec.incarnation(facts.Running)
}

// members returns the processes of an adopted tree that have not exited, including those that are exiting and have already lost their environment. The caller
// holds the lock of l.
func (l *link) members(rec *record) ([]procstat.Process, error) {
	found, err := rec.tree().Members()
	if err != nil {
		return nil, err
	}
	for _, p := range l.met {
		if slices.Contains(found, p) {
			continue
		}
		switch alive, err := procstat.Alive(p); {
		case err != nil:
			return nil, err
		case alive:
			found = append(found, p)
		}
	}
	l.met = found
	return found, nil
}

// settle records the exit, so that later calls return the same result.
func (l *link) settle(rec *record, exit *facts.Exit) facts.Incarnation {
	rec.Exit, rec.LeaderExit = exit, nil
	if err := l.runtime.write(rec); err != nil {
		l.runtime.log.Error(err, "Cannot record the exit of an adopted program", "uid", l.uid)
	}
	return rec.incarnation(facts.Exited)
}
