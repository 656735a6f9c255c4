// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// User options of tmux with which sessions and panes are marked.
const (
	markUID         = "@berth_uid"         // of a session: the UID of its owner
	markIncarnation = "@berth_incarnation" // of a session: its last incarnation
	markInstall     = "@berth_install"     // of a session: the install that set the mark
	markWindow      = "@berth_window"      // of a pane: a window on a terminal that a shim holds
)

// Session is a session as reported by tmux.
type Session struct {
	ID   string // such as $3; not reused until the tmux server exits
	Name string
	// Created is when the session was created; Activity is the time of the last input or output. Both have a resolution of 1 s.
	Created, Activity time.Time
	// Attached is the number of attached clients.
	Attached int
	// PanePID is the process ID of the program in the pane, and Command is the command in its foreground. Of several panes, both describe the oldest.
	PanePID int64
	Command string
	// UID is the UID of the object in the session's mark; empty if the session has no mark.
	UID types.UID

	install string
	panes   []pane
	server  serverOf
}

// Place is the location of the session of a UID.
type Place struct {
	// Socket and Session are the names of the socket and the session. ID is tmux's own name, such as $3; empty before the session was created.
	Socket, Session, ID string
	// Adopted is true if the session existed before Berth used it, so that the incarnation is the program in it.
	Adopted bool
}

type pane struct {
	id     string // such as %5
	pid    int
	window bool // a window of Berth
	dead   bool
	status string // exit status, if tmux knows it
	signal string
}

type serverOf struct {
	pid    int
	socket string // the path
}

// fields are requested for every pane, separated by colons. A program chooses the name of its command, and everyone with access to the server can set the
// marks. In these fields tmux therefore replaces the characters that could end a field or a line, so that no program can inject a line. (#{q:} does not quote a
// line feed.)
var fields = []string{
	"session_id", "session_name", "session_created", "session_activity", "window_activity", "session_attached", "pane_id", "pane_pid", "pane_dead",
	"pane_dead_status", "pane_dead_signal", "pid", "socket_path", word + markUID, word + markInstall, word + markWindow, line + "pane_current_command",
}

// word and line are modifiers of a field. word replaces all characters except letters, digits, dots, underscores and dashes; line replaces control characters.
// The name of a session needs no modifier, because tmux allows no colon in a session name and escapes control characters.
const (
	word = "s/[^A-Za-z0-9._-]/?/:"
	line = "s/[\x01-\x1f\x7f]/?/:"
)

func listFormat() string { return "#{" + strings.Join(fields, "}:#{") + "}" }

// sessions returns all sessions of a server, oldest first, with one tmux call. It returns none if no server listens on the socket.
func (c client) sessions(ctx context.Context) ([]Session, error) {
	var out string
	err := c.persist(ctx, func() (err error) {
		out, err = c.run(ctx, []string{"list-panes", "-a", "-F", listFormat()})
		return err
	})
	if errors.Is(err, errNoServer) || refused(err, "no current target") { // no server, or one without a session
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the sessions: %w", err)
	}
	return parseSessions(out), nil
}

// parseSessions parses lines in the format of listFormat. It ignores lines that tmux cannot have written, so that such a line never leads to an adoption.
func parseSessions(out string) []Session {
	var all []Session
	index := map[string]int{}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", len(fields))
		if !plausible(f) {
			continue
		}
		at, known := index[f[0]]
		if !known {
			at = len(all)
			index[f[0]] = at
			all = append(all, Session{
				ID: f[0], Name: f[1], Created: second(f[2]), Activity: second(f[3]), Attached: number(f[5]), UID: types.UID(f[13]), install: f[14],
				server: serverOf{pid: number(f[11]), socket: f[12]},
			})
		}
		s := &all[at]
		if active := second(f[4]); active.After(s.Activity) {
			s.Activity = active
		}
		p := pane{id: f[6], pid: number(f[7]), dead: f[8] == "1", status: f[9], signal: f[10], window: f[15] != ""}
		s.panes = append(s.panes, p)
		if oldest := s.oldest(func(pane) bool { return true }); oldest.id == p.id {
			s.PanePID, s.Command = int64(p.pid), f[16]
		}
	}
	slices.SortFunc(all, func(a, b Session) int { return ordinal(a.ID) - ordinal(b.ID) })
	return all
}

// plausible reports whether tmux can have written these fields.
func plausible(f []string) bool {
	if len(f) != len(fields) || f[0] == "" || f[0][0] != '$' || f[6] == "" || f[6][0] != '%' || f[8] != "0" && f[8] != "1" {
		return false
	}
	for _, digits := range []string{f[0][1:], f[2], f[5], f[6][1:], f[7], f[11]} {
		if n, err := strconv.Atoi(digits); err != nil || n < 0 {
			return false
		}
	}
	return number(f[7]) > 0 && number(f[11]) > 0 && f[1] != ""
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// ordinal returns the number in an ID. tmux assigns these numbers in increasing order.
func ordinal(id string) int {
	if id == "" {
		return 0
	}
	return number(id[1:])
}

func second(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n == 0 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

// oldest returns the oldest pane that the given function accepts, or nil.
func (s *Session) oldest(is func(pane) bool) *pane {
	var found *pane
	for i := range s.panes {
		p := &s.panes[i]
		if is(*p) && (found == nil || ordinal(p.id) < ordinal(found.id)) {
			found = p
		}
	}
	return found
}

// program returns the oldest pane whose program is running and is not a window of Berth, or nil.
func (s *Session) program() *pane {
	return s.oldest(func(p pane) bool { return !p.window && !p.dead })
}

// window returns the oldest pane that is a window of Berth and whose program is running, or nil.
func (s *Session) window() *pane {
	return s.oldest(func(p pane) bool { return p.window && !p.dead })
}

// of returns the session that the install has marked for uid, and the session with the given name. Each of them is nil if there is no such session.
func of(all []Session, uid types.UID, install, name string) (own, named *Session) {
	for i := range all {
		s := &all[i]
		if s.UID == uid && s.install == install && own == nil {
			own = s
		}
		if s.Name == name {
			named = s
		}
	}
	return own, named
}
