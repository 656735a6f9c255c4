// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	command := &cobra.Command{
		Use:   "run STRATEGY [--arg NAME=VALUE]... [--wait]",
		Short: "Run a strategy once",
		Long: "Run creates a StrategyRun, which is executed once and records its outcome. The program receives each argument as an environment variable,\n" +
			"for example the argument go-version as ARG_GO_VERSION. With --wait, run returns when the StrategyRun has ended, and fails unless it succeeded.\n" +
			"Ctrl-C does not stop the StrategyRun: use berth stop to cancel it.",
		Example: "  # Run a strategy and wait for its outcome\n" +
			"  berth run vet-module --arg module=/src/web --wait",
		Args: needs(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			printer, err := f.format.createdPrinter(command, f.wait)
			if err != nil {
				return err
			}
			return a.runStrategy(command.Context(), f, args[0], printer)
		},
	}
	f.add(command)
	f.format.add(command)
	command.Flags().StringArrayVar(&f.arguments, "arg", nil, "argument of the run, NAME=VALUE; can be repeated")
	command.Flags().BoolVar(&f.wait, "wait", false, "wait until the run has ended")
	command.Flags().DurationVar(&f.timeout, "timeout", 0, "how long to wait; 0 waits without a limit")
	return command
}

// runFlags are the flags of berth run.
type runFlags struct {
	connectionFlags
	arguments []string
	wait      bool
	timeout   time.Duration
	format    outputFormat
}

func (a *app) runStrategy(ctx context.Context, f *runFlags, name string, printer printers.ResourcePrinter) error {
	parsed, err := parseArguments(f.arguments)
	if err != nil {
		return err
	}
	to, err := a.connect(&f.connectionFlags)
	if err != nil {
		return err
	}
	err = to.client.Get(ctx, to.key(name), &v1alpha1.Strategy{})
	if err := explainRequest(err, to.namespace, "strategy/"+name, "read", listStrategies); err != nil {
		return err
	}
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: to.namespace, GenerateName: name + "-",
		// Set the finalizers at creation, because the manager would need a separate write to add them.
		Finalizers: []string{v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount},
	}}
	run.Spec.StrategyRef.Name, run.Spec.Arguments = name, parsed
	if err := to.client.Create(ctx, run, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("run strategy %s: %w", name, err)
	}
	if printer != nil {
		return printObjects(printer, a.out, []client.Object{run}, true)
	}
	_, _ = fmt.Fprintf(a.out, "strategyrun/%s created\n", run.Name)
	if !f.wait {
		return nil
	}
	return a.awaitOutcome(ctx, to, run, f.timeout)
}

// parseArguments parses NAME=VALUE; the value may contain any characters. It returns an error for a duplicate name.
func parseArguments(words []string) ([]v1alpha1.RunArgument, error) {
	var arguments []v1alpha1.RunArgument
	seen := map[string]bool{}
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not NAME=VALUE: use for example --arg dir=/src", word)
		}
		if seen[name] {
			return nil, fmt.Errorf("argument %s is set twice", name)
		}
		seen[name] = true
		arguments = append(arguments, v1alpha1.RunArgument{Name: name, Value: value})
	}
	return arguments, nil
}

// listStrategies is the parameter list of explainRequest for strategies.
const listStrategies = "all strategies, run berth status strategies -A"

