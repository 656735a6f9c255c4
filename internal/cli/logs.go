// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/terminal"
)

func (a *app) logsCommand() *cobra.Command {
	objects := &selection{}
	opts := logOptions{}
	var display logDisplay
	var asScreen bool
	command := &cobra.Command{
		Use:     "logs [-f] [--tail N] [--screen] KIND/NAME|KIND -l LABELS",
		Aliases: []string{"log"},
		Short:   "Print the output of a process",
		Long: "Logs prints the output of a process, including the retained output from before its restarts. The manager serves the output and must be running.\n" +
			"If the process runs in a Pod, logs prints the log of the newest Pod instead, which needs no manager.\n" +
			"NAME alone is sufficient if only one kind has an object of that name.\n" +
			"With -l, logs prints the output of several objects, each line after the name of its object.\n" +
			"At a terminal, logs prints text and colors only: other output of a program would change the modes of your terminal, or type into your shell.\n" +
			"A file or a pipe receives everything, unless --color=never or the variable NO_COLOR requests text without colors.",
		Example: "  # Print the last 20 lines and follow the output, also across restarts\n" +
			"  berth logs -f --tail 20 devserver/web\n\n" +
			"  # Print the current screen of a session as plain text\n" +
			"  berth logs --screen instance/shell\n\n" +
			"  # Follow the output of all dev servers with a label\n" +
			"  berth logs -f --tail 20 devservers -l app=shop",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeReferences(&objects.connectionFlags, kinds),
		RunE: func(command *cobra.Command, args []string) error {
			if err := display.check(); err != nil {
				return &usageError{err, command.UsageString()}
			}
			if asScreen && (opts.Follow || command.Flags().Changed("tail")) {
				return &usageError{errors.New("--screen prints the current screen: it cannot be combined with --follow or --tail"), command.UsageString()}
			}
			if objects.labels == "" {
				return a.logs(command.Context(), &objects.connectionFlags, args[0], opts, display, asScreen)
			}
			if asScreen {
				return &usageError{errors.New("--screen prints one screen: it cannot be combined with -l"), command.UsageString()}
			}
			return a.logsOf(command.Context(), args, objects, opts, display)
		},
	}
	objects.connectionFlags.add(command)
	objects.addEndpoint(command)
	command.Flags().BoolVarP(&opts.Follow, "follow", "f", false, "follow the output, also across restarts")
	command.Flags().Int64Var(&opts.Tail, "tail", -1, "number of lines to print from the end; a long line counts once per 16 KiB; -1 prints all")
	command.Flags().DurationVar(&opts.since, "since", 0, "only output that is newer than this duration, such as 5m; needs the runtime Pod")
	command.Flags().BoolVar(&opts.timestamps, "timestamps", false, "print the time before each line; needs the runtime Pod")
	command.Flags().BoolVar(&display.raw, "raw", false, "print everything that the program has written, also at a terminal")
	command.Flags().StringVar(&display.color, "color", "auto", "auto, always, or never; auto is never if the variable NO_COLOR is set")
	objects.addLabels(command)
	command.Flags().BoolVar(&asScreen, "screen", false, "print the current terminal screen of an instance as plain text")
	return command
}

// logOptions select a part of the output. since and timestamps are for Pods: only they record the time of each line.
type logOptions struct {
	endpoint.LogOptions
	since      time.Duration
	timestamps bool
	maxBytes   int64 // 0: no limit
}

func (a *app) logs(ctx context.Context, flags *connectionFlags, word string, opts logOptions, display logDisplay, asScreen bool) error {
	ref, to, err := a.reach(ctx, flags, word)
	if err != nil {
		return err
	}
	read := to.readable
	if asScreen {
		read = to.get
	}
	object, err := read(ctx, ref)
	if err != nil {
		return err
	}
	if !asScreen {
		out, end := display.writer(a.raw, findWindow(nil, a.raw).out >= 0)
		defer end()
		return a.copyLogs(ctx, to, ref, object, opts, out)
	}
	text, err := a.screen(ctx, to, ref, object)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(a.out, text)
	return nil
}

// screen returns the current content of the terminal of an Instance as plain text.
func (a *app) screen(ctx context.Context, to *connection, ref reference, object process.Object) (string, error) {
	instance, is := object.(*v1alpha1.Instance)
	if !is {
		return "", fmt.Errorf("%s has no terminal: only instances have one; use berth logs %s without --screen", ref, ref)
	}
	shown := &screen{Screen: newScreen(instance)}
	if err := a.copyLogs(ctx, to, ref, object, logOptions{LogOptions: endpoint.LogOptions{Tail: -1}}, shown); err != nil {
		return "", err
	}
	return shown.Text(), nil
}

// screen draws the output of an Instance.
type screen struct{ *terminal.Screen }

