// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/conditions"
)

const pollEvery = 200 * time.Millisecond

// waitFlags holds the flags --wait and --timeout.
type waitFlags struct {
	enabled bool
	timeout time.Duration
}

func (w *waitFlags) add(command *cobra.Command, usage string) {
	command.Flags().BoolVar(&w.enabled, "wait", false, usage)
	w.addTimeout(command)
}

func (w *waitFlags) addTimeout(command *cobra.Command) {
	command.Flags().DurationVar(&w.timeout, "timeout", 2*time.Minute, "how long to wait")
}

func (a *app) waitCommand() *cobra.Command {
	flags := &connectionFlags{}
	var wait waitFlags
	var objects selection
	var goal string
	command := &cobra.Command{
		Use:   "wait KIND/NAME... [--for ready|stopped|deleted|condition=TYPE[=STATUS]]",
		Short: "Wait until objects are ready, stopped or deleted",
		Long: "Wait returns when each object has reached the state of --for. It fails early if an object cannot become ready without a change by a person.\n" +
			"A temporary failure of the API server does not end the wait.",
		Example: "  berth wait devserver/web\n\n" +
			"  # Wait until an agent asks for input\n" +
			"  berth wait instance/agent --for condition=AwaitingInput --timeout 10m",
		Args:              needs(cobra.MinimumNArgs(1)),
		ValidArgsFunction: a.completeReferences(flags),
		RunE: func(command *cobra.Command, args []string) error {
			reached, err := parseGoal(goal)
			if err != nil {
				return &usageError{err, command.UsageString()}
			}
			to, references, err := objects.open(command.Context(), a, flags, args)
			if err != nil {
				return err
			}
			var errs []error
			for _, ref := range references {
				wanted := awaitOptions{timeout: wait.timeout, goal: goal, progress: a.sayProgress(ref)}
				err := a.await(command.Context(), to, ref, wanted, reached)
				if goal == "deleted" && errors.Is(err, errMissing) {
					err = nil
				}
				if errs = append(errs, err); err == nil {
					_, _ = fmt.Fprintf(a.out, "%s %s\n", ref, goal)
				}
			}
			return errors.Join(errs...)
		},
	}
	flags.add(command)
	objects.add(command)
	wait.addTimeout(command)
	command.Flags().StringVar(&goal, "for", "ready", "state to wait for: ready, stopped, deleted or condition=TYPE[=STATUS]; the default STATUS is True")
	return command
}

// parseGoal returns a function that reports whether an object has reached the state that --for describes.
func parseGoal(goal string) (func(process.Object) (bool, error), error) {
	condition, ok := strings.CutPrefix(goal, "condition=")
	kind, status, given := strings.Cut(condition, "=")
	if !given {
		status = string(metav1.ConditionTrue)
	}
	switch {
	case goal == "ready":
		return func(object process.Object) (bool, error) {
			return answered(object, object.GetGeneration(), object.GetProcessSpec().RestartToken)
		}, nil
	case goal == "stopped":
		return func(object process.Object) (bool, error) { return hasStopped(object, object.GetGeneration()), nil }, nil
	case goal == "deleted":
		return func(process.Object) (bool, error) { return false, nil }, nil
	case ok && kind != "" && status != "":
		return func(object process.Object) (bool, error) {
			observed := object.GetProcessStatus()
			return observed.ObservedGeneration >= object.GetGeneration() && strings.EqualFold(string(conditions.Status(observed.Conditions, kind)), status), nil
		}, nil
	}
	return nil, fmt.Errorf("--for %q is not supported: use ready, stopped, deleted or condition=TYPE[=STATUS]", goal)
}

// temporary reports whether the same request can succeed later without a change by a person.
func temporary(err error) bool {
	var network net.Error
	return errors.As(err, &network) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
}

// sayProgress returns a function that prints the state of an object to stderr while a command waits for it. It prints a line for each new reason, but none
// during the first second.
func (a *app) sayProgress(ref reference) func(process.Object) {
	said, first := "", a.clock.Now()
	return func(object process.Object) {
		r := makeRow(ref.kind, object)
		if r.ready == "True" || r.reason == said || a.clock.Since(first) < time.Second {
			return
		}
		said = r.reason
		a.say("waiting for %s: %s", ref, strings.TrimSuffix(r.reason+": "+r.message, ": "))
	}
}

