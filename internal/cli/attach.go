// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/runtime"
)

// attachOptions are the flags of berth attach.
type attachOptions struct {
	leaveKey detachKey
	readOnly bool
}

func (a *app) attachCommand() *cobra.Command {
	flags := &connectionFlags{}
	opts := attachOptions{leaveKey: detachKey{']'}} // Ctrl-], which few programs use
	command := &cobra.Command{
		Use:   "attach KIND/NAME",
		Short: "Attach to the terminal of a process (detach with Ctrl-])",
		Long: "Attach connects this terminal to the terminal of a process. The process keeps running when you detach with Ctrl-], or with the key that\n" +
			"--detach-key names. Within pasted text, the key is text. After attach, the terminal has the modes that it had before.\n" +
			"The terminal of the process gets the size of your window. If several clients are attached, it has the size of the one that attached, or was resized, last;\n" +
			"when that client leaves, it has the size of the one before it.\n" +
			"With --read-only, nothing that you type reaches the process, and the size of your window does not change the size of its terminal.\n" +
			"Attach needs a running manager or, for a process in a Pod, permission to create pods/attach.\n" +
			"If the manager restarts, the process keeps running, and attach tries to reconnect for up to 30 s.\n" +
			"If standard input is not a terminal, attach types its content into the terminal of the process, each byte once, also if the manager restarts meanwhile.\n" +
			"A program that reads lines then reads the end of its input, and attach shows the output until the program ends or you press Ctrl-C.\n" +
			"A program that reads keys, or runs in a container or a Pod, does not receive the end: attach exits when the output has paused for 1 s, at most 10 s after\n" +
			"the end of the input. The detach key at the end of the input detaches at once.",
		Example: "  # Attach to a session\n" +
			"  berth attach instance/shell\n\n" +
			"  # Type a file, and print what the program prints until it ends\n" +
			"  berth attach instance/job < answers.txt",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeReferences(flags, kinds),
		RunE: func(command *cobra.Command, args []string) error {
			return a.attach(command.Context(), flags, args[0], opts)
		},
	}
	command.Flags().Var(&opts.leaveKey, "detach-key", "the key that detaches: ctrl- and a letter except i, j and m, or one of \\ ] ^ _")
	command.Flags().BoolVar(&opts.readOnly, "read-only", false, "show the terminal, and send nothing to the process")
	flags.add(command)
	flags.addEndpoint(command)
	return command
}

func (a *app) attach(ctx context.Context, flags *connectionFlags, word string, opts attachOptions) error {
	ref, to, err := a.reach(ctx, flags, word)
	if err != nil {
		return err
	}
	t := &attachment{
		app: a, flags: flags, ref: ref, attachOptions: opts, window: findWindow(a.in, a.raw), shown: newTerminalModes(a.raw), patience: reconnectFor,
	}
	if t.window.in < 0 && !t.readOnly {
		t.counted.Stream = rand.Text()
	}
	conn, err := t.connect(ctx, to)
	if err != nil {
		return fmt.Errorf("attach %s: %w", ref, err)
	}
	defer func() { _ = conn.Close() }()
	if t.window.in >= 0 {
		a.say("attached to %s; press %s to detach", ref, opts.leaveKey.title())
	}
	restore, err := t.window.raw()
	if err != nil {
		return err
	}
	left, err := t.stay(ctx, conn)
	restore()
	t.leaveScreen("")
	if t.window.in >= 0 {
		a.say("")
	}
	t.tellUnreceived()
	switch {
	case left:
		a.say("detached from %s; the process keeps running", ref)
		return nil
	case err != nil:
		return fmt.Errorf("attach %s: %w", ref, err)
	default:
		a.say("%s: the process has ended", ref)
		return nil
	}
}

// line is a connection to a remote terminal.
type line interface {
	io.Writer // sends typed input
	Resize(size runtime.Terminal) error
	// Receive copies the output of the terminal to out. It returns nil when the process exits, and an error when the connection is lost.
	Receive(out io.Writer, resize func(runtime.Terminal)) error
	io.Closer
}

// line connects to the terminal of a process: through the API server if the process runs in a Pod, otherwise through the manager.
func (a *app) line(ctx context.Context, to *connection, ref reference, size *runtime.Terminal, input endpoint.CountedInput) (line, error) {
	object, err := to.readable(ctx, ref)
	if err != nil {
		return nil, err
	}
	pod, err := a.terminalInPod(ctx, to, ref, object)
	if err != nil {
		return nil, err
	}
	if pod != nil {
		return takePod(ctx, to.config, pod, size)
	}
	manager, err := to.manager(ctx, object)
	if err != nil {
		return nil, err
	}
	defer manager.Close() // does not close the attached connection, which belongs to the caller
	conn, counts, err := manager.Seeing(ref.seen()).AttachCounted(ctx, to.endpointObject(ref), size, input)
	switch {
	case err != nil:
		return nil, err
	case !counts:
		return struct{ line }{conn}, nil
	}
	return conn, nil
}

// window is the terminal of the user. in and out are file descriptors, or -1 if the stream is not a terminal.
type window struct{ in, out int }

func findWindow(in io.Reader, out io.Writer) window {
	found := window{-1, -1}
	if file, ok := in.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		found.in = int(file.Fd())
	}
	if w, ok := out.(*backgroundWriter); ok {
		out = w.output
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

// raw puts the terminal into raw mode, so that the process receives every key. The returned function restores the previous mode.
func (w window) raw() (restore func(), err error) {
	if w.in < 0 {
		return func() {}, nil
	}
	before, err := term.MakeRaw(w.in)
	if err != nil {
		return nil, fmt.Errorf("set the terminal to raw mode: %w", err)
	}
	return func() { _ = term.Restore(w.in, before) }, nil
}

// onResize calls changed with each new size of the window until the context is done.
func (w window) onResize(ctx context.Context, changed func(runtime.Terminal)) {
	if w.out < 0 {
		return
	}
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGWINCH)
	go func() {
		defer signal.Stop(caught)
		for {
			select {
			case <-ctx.Done():
				return
			case <-caught:
				if size := w.size(); size != nil {
					changed(*size)
				}
			}
		}
	}()
}