// of returns what draws a stream. If the size of its terminal is known, the screen is emptied and gets this size.
func (s *screen) of(stream *endpoint.Stream) io.Writer {
	if size := stream.Size; size.Columns > 0 && size.Rows > 0 {
		s.Screen = terminal.New(int(size.Columns), int(size.Rows))
	}
	if stream.Screen {
		return screenLines{s.Screen}
	}
	return s.Screen
}

// newScreen returns an empty screen of the size with which an Instance starts.
func newScreen(instance *v1alpha1.Instance) *terminal.Screen {
	size := &instance.Spec.Terminal
	return terminal.New(int(ptr.Deref(size.Columns, 0)), int(ptr.Deref(size.Rows, 0))) // a size of 0 selects the default
}

// copyLogs writes the output of an object to out. If object is nil, it requests the output from the manager.
func (a *app) copyLogs(ctx context.Context, to *connection, ref reference, object process.Object, opts logOptions, out io.Writer) error {
	if object != nil && inPod(object) {
		if err := a.podLogs(ctx, to, object, opts, out); err != nil {
			return fmt.Errorf("logs of %s: %w", ref, err)
		}
		return nil
	}
	if opts.since != 0 || opts.timestamps {
		return fmt.Errorf("%s does not run in a Pod, so the times of its lines are not recorded: omit --since and --timestamps", ref)
	}
	manager, err := to.manager(ctx, object)
	if err != nil {
		return err
	}
	defer manager.Close()
	stream, err := manager.Log(ctx, to.endpointObject(ref), opts.LogOptions)
	if err != nil {
		return fmt.Errorf("logs of %s: %w", ref, err)
	}
	defer func() { _ = stream.Close() }()
	if drawn, is := out.(*screen); is {
		out = drawn.of(stream)
	} else if stream.Screen {
		a.say("%s was adopted, so its output is not recorded: printing its current terminal screen", ref)
	}
	from := io.Reader(stream)
	if opts.maxBytes > 0 {
		from = io.LimitReader(stream, opts.maxBytes)
	}
	_, err = io.Copy(out, from)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("logs of %s: the manager shut down", ref)
	}
	return fmt.Errorf("logs of %s: %w", ref, err)
}

// screenLines writes text whose lines end in a bare line feed. A terminal does not return the carriage for a line feed, so a carriage return is added.
type screenLines struct{ to *terminal.Screen }

func (l screenLines) Write(text []byte) (int, error) {
	_, _ = l.to.Write(bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")))
	return len(text), nil
}

// manyLogs is the maximum number of objects whose output berth logs -l prints; each of them needs a connection.
const manyLogs = 20

// logsOf prints the output of several objects at the same time.
func (a *app) logsOf(ctx context.Context, args []string, objects *selection, opts logOptions, display logDisplay) error {
	to, references, err := objects.open(ctx, a, args)
	if err != nil {
		return err
	}
	if len(references) > manyLogs {
		return fmt.Errorf("%d objects match %q, and berth logs prints the output of at most %d: use a narrower selector", len(references), objects.labels, manyLogs)
	}
	var lines sync.Mutex
	var printers sync.WaitGroup
	errs := make([]error, len(references))
	for i, ref := range references {
		printers.Go(func() {
			object, err := to.get(ctx, ref)
			if err != nil {
				errs[i] = err
				return
			}
			whole := &prefixed{out: a.raw, lines: &lines, prefix: ref.String() + ": "}
			out, end := display.writer(whole, findWindow(nil, a.raw).out >= 0)
			errs[i] = a.copyLogs(ctx, to, ref, object, opts, out)
			end()
			whole.end()
		})
	}
	printers.Wait()
	return errors.Join(errs...)
}

// prefixed writes whole lines with a prefix. Several writers share the lock lines, so that their lines are not mixed.
type prefixed struct {
	out     io.Writer
	lines   *sync.Mutex
	prefix  string
	partial []byte
}

// longestPrefixed is the size in bytes at which an incomplete line is written, so that output without newlines does not fill the memory.
const longestPrefixed = 64 << 10

func (p *prefixed) Write(text []byte) (int, error) {
	p.partial = append(p.partial, text...)
	for {
		end := bytes.IndexByte(p.partial, '\n') + 1
		if end == 0 && len(p.partial) < longestPrefixed {
			return len(text), nil
		}
		if end == 0 {
			end = len(p.partial)
		}
		if err := p.line(p.partial[:end]); err != nil {
			return 0, err
		}
		p.partial = p.partial[end:]
	}
}

// end writes an incomplete last line.
func (p *prefixed) end() {
	if len(p.partial) > 0 {
		_ = p.line(p.partial)
	}
}

func (p *prefixed) line(text []byte) error {
	p.lines.Lock()
	defer p.lines.Unlock()
	_, err := fmt.Fprintf(p.out, "%s%s\n", p.prefix, bytes.TrimSuffix(text, []byte("\n")))
	return err
}
