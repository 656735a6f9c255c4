// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/shim"
)

// makeSession creates a session with a window, and marks it in the same tmux call.
func (r *Runtime) makeSession(ctx context.Context, rec *record) error {
	rec.Made = true
	if err := r.write(rec); err != nil {
		return err
	}
	target := "=" + rec.Session + ":"
	commands := [][]string{append([]string{
		"new-session", "-d", "-P", "-F", placeFormat, "-s", rec.Session, "-x", strconv.Itoa(int(rec.Columns)), "-y", strconv.Itoa(int(rec.Rows)),
	}, r.windowCommand(rec)...)}
	commands = append(commands, r.marks(rec, target)...)
	commands = append(commands, windowMarks(target)...)
	commands = append(commands, []string{"set-option", "-t", target, "destroy-unattached", "off"})
	err := r.openWindow(ctx, rec, commands)
	if refused(err, "duplicate session") {
		rec.Made = false
		return errors.Join(err, r.erase(rec.UID))
	}
	return err
}

// reuse opens a window in a session that has Berth's mark, unless the session already has a window of Berth.
func (r *Runtime) reuse(ctx context.Context, rec *record, s *Session) error {
	rec.at(r.boot, s, s.window())
	target := s.ID + ":"
	if rec.Pane.PID == 0 {
		if err := r.write(rec); err != nil {
			return err
		}
		commands := [][]string{append([]string{"new-window", "-P", "-F", placeFormat, "-t", target}, r.windowCommand(rec)...)}
		return r.openWindow(ctx, rec, append(append(commands, windowMarks(target)...), r.marks(rec, target)...))
	}
	if err := r.write(rec); err != nil {
		return err
	}
	_, err := r.clientOf(rec).run(ctx, r.marks(rec, target)...)
	return err
}

const placeFormat = "#{session_id}:#{pane_id}:#{pane_pid}:#{pid}:#{socket_path}"

// openWindow makes tmux open a pane, and records its location.
func (r *Runtime) openWindow(ctx context.Context, rec *record, commands [][]string) error {
	c := r.client(rec.Socket)
	var out string
	// new-session starts a server if there is none. A server that is exiting must be gone first.
	err := c.persist(ctx, func() (err error) {
		if out, err = c.run(ctx, commands...); errors.Is(err, errNoServer) && commands[0][0] == "new-session" {
			err = errLeaving // new-session fails this way only if the server exited after tmux found it
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("open the window: %w", err)
	}
	f := strings.SplitN(strings.TrimSpace(out), ":", 5)
	if len(f) < 5 {
		return fmt.Errorf("unexpected response %q of tmux to the creation of a window", out)
	}
	rec.at(r.boot, &Session{ID: f[0], server: serverOf{pid: number(f[3]), socket: f[4]}}, &pane{id: f[1], pid: number(f[2])})
	return r.write(rec)
}

// windowCommand returns the arguments that follow the options of new-session and new-window.
func (r *Runtime) windowCommand(rec *record) []string {
	dir := rec.Dir
	if dir == "" {
		dir, _ = os.UserHomeDir()
	}
	// -c sets the default directory of panes that users open in the session.
	return append([]string{"-c", format(dir)}, "--", r.options.Shim, shim.Window, r.host.Directory(rec.UID), rec.Name)
}

// marks returns the commands that mark the owner of a session.
func (r *Runtime) marks(rec *record, target string) [][]string {
	return [][]string{
		{"set-option", "-t", target, markUID, string(rec.UID)},
		{"set-option", "-t", target, markInstall, r.install},
		{"set-option", "-t", target, markIncarnation, strconv.FormatInt(rec.Incarnation, 10)},
	}
}

// windowMarks returns the commands that mark a pane as a window of Berth, and make tmux close it when its program exits, whatever the user has configured.
func windowMarks(target string) [][]string {
	return [][]string{
		{"set-option", "-p", "-t", target, markWindow, "1"},
		{"set-option", "-p", "-t", target, "remain-on-exit", "off"},
	}
}

// endSession kills the session of a UID if Berth created it. In any other session it kills only Berth's window and removes the mark; panes of users remain.
func (r *Runtime) endSession(ctx context.Context, rec *record) error {
	c := r.clientOf(rec)
	all, err := c.sessions(ctx)
	if err != nil {
		return err
	}
	s, _ := of(all, rec.UID, r.install, "")
	if s == nil {
		return nil
	}
	if rec.Made {
		return r.guarded(ctx, c, s, rec.UID, []string{"kill-session", "-t", s.ID})
	}
	commands := unmark(s)
	if p := s.window(); p != nil {
		commands = append(commands, []string{"kill-pane", "-t", p.id})
	}
	return r.guarded(ctx, c, s, rec.UID, commands...)
}

func unmark(s *Session) [][]string {
	var commands [][]string
	for _, mark := range []string{markUID, markInstall, markIncarnation} {
		commands = append(commands, []string{"set-option", "-u", "-t", s.ID + ":", mark})
	}
	return commands
}

// errChanged is the error for a session that has changed since it was checked.
var errChanged = errors.New("the session has changed since it was inspected")

// guarded executes commands if the session still exists on the same server and has the mark of uid. It returns nil if the session is gone or has changed.
func (r *Runtime) guarded(ctx context.Context, c client, s *Session, uid types.UID, commands ...[]string) error {
	err := r.compare(ctx, c, s, uid, commands...)
	if errors.Is(err, errNoServer) || errors.Is(err, errLeaving) || errors.Is(err, errChanged) || refused(err, "can't find") {
		return nil
	}
	return err
}

// compare does the same as guarded, but returns an error if the session is gone or has changed.
func (r *Runtime) compare(ctx context.Context, c client, s *Session, uid types.UID, commands ...[]string) error {
	parts := make([]string, 0, len(commands)+1)
	parts = append(parts, sequence("display-message", "-p", "done"))
	for _, command := range commands {
		parts = append(parts, sequence(command...))
	}
	same := fmt.Sprintf("#{&&:#{==:#{pid},%d},#{==:#{%s},%s}}", s.server.pid, markUID, uid)
	out, err := c.run(ctx, []string{"if-shell", "-F", "-t", s.ID + ":", same, strings.Join(parts, " ; "), sequence("display-message", "-p", "changed")})
	if err == nil && strings.TrimSpace(out) != "done" {
		err = errChanged
	}
	return err
}
