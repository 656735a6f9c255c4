// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/terminal"
)

func (a *app) logsCommand() *cobra.Command {
	flags := &connectionFlags{}
	opts := logOptions{}
	objects := selection{}
	var asScreen bool
	command := &cobra.Command{
		Use:     "logs [-f] [--tail N] [--screen] KIND/NAME|KIND -l LABELS",
		Aliases: []string{"log"},
		Short:   "Print the output of a process",
		Long: "Logs prints the output of a process, including the retained output from before its restarts. The manager serves the output and must be running.\n" +
			"If the process runs in a Pod, logs prints the log of the newest Pod instead, which needs no manager.\n" +
			"NAME alone is sufficient if only one kind has an object of that name.\n" +
			"With -l, logs prints the output of several objects, each line after the name of its object.",
		Example: "  # Print the last 20 lines and follow the output, also across restarts\n" +
			"  berth logs -f --tail 20 devserver/web\n\n" +
			"  # Print the current screen of a session as plain text\n" +
			"  berth logs --screen instance/shell\n\n" +
			"  # Follow the output of all dev servers with a label\n" +
			"  berth logs -f --tail 20 devservers -l app=shop",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			if asScreen && (opts.Follow || command.Flags().Changed("tail")) {
				return &usageError{errors.New("--screen prints the current screen: it cannot be combined with --follow or --tail"), command.UsageString()}
			}
			if objects.labels == "" {
				return a.logs(command.Context(), flags, args[0], opts, asScreen)
			}
			if asScreen {
				return &usageError{errors.New("--screen prints one screen: it cannot be combined with -l"), command.UsageString()}
			}
			return a.logsOf(command.Context(), flags, args, &objects, opts)
		},
	}
	flags.add(command)
	flags.addEndpoint(command)
	command.Flags().BoolVarP(&opts.Follow, "follow", "f", false, "follow the output, also across restarts")
	command.Flags().Int64Var(&opts.Tail, "tail", -1, "number of lines to print from the end; a long line counts once per 16 KiB; -1 prints all")
	command.Flags().DurationVar(&opts.since, "since", 0, "only output that is newer than this duration, such as 5m; needs the runtime Pod")
	command.Flags().BoolVar(&opts.timestamps, "timestamps", false, "print the time before each line; needs the runtime Pod")
	objects.addLabels(command)
	command.Flags().BoolVar(&asScreen, "screen", false, "print the current terminal screen of an instance as plain text")
	return command
}

// logOptions select a part of the output. since, timestamps and maxBytes are for Pods: only they record the time of each line.
type logOptions struct {
	endpoint.LogOptions
	since      time.Duration
	timestamps bool
	maxBytes   int64 // 0: no limit
}

func (a *app) logs(ctx context.Context, flags *connectionFlags, word string, opts logOptions, asScreen bool) error {
	ref, to, err := a.reach(ctx, flags, word)
	if err != nil {
		return err
	}
	object, err := to.get(ctx, ref)
	if !asScreen {
		if err != nil {
			object = nil // the manager reports why
		}
		return a.copyLogs(ctx, to, ref, object, opts, a.raw)
	}
	if err != nil {
		return err
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
	// A size of 0 selects the default size of the screen.
	size := &instance.Spec.Terminal
	shown := terminal.New(int(ptr.Deref(size.Columns, 0)), int(ptr.Deref(size.Rows, 0)))
	if err := a.copyLogs(ctx, to, ref, object, logOptions{LogOptions: endpoint.LogOptions{Tail: -1}}, shown); err != nil {
		return "", err
	}
	return shown.Text(), nil
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
	manager, err := to.manager(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	stream, err := manager.Log(ctx, to.endpointObject(ref), opts.LogOptions)
	if err != nil {
		return fmt.Errorf("logs of %s: %w", ref, err)
	}
	defer func() { _ = stream.Close() }()
	if drawn, is := out.(*terminal.Screen); is && stream.Screen {
		out = screenLines{drawn}
	} else if stream.Screen {
		a.say("%s was adopted, so its output is not recorded: printing its current terminal screen", ref)
	}
	if _, err := io.Copy(out, stream); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("logs of %s: the manager shut down", ref)
		}
		return fmt.Errorf("logs of %s: %w", ref, err)
	}
	return nil
}

// screenLines writes text whose lines end in a bare line feed. A terminal does not return the carriage for a line feed, so a carriage return is added.
type screenLines struct{ to *terminal.Screen }

func (l screenLines) Write(text []byte) (int, error) {
	_, _ = l.to.Write(bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")))
	return len(text), nil
}
