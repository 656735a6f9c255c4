// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// sizeWithin is how long Attach waits for the client's terminal size before it attaches without one.
	sizeWithin = time.Second
	// drawWithin limits the wait for the first screen, and for the last output of a program that has exited.
	drawWithin = askTimeout
)

// Attach implements runtime.Terminals. For an adopted session it shows the pane of the program through a tmux client in control mode. The input goes to the
// program only: a client on a terminal would interpret it as commands of tmux, and so reach other sessions and the shell of the user.
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

// attachAdopted returns nil when the program exits, the tmux client is detached, in.Read returns io.EOF, or the context ends.
func (r *Runtime) attachAdopted(ctx context.Context, rec *record, in io.Reader, out io.Writer, resize <-chan runtime.Terminal) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	size, told := firstSize(ctx, resize)
	if !told {
		size = runtime.Terminal{}
	}
	v, err := r.view(ctx, rec, size)
	if err != nil {
		return err
	}
	defer v.close()
	go func() { cancel(v.read()) }()
	if err := v.awaitScreen(ctx); err != nil {
		return err
	}
	go func() { cancel(v.typeAll(in)) }()
	go runtime.EachSize(ctx, resize, func(size runtime.Terminal) {
		if err := v.resize(size); err != nil {
			cancel(err)
		}
	})
	go v.awaitExit(ctx, cancel)
	if err := v.show(ctx, out); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return ended(context.Cause(ctx))
}

// ended returns the cause for which an attachment ended, or nil for a normal end.
func ended(cause error) error {
	if errors.Is(cause, io.EOF) || errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return nil
	}
	return cause
}

// awaitExit ends the attachment when the program has exited and its last output was received.
func (v *view) awaitExit(ctx context.Context, cancel context.CancelCauseFunc) {
	exited := make(chan struct{}, 1)
	defer watch(v.rec.Pane, exited)()
	select {
	case <-ctx.Done():
		return
	case <-exited:
	}
	// Once tmux has noticed the exit, for which Observe waits, it has read all output. It sends no reply if the session is gone.
	_, _ = v.runtime.Observe(ctx, v.rec.UID)
	if v.drawLast() == nil {
		timer := time.NewTimer(drawWithin)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-v.last:
		case <-timer.C:
		}
	}
	cancel(io.EOF)
}

// firstSize waits for the first size that the client sends.
func firstSize(ctx context.Context, resize <-chan runtime.Terminal) (runtime.Terminal, bool) {
	if resize == nil {
		return runtime.Terminal{}, false
	}
	timer := time.NewTimer(sizeWithin)
	defer timer.Stop()
	select {
	case size, open := <-resize:
		return size, open
	case <-timer.C:
	case <-ctx.Done():
	}
	return runtime.Terminal{}, false
}

// typeAll sends the input to the program until in.Read returns an error, which it reports as io.EOF. It checks before each piece which user reads the input.
func (v *view) typeAll(in io.Reader) error {
	keys := make([]byte, pieceLength)
	for {
		n, err := in.Read(keys)
		if n > 0 {
			if err := v.runtime.mayType(v.rec.Server, v.rec.Pane); err != nil {
				return fmt.Errorf("type: %w", err)
			}
			if v.send(joined(keyCommands(v.rec.PaneID, keys[:n])), noReply, noReply) != nil {
				return io.EOF // the tmux client has exited
			}
		}
		if err != nil {
			return io.EOF
		}
	}
}

// isPane reports whether the state describes the program of a record: another server may use the socket now.
func (s paneState) isPane(server, program procstat.Process) bool {
	return s[0] == server.PID && s[1] == program.PID
}
