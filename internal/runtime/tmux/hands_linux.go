// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/printable"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/internal/terminal"
)

// pieceLength is the maximum length of one input to tmux, in bytes. A message to the tmux server has at most 16 KiB, and each byte of input takes three.
const pieceLength = 4 << 10

// Type implements runtime.Terminals. No part of the input is interpreted as the name of a key.
func (r *Runtime) Type(ctx context.Context, uid types.UID, strokes runtime.Keystrokes) error {
	rec, err := r.read(uid)
	if err != nil {
		return err
	}
	if rec == nil || !rec.Adopted {
		return r.host.Type(ctx, uid, strokes)
	}
	l := r.links.Acquire(uid)
	defer l.Unlock()
	if err := l.living(ctx, rec); err != nil {
		return fmt.Errorf("type into session %s: %w", rec.Session, err)
	}
	if err := runtime.NewTypist().Type(ctx, &paneWriter{ctx: ctx, runtime: r, rec: rec}, strokes); err != nil {
		return fmt.Errorf("type into session %s: %w", rec.Session, err)
	}
	return nil
}

// paneWriter is an io.Writer that types into the tmux pane of a record.
type paneWriter struct {
	ctx     context.Context
	runtime *Runtime
	rec     *record
}

func (p *paneWriter) Write(keys []byte) (int, error) {
	for piece := range slices.Chunk(keys, pieceLength) {
		if err := p.runtime.mayType(p.rec.Server, p.rec.Pane); err != nil {
			return 0, err
		}
		if _, err := p.runtime.clientOf(p.rec).run(p.ctx, keyCommands(p.rec.PaneID, piece)...); err != nil {
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

// keyCommands returns the tmux commands that write bytes to the terminal of a pane. In copy mode and other modes of tmux, keys would run commands of tmux;
// therefore the first command leaves these modes.
func keyCommands(pane string, keys []byte) [][]string {
	send := []string{"send-keys", "-t", pane, "-H"}
	for _, key := range keys {
		send = append(send, hex.EncodeToString([]byte{key}))
	}
	return [][]string{{"copy-mode", "-q", "-t", pane}, send}
}

// Capture implements runtime.Terminals. While a client with another size than the window owns the size of the terminal, the window does not show the terminal as
// the program has drawn it; Capture then returns runtime.ErrNotFound.
func (r *Runtime) Capture(ctx context.Context, uid types.UID) (terminal.View, error) {
	rec, err := r.read(uid)
	if err != nil {
		return terminal.View{}, err
	}
	view, shown, err := r.capture(ctx, uid, rec)
	if err != nil || rec.Adopted {
		return view, err
	}
	if size, err := r.host.Size(ctx, uid); err == nil && size != shown {
		return terminal.View{}, fmt.Errorf("session of %s: the terminal does not have the size of the window: %w", uid, runtime.ErrNotFound)
	}
	return view, nil
}

// Size implements runtime.Terminals.
func (r *Runtime) Size(ctx context.Context, uid types.UID) (runtime.Terminal, error) {
	rec, err := r.read(uid)
	if err != nil {
		return runtime.Terminal{}, err
	}
	if rec == nil || !rec.Adopted {
		return r.host.Size(ctx, uid)
	}
	_, size, err := r.capture(ctx, uid, rec)
	return size, err
}

// capture returns the content and the size of the pane of a record, which may be nil.
func (r *Runtime) capture(ctx context.Context, uid types.UID, rec *record) (view terminal.View, size runtime.Terminal, err error) {
	if err := r.mayRead(rec); err != nil {
		return view, size, fmt.Errorf("session of %s: %w", uid, err)
	}
	const state = "#{cursor_x} #{cursor_y} #{cursor_flag} #{alternate_on} #{pane_width} #{pane_height}"
	out, err := r.clientOf(rec).run(ctx, []string{"display-message", "-p", "-t", rec.PaneID, state}, []string{"capture-pane", "-p", "-t", rec.PaneID})
	if err != nil {
		if refused(err, "can't find") {
			err = fmt.Errorf("session of %s: %w", uid, runtime.ErrNotFound)
		}
		return view, size, err
	}
	place, text, _ := strings.Cut(out, "\n")
	var x, y, visible, alternate int
	if _, err := fmt.Sscan(place, &x, &y, &visible, &alternate, &size.Columns, &size.Rows); err != nil {
		return view, size, fmt.Errorf("session of %s: invalid state %q of the pane: %w", uid, place, err)
	}
	return terminal.NewView(text, x, y, visible == 0, alternate != 0), size, nil
}

// mayRead returns an error if the pane of a record, which may be nil, does not exist or must not be read.
func (r *Runtime) mayRead(rec *record) error {
	if rec == nil || rec.PaneID == "" {
		return runtime.ErrNotFound
	}
	if alive, err := procstat.Alive(rec.Server); err != nil || !alive {
		return runtime.ErrNotFound
	}
	if rec.Adopted {
		return r.mayControl(rec.Server, rec.Pane)
	}
	return nil
}

// Input implements runtime.Terminals. It returns errors.ErrUnsupported for an adopted session, because tmux holds that terminal.
func (r *Runtime) Input(ctx context.Context, uid types.UID) (facts.Input, error) {
	rec, err := r.read(uid)
	if err == nil && rec != nil && rec.Adopted {
		err = errors.ErrUnsupported
	}
	if err != nil {
		return facts.Input{}, err
	}
	return r.host.Input(ctx, uid)
}

// Told implements runtime.Terminals. Of an adopted session, tmux reports only the title, without a time.
func (r *Runtime) Told(ctx context.Context, uid types.UID) (facts.Signals, error) {
	rec, err := r.read(uid)
	if err != nil {
		return facts.Signals{}, err
	}
	if rec == nil || !rec.Adopted {
		return r.host.Told(ctx, uid)
	}
	if err := r.mayRead(rec); err != nil {
		return facts.Signals{}, fmt.Errorf("session of %s: %w", uid, err)
	}
	title, err := r.clientOf(rec).run(ctx, []string{"display-message", "-p", "-t", rec.PaneID, "#{pane_title}"})
	return facts.Signals{Title: facts.Signal{Text: signals.Clean(title)}}, err
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
	if dir := os.Getenv(socketDirVariable); dir != "" {
		command = "TMUX_TMPDIR=" + printable.Quote(dir) + " " + command
	}
	if rec.Adopted && r.separate() {
		command = "sudo -u " + printable.Quote(r.options.RunAs.Name) + " " + command
	}
	return command
}