// awaitOptions describe what a command waits for after it has changed an object.
type awaitOptions struct {
	// generation is the generation of the object after the change.
	generation int64
	// token is the restart token that the change has set, or that the object had before.
	token   string
	timeout time.Duration
	// goal describes what the command waits for in messages, such as stopped. Empty means ready.
	goal string
	// progress, if not nil, is called with the object whenever it was read.
	progress func(process.Object)
}

// awaitReady polls until the incarnation that was started for the change, or a later one, is ready. It returns an error if that incarnation cannot become
// ready, or if it is not ready within the timeout.
func (a *app) awaitReady(ctx context.Context, to *connection, ref reference, wanted awaitOptions) error {
	return a.await(ctx, to, ref, wanted, func(object process.Object) (bool, error) { return answered(object, wanted.generation, wanted.token) })
}

// await polls until done returns true or an error, at most for the timeout of wanted.
func (a *app) await(ctx context.Context, to *connection, ref reference, wanted awaitOptions, done func(process.Object) (bool, error)) error {
	failed := false
	err := wait.PollUntilContextTimeout(ctx, pollEvery, wanted.timeout, true, func(ctx context.Context) (bool, error) {
		object, err := to.get(ctx, ref)
		switch {
		case err != nil && ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil && !temporary(err):
			return false, err
		case err != nil:
			if !failed {
				a.say("%v; retrying", explain(err))
			}
			failed = true
			return false, nil
		case wanted.progress != nil:
			wanted.progress(object)
		}
		reached, err := done(object)
		if err != nil {
			err = fmt.Errorf("%s: %w", ref, err)
		}
		return reached, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %s is not %s after %s: see berth status %s and berth logs %s", errTimeout, ref, cmp.Or(wanted.goal, "ready"), wanted.timeout, ref, ref)
	}
	return err
}

// answered reports whether the new incarnation is ready. It returns an error if that incarnation cannot become ready. An incarnation that was started for a
// newer restart request of another client counts too.
func answered(object process.Object, generation int64, token string) (bool, error) {
	status := object.GetProcessStatus()
	if status.ObservedGeneration < generation {
		return false, nil
	}
	if stalled := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionStalled); stalled != nil && stalled.Status == metav1.ConditionTrue {
		return false, fmt.Errorf("%s: %s", stalled.Reason, clean(stalled.Message))
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready != nil && ready.Reason == v1alpha1.ReasonStopped {
		return false, fmt.Errorf("%s: %s", ready.Reason, clean(ready.Message))
	}
	newer := object.GetProcessSpec().RestartToken
	if status.ObservedRestartToken != token && status.ObservedRestartToken != newer {
		return false, nil
	}
	return meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady) &&
		!meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRestarting), nil
}

// awaitState waits until an object that was started is ready, or until an object that was stopped has no process.
func (a *app) awaitState(ctx context.Context, to *connection, ref reference, object process.Object, timeout time.Duration) error {
	wanted := awaitOptions{generation: object.GetGeneration(), token: object.GetProcessSpec().RestartToken, timeout: timeout, progress: a.sayProgress(ref)}
	if object.GetProcessSpec().State != v1alpha1.StateStopped {
		return a.awaitReady(ctx, to, ref, wanted)
	}
	return a.awaitStopped(ctx, to, ref, wanted)
}

// awaitStopped waits until an object has no process.
func (a *app) awaitStopped(ctx context.Context, to *connection, ref reference, wanted awaitOptions) error {
	wanted.goal = "stopped"
	return a.await(ctx, to, ref, wanted, func(object process.Object) (bool, error) {
		return hasStopped(object, wanted.generation), nil
	})
}

// hasStopped reports whether an object has no process and the manager has seen the generation.
func hasStopped(object process.Object, generation int64) bool {
	status := object.GetProcessStatus()
	return status.ObservedGeneration >= generation && status.Process == nil
}
