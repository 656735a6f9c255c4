// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/creack/pty"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// sizeWithin is how long Attach waits for the client's terminal size before it attaches without one.
const sizeWithin = time.Second

// Attach implements runtime.Terminals. For an adopted session it runs tmux attach-session, because tmux holds that terminal. Therefore the detach key of tmux
// also ends the attachment.
func (r *Runtime) Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan runtime.Terminal) error {
	rec, err := r.read(uid)
	if err != nil {
		return err
	}
	if rec == nil || !rec.Adopted {
		return r.host.Attach(ctx, uid, in, out, resize)
	}
	if err := r.watchable(ctx, uid, rec); err != nil {
		return fmt.Errorf("attach to session %s: %w", rec.Session, err)
	}
	if err := r.attachAdopted(ctx, rec, in, out, resize); err != nil {
		return fmt.Errorf("attach to session %s: %w", rec.Session, err)
	}
	return nil
}

func (r *Runtime) watchable(ctx context.Context, uid types.UID, rec *record) error {
	l := r.links.Acquire(uid)
	defer l.Unlock()
	return l.living(ctx, rec)
}

func (r *Runtime) attachAdopted(ctx context.Context, rec *record, in io.Reader, out io.Writer, resize <-chan runtime.Terminal) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	args := []string{"-u", "-L", rec.Socket, "-f", os.DevNull, "attach-session"}
	size, told := firstSize(ctx, resize)
	if !told {
		// A client without a size must not resize the session for the other clients.
		size = pty.Winsize{Cols: uint16(rec.Columns), Rows: uint16(rec.Rows)}
		args = append(args, "-f", "ignore-size")
	}
	cmd := exec.CommandContext(ctx, r.options.Tmux, append(args, "-t", rec.SessionID)...)
	cmd.Dir, cmd.Env = "/", append(environment(), "TERM=xterm-256color")
	master, err := pty.StartWithSize(cmd, &size)
	if err != nil {
		return fmt.Errorf("start tmux: %w", err)
	}
	defer func() { _ = master.Close() }()
	go func() {
		_, err := io.Copy(master, in)
		cancel(errors.Join(io.EOF, err))
	}()
	go runtime.EachSize(ctx, resize, func(size runtime.Terminal) { _ = pty.Setsize(master, winsize(size)) })
	// The copy ends with an error when the tmux client has exited, which is the normal case.
	written := &sink{out: out}
	_, _ = io.Copy(written, master)
	if written.err != nil {
		cancel(written.err)
	}
	err = cmd.Wait()
	switch cause := context.Cause(ctx); {
	case written.err != nil:
		return fmt.Errorf("write the output: %w", written.err)
	case cause != nil && !errors.Is(cause, io.EOF) && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded):
		return cause
	case cause == nil && err != nil:
		return fmt.Errorf("tmux exited: %w", err)
	}
	return nil
}

// sink records a write error, so that io.Copy's read errors, which are normal, can be ignored.
type sink struct {
	out io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.out.Write(p)
	if err != nil {
		s.err = err
	}
	return n, err
}

// firstSize waits for the first size that the client sends.
func firstSize(ctx context.Context, resize <-chan runtime.Terminal) (pty.Winsize, bool) {
	if resize == nil {
		return pty.Winsize{}, false
	}
	timer := time.NewTimer(sizeWithin)
	defer timer.Stop()
	select {
	case size, open := <-resize:
		return *winsize(size), open && size.Columns > 0 && size.Rows > 0
	case <-timer.C:
	case <-ctx.Done():
	}
	return pty.Winsize{}, false
}

func winsize(size runtime.Terminal) *pty.Winsize {
	return &pty.Winsize{Cols: uint16(min(max(size.Columns, 0), 0xFFFF)), Rows: uint16(min(max(size.Rows, 0), 0xFFFF))}
}
