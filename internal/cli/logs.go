// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/endpoint"
)

func (a *app) logsCommand() *cobra.Command {
	flags := &connectionFlags{}
	opts := endpoint.LogOptions{}
	command := &cobra.Command{
		Use:     "logs [-f] [--tail N] KIND/NAME",
		Aliases: []string{"log"},
		Short:   "Print the output of a process",
		Long: "Logs prints the output of all incarnations of a process, as far as it is still there. It needs a running manager;\n" +
			"for what runs in a Pod it needs none, and prints what the node has of the newest one.",
		Args:              needs(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			return a.logs(command.Context(), flags, args[0], opts)
		},
	}
	flags.add(command)
	flags.addEndpoint(command)
	command.Flags().BoolVarP(&opts.Follow, "follow", "f", false, "go on with what comes, over restarts too")
	command.Flags().Int64Var(&opts.Tail, "tail", -1, "only the last so many lines, of which a long one counts once for each 16 KiB; -1 for all")
	return command
}

func (a *app) logs(ctx context.Context, flags *connectionFlags, word string, opts endpoint.LogOptions) error {
	ref, to, err := a.reach(flags, word)
	if err != nil {
		return err
	}
	if object, err := to.get(ctx, ref); err == nil && inPod(object) {
		if err := a.podLogs(ctx, to, object, opts); err != nil {
			return fmt.Errorf("logs of %s: %w", ref, err)
		}
		return nil
	}
	manager, err := to.manager(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	stream, err := manager.Log(ctx, to.endpointObject(ref), opts)
	if err != nil {
		return fmt.Errorf("logs of %s: %w", ref, err)
	}
	defer func() { _ = stream.Close() }()
	if stream.Screen {
		a.say("%s was there before Berth, so its output is not kept: this is what its terminal shows now", ref)
	}
	if _, err := io.Copy(a.raw, stream); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("logs of %s: the manager ended", ref)
		}
		return fmt.Errorf("logs of %s: %w", ref, err)
	}
	return nil
}
