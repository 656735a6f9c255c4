// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Start implements runtime.Runtime. It claims the name of the session before it starts the process, so that no process starts if the name is taken. It returns
// a *facts.StartError if the session cannot be started or adopted now; see the Reason constants.
func (r *Runtime) Start(ctx context.Context, p runtime.Process) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Incarnation <= 0 || !runtime.ValidUID(p.UID) {
		return fmt.Errorf("start %s: a UID and an incarnation greater than 0 are required", p.Name)
	}
	l := r.links.Acquire(p.UID)
	defer l.Unlock()
	if err := l.start(ctx, p); err != nil {
		return fmt.Errorf("start incarnation %d of %s: %w", p.Incarnation, p.Name, err)
	}
	return nil
}

func (l *link) start(ctx context.Context, p runtime.Process) error {
	r := l.runtime
	if r.Lifetime().Err() != nil {
		return errClosed
	}
	config, err := parse(p, r.options.Socket)
	if err != nil {
		return err
	}
	rec, err := r.read(p.UID)
	if err != nil {
		return err
	}
	if started, err := l.mayStart(ctx, p, rec); started || err != nil {
		return err
	}
	adopted, err := l.claim(ctx, p, config, rec)
	if err != nil || adopted {
		l.met, l.leftovers, l.phase = nil, shim.Leftovers{}, ""
		l.follow()
		return err
	}
	if err := r.host.Start(ctx, p); err != nil {
		return err
	}
	l.follow()
	return nil
}

// mayStart returns an error if p must not be started. It returns true if p was already started, so that nothing is left to do.
func (l *link) mayStart(ctx context.Context, p runtime.Process, rec *record) (started bool, err error) {
	r := l.runtime
	if rec != nil && rec.Adopted {
		switch {
		case p.Incarnation < rec.Incarnation:
			return false, fmt.Errorf("%w: %d", runtime.ErrStale, rec.Incarnation)
		case p.Incarnation == rec.Incarnation:
			return true, nil
		}
		if now := l.lookAdopted(ctx, rec); now.Alive() {
			return false, fmt.Errorf("%w: incarnation %d is %s; stop it first", runtime.ErrOldAlive, now.Number, now.Phase)
		}
	}
	held, err := runtime.Newest(ctx, r.host, p.UID)
	if err != nil || held == nil {
		return false, err
	}
	if held.Number >= p.Incarnation || held.Alive() {
		if err := r.host.Start(ctx, p); err != nil { // the host returns the exact reason
			return false, err
		}
		l.follow()
		return true, nil
	}
	return false, nil
}

// claim acquires the session for an incarnation, and reports whether it adopted the program in the session. If so, the caller starts no process.
func (l *link) claim(ctx context.Context, p runtime.Process, config sessionConfig, rec *record) (adopted bool, err error) {
	r := l.runtime
	if rec != nil && (rec.Socket != config.Socket || rec.Session != config.Session) {
		if err := r.endSession(ctx, rec); err != nil {
			return false, fmt.Errorf("end the session of the previous incarnation: %w", err)
		}
		rec = nil
	}
	next := &record{
		UID: p.UID, Name: p.Name, Incarnation: p.Incarnation, Socket: config.Socket, Session: config.Session, Dir: p.Dir, Columns: config.Columns, Rows: config.Rows,
		Made: rec != nil && rec.Made, Origin: p.Origin,
	}
	if rec == nil && config.Adopt == adoptNever {
		// Usually the name is free, and creating the session is the quickest check.
		if err = r.makeSession(ctx, next); !refused(err, "duplicate session") {
			return false, err
		}
	}
	return r.claimAmong(ctx, p, config, rec, next)
}

// claimAmong claims an existing session or creates one. It holds the claiming lock of the socket: otherwise another adoption could check a session before this
// one has recorded its claim.
func (r *Runtime) claimAmong(ctx context.Context, p runtime.Process, config sessionConfig, rec, next *record) (adopted bool, err error) {
	r.claims.LockKey(config.Socket)
	defer func() { _ = r.claims.UnlockKey(config.Socket) }()
	ours, theirs, err := r.sessions(ctx, config)
	if err != nil {
		return false, err
	}
	if s := r.adoptable(p.UID, config, rec, theirs); s != nil {
		if err := r.mayAdopt(p.UID, config, s); err != nil {
			return false, err
		}
		return true, r.adopt(ctx, p, next, s)
	}
	own, named := of(ours, p.UID, r.install, config.Session)
	if config.Adopt == adoptRequired && (own == nil || !next.Made) {
		return false, r.missing(config)
	}
	if r.separate() && rec != nil && rec.Adopted { // the next incarnation gets a session on the other server
		if err := r.endSession(ctx, rec); err != nil {
			return false, fmt.Errorf("release the session of the previous incarnation: %w", err)
		}
	}
	switch {
	case own != nil:
		return false, r.reuse(ctx, next, own)
	case named != nil && !r.halfMade(p.UID, named):
		return false, r.notOurs(config)
	}
	return false, r.replace(ctx, config, next, named)
}

