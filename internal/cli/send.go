// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/pod"
	"github.com/berth-dev/berth/internal/terminal"
)

// typing holds the values of the flags of berth send.
type typing struct {
	noEnter, interrupt bool
	keys               []string
	incarnation        int64
}

func (a *app) sendCommand() *cobra.Command {
	flags, options := &connectionFlags{}, &typing{}
	command := &cobra.Command{
		Use:   "send KIND/NAME [TEXT]...",
		Short: "Type text and keys into the terminal of a process",
		Long: "Send types the text, followed by Enter, into the terminal of a process. With --interrupt it types Ctrl-C first. With --key it types these keys after\n" +
			"the text instead of Enter. An empty text is Enter alone.\n" +
			"Send first waits up to 15 s until a program reads the terminal. It types Enter only at the prompt that shows the text. If the text alone answers a\n" +
			"question, as the number of a choice does in many menus, send does not type Enter, because Enter would answer the next question. If another question\n" +
			"follows, send prints it and exits with code 5. If the program does not show the text, send exits with code 1 and has not typed Enter.\n" +
			"With --incarnation, send fails if the process has been restarted since the user saw that incarnation, and types nothing.\n" +
			"Send needs a running manager and permission to attach or, for a process in a Pod, permission to create pods/attach.",
		Example: "  # Type a command and Enter\n" +
			"  berth send instance/shell \"ls -a\"\n\n" +
			"  # Choose the first answer of a menu\n" +
			"  berth send instance/agent 1\n\n" +
			"  # Move down in a menu and confirm\n" +
			"  berth send instance/agent --key Down --key Enter\n\n" +
			"  # Type Enter alone\n" +
			"  berth send instance/agent \"\"\n\n" +
			"  # Interrupt the running command with Ctrl-C\n" +
			"  berth send instance/shell --interrupt",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags, kinds),
		RunE: func(command *cobra.Command, args []string) error {
			strokes, err := options.keystrokes(args[1:])
			if err == nil && command.Flags().Changed("incarnation") && options.incarnation < 1 {
				err = fmt.Errorf("--incarnation must be at least 1, not %d", options.incarnation)
			}
			if err != nil {
				return &usageError{err, command.UsageString()}
			}
			ref, to, err := a.reach(command.Context(), flags, args[0])
			if err != nil {
				return err
			}
			ref.incarnation = options.incarnation
			return a.send(command.Context(), to, ref, strokes)
		},
	}
	command.Flags().BoolVar(&options.noEnter, "no-enter", false, "do not type Enter after the text")
	command.Flags().BoolVar(&options.interrupt, "interrupt", false, "type Ctrl-C before the text")
	command.Flags().StringArrayVar(&options.keys, "key", nil, fmt.Sprintf("key to type after the text instead of Enter; repeat the flag for several keys, at most %d: %s", runtime.MaxKeys, strings.Join(runtime.KeyNames(), ", ")))
	command.Flags().Int64Var(&options.incarnation, "incarnation", 0, "incarnation that must run, as in status.incarnation; default: the one that runs")
	_ = command.RegisterFlagCompletionFunc("key", cobra.FixedCompletions(runtime.KeyNames(), cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
	flags.add(command)
	flags.addEndpoint(command)
	return command
}

// keystrokes returns what to type. It returns an error if there is nothing.
func (t *typing) keystrokes(words []string) (runtime.Keystrokes, error) {
	keys, err := runtime.ParseKeys(t.keys)
	if err != nil {
		return runtime.Keystrokes{}, fmt.Errorf("--key: %w", err)
	}
	strokes := runtime.Keystrokes{Interrupt: t.interrupt, Text: strings.Join(words, " "), Keys: keys}
	if len(words) > 0 && len(keys) == 0 && !t.noEnter {
		strokes.Keys = []runtime.Key{runtime.KeyEnter}
	}
	if strokes.Empty() {
		return strokes, errors.New("nothing to send: specify a text, --key or --interrupt")
	}
	return strokes, nil
}

// send types into the terminal of an object, and prints why keys were not typed.
func (a *app) send(ctx context.Context, to *connection, ref reference, strokes runtime.Keystrokes) error {
	err := a.typeInto(ctx, to, ref, strokes)
	withheld := withheldBy(err)
	if withheld == nil {
		return err
	}
	switch withheld.Verdict {
	case terminal.Answered, terminal.Unread:
		a.say("%s: %s", ref, withheld)
		return nil
	}
	if withheld.Question != "" {
		return fmt.Errorf("send to %s: %w:\n%s", ref, withheld, withheld.Question)
	}
	return fmt.Errorf("send to %s: %w", ref, withheld)
}

// withheldBy returns why keys were not typed; nil if an error has another cause.
func withheldBy(err error) *runtime.WithheldError {
	var withheld *runtime.WithheldError
	if errors.As(err, &withheld) {
		return withheld
	}
	return nil
}

// asksAnother reports whether keys were not typed because another question follows.
func asksAnother(err error) bool {
	withheld := withheldBy(err)
	return withheld != nil && withheld.Verdict == terminal.AnotherQuestion
}

// typeInto types into the terminal of an object.
func (a *app) typeInto(ctx context.Context, to *connection, ref reference, strokes runtime.Keystrokes) error {
	object, err := to.readable(ctx, ref)
	if err != nil {
		return fmt.Errorf("send to %s: %w", ref, err)
	}
	there, err := a.terminalInPod(ctx, to, ref, object)
	if err == nil && there != nil {
		err = a.typeIntoPod(ctx, to, ref, object, there, strokes)
	}
	if err != nil {
		return fmt.Errorf("send to %s: %w", ref, err)
	}
	if there != nil {
		return nil
	}
	manager, err := to.manager(ctx, object)
	if err != nil {
		return err
	}
	defer manager.Close()
	if err := manager.Seeing(ref.seen()).Type(ctx, to.endpointObject(ref), strokes); err != nil {
		return fmt.Errorf("send to %s: %w", ref, err)
	}
	return nil
}

// podScreenLines is how many lines of output of a Pod are read to render its screen.
const podScreenLines = 1000

// typeIntoPod types into the terminal of a Pod. Without permission to read the output, it knows only the output from now on.
func (a *app) typeIntoPod(ctx context.Context, to *connection, ref reference, object process.Object, there *corev1.Pod, strokes runtime.Keystrokes) error {
	shown := terminal.New(0, 0)
	if instance, is := object.(*v1alpha1.Instance); is {
		shown = newScreen(instance)
		_ = a.copyLogs(ctx, to, ref, object, logOptions{LogOptions: endpoint.LogOptions{Tail: podScreenLines}}, shown)
	}
	return pod.TypeInto(ctx, to.config, there, strokes, shown, a.clock.After)
}