// awaitOutcome polls until the run has ended, and returns an error unless the run succeeds. While the run is stalled, awaitOutcome prints why, for example that
// the strategy is disabled. It prints the reason again only when the reason changes.
func (a *app) awaitOutcome(ctx context.Context, to *connection, run *v1alpha1.StrategyRun, timeout time.Duration) error {
	name, told := "strategyrun/"+run.Name, ""
	waiting, cancel := context.WithCancel(ctx)
	if timeout > 0 {
		waiting, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	err := wait.PollUntilContextCancel(waiting, pollEvery, true, func(context.Context) (bool, error) {
		err := to.client.Get(waiting, client.ObjectKeyFromObject(run), run)
		switch {
		case apierrors.IsNotFound(err):
			return false, fmt.Errorf("%s was deleted, so its outcome is unknown", name)
		case err != nil && waiting.Err() == nil:
			return false, fmt.Errorf("read %s: %w", name, err)
		case run.Status.Outcome != "" && run.Status.Outcome != v1alpha1.OutcomeSucceeded:
			return false, fmt.Errorf("%s: %s: %s To see its output, run: berth logs %s", name, run.Status.Outcome, clean(messageOf(run)), name)
		case run.Status.Outcome == "" && meta.IsStatusConditionTrue(run.Status.Conditions, v1alpha1.ConditionStalled) && messageOf(run) != told:
			told = messageOf(run)
			a.say("%s is waiting: %s", name, clean(told))
		}
		return run.Status.Outcome != "", nil
	})
	switch {
	case err == nil:
		_, _ = fmt.Fprintln(a.out, strings.TrimSuffix(name+" succeeded: "+clean(said(run.Status.Result)), ": "))
	case waiting.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("%w: %s has not ended after %s and continues to run: see berth status %s", errTimeout, name, timeout, name)
	}
	return err
}

func messageOf(run *v1alpha1.StrategyRun) string {
	if ready := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		return ready.Message
	}
	return ""
}

// cancelRun cancels a run, which cannot be undone. A finished run is not changed.
func (a *app) cancelRun(ctx context.Context, to *connection, ref reference) error {
	object, err := to.get(ctx, ref)
	if err != nil {
		return err
	}
	if run := object.(*v1alpha1.StrategyRun); run.Status.Outcome != "" {
		_, _ = fmt.Fprintf(a.out, "%s has already ended: %s\n", ref, run.Status.Outcome)
		return nil
	}
	if _, err := to.change(ctx, ref.of(object), map[string]any{"state": v1alpha1.RunCancelled}); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(a.out, "%s cancellation requested\n", ref)
	return nil
}

func (a *app) resetCommand() *cobra.Command {
	flags := &connectionFlags{}
	var all bool
	command := &cobra.Command{
		Use:   "reset strategies NAME...|--all",
		Short: "Close the circuit breakers of strategies",
		Long: "After repeated failures, the circuit breaker of a strategy opens, and its runs are skipped. Reset closes the breaker by changing spec.resetToken.\n" +
			"Runs that started before the reset no longer count.\n" +
			"With --all, reset closes the breakers of all strategies of the namespace; with --all and -A, those of all namespaces.",
		Example: "  # Close the breaker of one strategy\n" +
			"  berth reset strategies vet-module\n\n" +
			"  # Close the breakers of all strategies of the namespace\n" +
			"  berth reset strategies --all",
		Args: needs(cobra.MinimumNArgs(1)),
		RunE: func(command *cobra.Command, args []string) error {
			return a.reset(command.Context(), flags, args[0], args[1:], all)
		},
	}
	flags.add(command)
	command.Flags().BoolVar(&all, "all", false, "reset all strategies of the namespace")
	command.Flags().BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "with --all: reset the strategies of all namespaces")
	return command
}

func (a *app) reset(ctx context.Context, flags *connectionFlags, word string, names []string, all bool) error {
	if kindNamed([]*kind{strategyKind}, word) == nil {
		return fmt.Errorf("%q cannot be reset: use berth reset strategies NAME or --all; to retry a process, use berth restart KIND/NAME", word)
	}
	if all == (len(names) > 0) || flags.allNamespaces && !all {
		return errors.New("specify strategy names or --all; -A requires --all")
	}
	to, err := a.connect(flags)
	if err != nil {
		return err
	}
	var wanted []client.Object
	for _, name := range names {
		wanted = append(wanted, &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: to.namespace, Name: name}})
	}
	if all {
		if flags.allNamespaces {
			to.namespace = ""
		}
		if wanted, err = listKind(ctx, to.client, strategyKind, to.namespace, true); err != nil {
			return err
		}
		if len(wanted) == 0 {
			a.say("no strategies found")
		}
	}
	token := newToken(a.clock.Now())
	var errs []error
	for _, strategy := range wanted {
		name := strategy.GetName()
		err := to.changeSpec(ctx, strategy, "strategy/"+name, "reset", listStrategies, map[string]any{"resetToken": token})
		if errs = append(errs, err); err == nil {
			_, _ = fmt.Fprintf(a.out, "strategy/%s reset requested\n", name)
		}
	}
	return errors.Join(errs...)
}
