// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/internal/runtime"
)

// detachKey is Ctrl-], which hardly any program uses.
const detachKey = 0x1d

func (a *app) attachCommand() *cobra.Command {
	flags := &connectionFlags{}
	command := &cobra.Command{
		Use:   "attach KIND/NAME",
		Short: "Take the terminal of a process; Ctrl-] leaves it",
		Long: "Attach connects this terminal to that of a process, which goes on when you leave with Ctrl-]. It needs a running manager, or for a process in a Pod\n" +
			"the right to attach to that (create pods/attach).",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			return a.attach(command.Context(), flags, args[0])
		},
	}
	flags.add(command)
	flags.addEndpoint(command)
	return command
}

func (a *app) attach(ctx context.Context, flags *connectionFlags, word string) error {
	ref, to, err := a.reach(flags, word)
	if err != nil {
		return err
	}
	window := findWindow(a.in, a.raw)
	conn, err := a.line(ctx, to, ref, window.size())
	if err != nil {
		return fmt.Errorf("attach %s: %w", ref, err)
	}
	defer func() { _ = conn.Close() }()
	if window.in >= 0 {
		a.say("attached to %s; Ctrl-] leaves it", ref)
	}
	restore, err := window.raw()
	if err != nil {
		return err
	}
	detached, err := a.join(ctx, conn, window)
	restore()
	if window.in >= 0 {
		a.say("")
	}
	switch {
	case detached:
		a.say("left %s; it goes on running", ref)
		return nil
	case err != nil:
		return fmt.Errorf("attach %s: %w", ref, err)
	default:
		a.say("%s: the process has ended", ref)
		return nil
	}
}

// line is a terminal at a distance.
type line interface {
	io.Writer // types
	Resize(size runtime.Terminal) error
	// Receive copies what is shown until the process ends, which is no error, or the connection.
	Receive(out io.Writer, resize func(runtime.Terminal)) error
	io.Closer
}

// line connects to the terminal of a process: through the API server to one in a Pod, to all others through the manager.
func (a *app) line(ctx context.Context, to *connection, ref reference, size *runtime.Terminal) (line, error) {
	pod, err := a.terminalInPod(ctx, to, ref)
	if err != nil {
		return nil, err
	}
	if pod != nil {
		return takePod(ctx, to.config, pod, size)
	}
	manager, err := to.manager(ctx)
	if err != nil {
		return nil, err
	}
	defer manager.Close() // the connection is none of its own any more
	return manager.Attach(ctx, to.endpointObject(ref), size)
}

// join copies until the process ends, the connection is lost, the user leaves or the context ends.
func (a *app) join(ctx context.Context, conn line, window window) (detached bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	window.onResize(ctx, func(size runtime.Terminal) { _ = conn.Resize(size) })
	left := make(chan error, 1)
	// Reading the keyboard can't be broken off; this ends with the program when the process ends first.
	go func() { left <- copyKeys(conn, a.in) }()
	ended := make(chan error, 1)
	go func() { ended <- conn.Receive(a.raw, nil) }()
	hangUp := func() error {
		_ = conn.Close()
		return <-ended
	}
	for {
		select {
		case <-ctx.Done():
			_ = hangUp()
			return false, ctx.Err()
		case err := <-ended:
			return false, err
		case err := <-left:
			switch {
			case errors.Is(err, errDetached):
				_ = hangUp()
				return true, nil
			case errors.Is(err, io.EOF):
				// Input that was piped in is at its end; the output of what it did may still come.
				left = nil
			default:
				_ = hangUp()
				return false, err
			}
		}
	}
}

var errDetached = errors.New("detached")

// copyKeys sends input until the detach key; it returns io.EOF at the end of the input.
func copyKeys(to io.Writer, in io.Reader) error {
	buffer := make([]byte, 4096)
	for {
		n, err := in.Read(buffer)
		keys := buffer[:n]
		at := bytes.IndexByte(keys, detachKey)
		if at >= 0 {
			keys = keys[:at]
		}
		if len(keys) > 0 {
			if _, err := to.Write(keys); err != nil {
				return fmt.Errorf("the connection was lost: %w", err)
			}
		}
		if at >= 0 {
			return errDetached
		}
		if err != nil {
			return err
		}
	}
}

// calm undoes what a program that was left in the middle may have asked of the terminal: colours, a hidden cursor, mouse reports, marked pastes.
const calm = "\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l"

// window is the terminal of the user: file descriptors, or -1 where there is none.
type window struct{ in, out int }

func findWindow(in io.Reader, out io.Writer) window {
	found := window{-1, -1}
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		found.in = int(file.Fd())
	}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		found.out = int(file.Fd())
	}
	return found
}

func (w window) size() *runtime.Terminal {
	if w.out < 0 {
		return nil
	}
	columns, rows, err := term.GetSize(w.out)
	if err != nil || columns <= 0 || rows <= 0 {
		return nil
	}
	return &runtime.Terminal{Columns: int32(min(columns, 1000)), Rows: int32(min(rows, 1000))}
}

// raw hands every key to the process. The function that it gives puts the terminal back.
func (w window) raw() (restore func(), err error) {
	if w.in < 0 {
		return func() {}, nil
	}
	before, err := term.MakeRaw(w.in)
	if err != nil {
		return nil, fmt.Errorf("take over the terminal: %w", err)
	}
	return func() {
		_ = term.Restore(w.in, before)
		if w.out >= 0 {
			_, _ = os.Stdout.WriteString(calm)
		}
	}, nil
}
