// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
)

// pieceLength is the maximum length of one input to tmux, in bytes. The limit is needed because a message to the tmux server has at most 16 KiB.
const pieceLength = 4 << 10

// Type implements runtime.Terminals. No part of the input is interpreted as the name of a key.
func (r *Runtime) Type(ctx context.Context, uid types.UID, input []byte) error {
	rec, err := r.read(uid)
	if err != nil {
		return err
	}
	if rec == nil || !rec.Adopted {
		return r.host.Type(ctx, uid, input)
	}
	l := r.links.Acquire(uid)
	defer l.Unlock()
	if err := l.living(ctx, rec); err != nil {
		return fmt.Errorf("type into session %s: %w", rec.Session, err)
	}
	if err := runtime.NewTypist().Type(ctx, &paneWriter{ctx: ctx, client: r.client(rec.Socket), id: rec.PaneID}, input); err != nil {
		return fmt.Errorf("type into session %s: %w", rec.Session, err)
	}
	return nil
}

// paneWriter is an io.Writer that types into a tmux pane.
type paneWriter struct {
	ctx    context.Context
	client client
	id     string
}

func (p *paneWriter) Write(keys []byte) (int, error) {
	for _, command := range keyCommands(p.id, string(keys)) {
		if _, err := p.client.run(p.ctx, command); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}

// living returns an error if an adopted program is not running.
func (l *link) living(ctx context.Context, rec *record) error {
	switch now := l.lookAdopted(ctx, rec); {
	case now.Phase == facts.Unknown:
		return fmt.Errorf("%w: %s", runtime.ErrNotFound, now.Message)
	case now.Phase != facts.Running || now.LeaderExit != nil:
		return runtime.ErrNotFound
	}
	return nil
}

// keyCommands returns the tmux commands that type a text. Enter and Ctrl-C are sent by key name.
func keyCommands(pane, text string) [][]string {
	var commands [][]string
	for text != "" {
		switch at := strings.IndexAny(text, "\r\x03"); {
		case at == 0 && text[0] == '\r':
			commands = append(commands, []string{"send-keys", "-t", pane, "Enter"})
			text = text[1:]
		case at == 0:
			commands = append(commands, []string{"send-keys", "-t", pane, "C-c"})
			text = text[1:]
		default:
			if at < 0 {
				at = len(text)
			}
			for at = min(at, pieceLength); at < len(text) && !utf8.RuneStart(text[at]); {
				at-- // a character must not be split
			}
			commands = append(commands, []string{"send-keys", "-t", pane, "-l", "--", text[:at]})
			text = text[at:]
		}
	}
	return commands
}

// Capture implements runtime.Terminals.
func (r *Runtime) Capture(ctx context.Context, uid types.UID) (terminal.View, error) {
	rec, err := r.read(uid)
	if err != nil {
		return terminal.View{}, err
	}
	if rec == nil || rec.PaneID == "" {
		return terminal.View{}, fmt.Errorf("session of %s: %w", uid, runtime.ErrNotFound)
	}
	if alive, err := procstat.Alive(rec.Server); err != nil || !alive {
		return terminal.View{}, fmt.Errorf("session of %s: %w", uid, runtime.ErrNotFound)
	}
	const cursor = "#{cursor_x} #{cursor_y} #{cursor_flag} #{alternate_on}"
	out, err := r.client(rec.Socket).run(ctx, []string{"display-message", "-p", "-t", rec.PaneID, cursor}, []string{"capture-pane", "-p", "-t", rec.PaneID})
	if err != nil {
		if refused(err, "can't find") {
			err = fmt.Errorf("session of %s: %w", uid, runtime.ErrNotFound)
		}
		return terminal.View{}, err
	}
	place, text, _ := strings.Cut(out, "\n")
	var x, y, visible, alternate int
	if _, err := fmt.Sscan(place, &x, &y, &visible, &alternate); err != nil {
		return terminal.View{}, fmt.Errorf("session of %s: invalid position %q of the cursor: %w", uid, place, err)
	}
	return terminal.NewView(text, x, y, visible == 0, alternate != 0), nil
}

// Input implements runtime.Terminals. It returns the zero value for an adopted session, because tmux holds that terminal.
func (r *Runtime) Input(ctx context.Context, uid types.UID) (facts.Input, error) {
	rec, err := r.read(uid)
	if err != nil || rec != nil && rec.Adopted {
		return facts.Input{}, err
	}
	return r.host.Input(ctx, uid)
}

// Place returns the location of the session of a UID. It returns false if the UID has no session.
func (r *Runtime) Place(uid types.UID) (Place, bool) {
	rec, err := r.read(uid)
	if err != nil || rec == nil {
		return Place{}, false
	}
	return Place{Socket: rec.Socket, Session: rec.Session, ID: rec.SessionID, Adopted: rec.Adopted}, true
}

// AttachCommand returns a shell command that attaches to the session of a UID, or "" if the UID has no session.
func (r *Runtime) AttachCommand(uid types.UID) string {
	rec, err := r.read(uid)
	if err != nil || rec == nil {
		return ""
	}
	command := "tmux -L " + printable.Quote(rec.Socket) + " attach-session -t " + target(rec.Session)
	if dir := os.Getenv("TMUX_TMPDIR"); dir != "" {
		command = "TMUX_TMPDIR=" + printable.Quote(dir) + " " + command
	}
	return command
}
