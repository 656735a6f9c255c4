// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/runtime/pod"
)

// Bytes that the keys Enter and Ctrl-C send.
const (
	enterKey     = "\r"
	interruptKey = "\x03"
)

func (a *app) sendCommand() *cobra.Command {
	flags := &connectionFlags{}
	var noEnter, interrupt bool
	command := &cobra.Command{
		Use:   "send KIND/NAME [TEXT]...",
		Short: "Type text into the terminal of a process",
		Long: "Send types the text, followed by Enter, into the terminal of a process. With --interrupt it types Ctrl-C first.\n" +
			"Send needs a running manager and permission to attach or, for a process in a Pod, permission to create pods/attach.",
		Example: "  # Type a command and Enter\n" +
			"  berth send instance/shell \"ls -a\"\n\n" +
			"  # Interrupt the running command with Ctrl-C\n" +
			"  berth send instance/shell --interrupt",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			input, err := keys(args[1:], interrupt, noEnter)
			if err != nil {
				return &usageError{err, command.UsageString()}
			}
			return a.send(command.Context(), flags, args[0], input)
		},
	}
	command.Flags().BoolVar(&noEnter, "no-enter", false, "do not type Enter after the text")
	command.Flags().BoolVar(&interrupt, "interrupt", false, "type Ctrl-C before the text")
	flags.add(command)
	flags.addEndpoint(command)
	return command
}

// keys returns the input to type. It returns an error if there is none.
func keys(words []string, interrupt, noEnter bool) (string, error) {
	var input strings.Builder
	if interrupt {
		input.WriteString(interruptKey)
	}
	input.WriteString(strings.Join(words, " "))
	if len(words) > 0 && !noEnter {
		input.WriteString(enterKey)
	}
	if input.Len() == 0 {
		return "", errors.New("nothing to send: specify a text or --interrupt")
	}
	return input.String(), nil
}

func (a *app) send(ctx context.Context, flags *connectionFlags, word, input string) error {
	ref, to, err := a.reach(ctx, flags, word)
	if err != nil {
		return err
	}
	return a.typeInto(ctx, to, ref, input)
}

// typeInto types input into the terminal of an object.
func (a *app) typeInto(ctx context.Context, to *connection, ref reference, input string) error {
	there, err := a.terminalInPod(ctx, to, ref)
	if err == nil && there != nil {
		err = pod.TypeInto(ctx, to.config, there, []byte(input), a.clock.After)
	}
	if err != nil {
		return fmt.Errorf("send to %s: %w", ref, err)
	}
	if there != nil {
		return nil
	}
	manager, err := to.manager(ctx)
	if err != nil {
		return err
	}
	defer manager.Close()
	if err := manager.Type(ctx, to.endpointObject(ref), input); err != nil {
		return fmt.Errorf("send to %s: %w", ref, err)
	}
	return nil
}