// replace creates a session. If half is not nil, it is a session of the same name that was created only partly, and replace kills it first.
func (r *Runtime) replace(ctx context.Context, config sessionConfig, next *record, half *Session) error {
	if half != nil {
		if err := r.guarded(ctx, r.client(config.Socket), half, half.UID, []string{"kill-session", "-t", half.ID}); err != nil {
			return err
		}
	}
	err := r.makeSession(ctx, next)
	if refused(err, "duplicate session") {
		return taken("the tmux session %q on socket %s was just created by another program", config.Session, config.Socket)
	}
	return err
}

// claimedHalf reports whether a session was marked by a manager that crashed before it recorded the adoption.
func claimedHalf(own *Session, rec *record) bool {
	return own.window() == nil && own.program() != nil && (rec == nil || !rec.Made && !rec.Adopted)
}

// halfMade reports whether an unmarked session contains only a window on this UID: the manager that created it was killed before tmux executed all commands.
func (r *Runtime) halfMade(uid types.UID, s *Session) bool {
	if s.UID != "" || len(s.panes) != 1 {
		return false
	}
	line, err := os.ReadFile("/proc/" + strconv.Itoa(s.panes[0].pid) + "/cmdline")
	return err == nil && bytes.Contains(line, []byte("\x00"+shim.Window+"\x00"+r.host.Directory(uid)+"\x00"))
}

// CheckProgram implements runtime.Inspection.
func (r *Runtime) CheckProgram(p runtime.Process) (failure *facts.StartError, known bool) {
	return r.host.CheckProgram(p)
}

// Check returns the *facts.StartError with which Start would reject p now, or nil if Start would not. It changes nothing.
func (r *Runtime) Check(ctx context.Context, p runtime.Process) error {
	config, err := parse(p, r.options.Socket)
	if err != nil {
		return err
	}
	rec, err := r.read(p.UID)
	if err != nil {
		return err
	}
	ours, theirs, err := r.sessions(ctx, config)
	if err != nil {
		return err
	}
	own, named := of(ours, p.UID, r.install, config.Session)
	if err := r.mayFollow(p, config, rec, theirs); err != nil {
		return err
	}
	s := r.adoptable(p.UID, config, rec, theirs)
	switch {
	case own != nil || named != nil && r.halfMade(p.UID, named) || rec != nil && (rec.Made || rec.adopts()):
		return nil
	case s != nil:
		return r.mayAdopt(p.UID, config, s)
	case config.Adopt == adoptRequired:
		return r.missing(config)
	case named != nil:
		return r.notOurs(config)
	}
	return nil
}

// adopts reports whether the program of a record was adopted and has not exited as far as the record shows.
func (rec *record) adopts() bool { return rec != nil && rec.Adopted && rec.Exit == nil }

// mayFollow returns an error if p would follow an adopted program that runs, and could not be started once that program has ended.
func (r *Runtime) mayFollow(p runtime.Process, config sessionConfig, rec *record, theirs []Session) error {
	adopted, _ := of(theirs, p.UID, r.install, config.Session)
	if adopted == nil || config.Adopt != adoptRequired || !rec.adopts() || p.Incarnation <= rec.Incarnation {
		return nil
	}
	return &facts.StartError{Reason: v1alpha1.ReasonNothingToAdopt, Message: fmt.Sprintf("the tmux session %q was adopted, and with the adoption Required "+
		"Berth starts no other program after its program has ended; to end it anyway, stop the object", config.Session)}
}

func taken(format string, args ...any) error {
	return &facts.StartError{Reason: v1alpha1.ReasonSessionTaken, Message: fmt.Sprintf(format, args...)}
}

// notOurs is the error for a session of the manager's user, if Berth adopts only sessions of another user.
func (r *Runtime) notOurs(config sessionConfig) error {
	return taken("the tmux session %q already exists on socket %s of user %s, and Berth adopts only sessions of user %s; choose another name, or end the session (tmux -L %s kill-session -t %s)",
		config.Session, config.Socket, userName(uint32(os.Geteuid())), r.options.RunAs.Name, config.Socket, target(config.Session)) //nolint:gosec // a UID has 32 bits
}

func (r *Runtime) missing(config sessionConfig) error {
	socket := config.Socket
	if r.separate() {
		socket += " of user " + r.options.RunAs.Name
	}
	return &facts.StartError{Reason: v1alpha1.ReasonNothingToAdopt, Message: fmt.Sprintf(
		"no tmux session %q with a running program exists on socket %s, and adoption is Required; start the session, or set adoption to IfExists", config.Session, socket)}
}
