// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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
	objects := &selection{}
	var wait waitFlags
	var goal string
	command := &cobra.Command{
		Use:   "wait KIND/NAME... [--for ready|stopped|deleted|condition=TYPE[=STATUS]]",
		Short: "Wait until objects are ready, stopped or deleted",
		Long: "Wait returns when each object has reached the state of --for. It fails early if an object cannot become ready without a change by a person.\n" +
			"A temporary failure of the API server does not end the wait.",
		Example: "  berth wait devserver/web\n\n" +
			"  # Wait until an agent asks for input\n" +
			"  berth wait instance/agent --for condition=AwaitingInput --timeout 10m",
		RunE: func(command *cobra.Command, args []string) error {
			reached, err := parseGoal(goal)
			if err != nil {
				return &usageError{err, command.UsageString()}
			}
			return objects.each(command.Context(), a, args, func(to *connection, ref reference) error {
				err := a.await(command.Context(), to, ref, awaitOptions{timeout: wait.timeout, goal: goal, progress: a.sayProgress(ref)}, reached)
				if err != nil && (goal != goalDeleted || !errors.Is(err, errMissing)) {
					return err
				}
				_, err = fmt.Fprintf(a.out, "%s %s\n", ref, goal)
				return err
			})
		},
	}
	objects.addTo(a, command)
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
	case goal == goalDeleted:
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
	cut := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) // the server ended during its answer
	return cut || errors.As(err, &network) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
}

// sayProgress returns a function that prints the state of an object to stderr while a command waits for it. It prints a line for each new reason, but none
// during the first second.
func (a *app) sayProgress(ref reference) func(process.Object) {
	said, first := "", a.clock.Now()
	return func(object process.Object) {
		r := rowOf(object)
		if r.ready == "True" || r.reason == said || a.clock.Since(first) < time.Second {
			return
		}
		said = r.reason
		a.say("waiting for %s: %s", ref, strings.TrimSuffix(r.reason+": "+r.message, ": "))
	}
}

// awaitOptions describe how a command waits for an object.
type awaitOptions struct {
	timeout time.Duration
	// goal describes what the command waits for in messages, such as stopped. Empty means ready.
	goal string
	// progress, if not nil, is called with the object whenever it was read.
	progress func(process.Object)
}

// awaitChange waits until a change has taken effect: until the incarnation that was started for the change, or a later one, is ready or, if the object is to be
// stopped or cancelled, until it has no process. object is the object after the change.
func (a *app) awaitChange(ctx context.Context, to *connection, ref reference, object process.Object, wanted awaitOptions) error {
	ref = ref.of(object)
	generation, token := object.GetGeneration(), object.GetProcessSpec().RestartToken
	if object.GetProcessSpec().State == v1alpha1.StateStopped || ref.kind.once {
		wanted.goal = "stopped"
		return a.await(ctx, to, ref, wanted, func(now process.Object) (bool, error) { return hasStopped(now, generation), nil })
	}
	before := object.GetProcessStatus().Incarnation
	return a.await(ctx, to, ref, wanted, func(now process.Object) (bool, error) {
		if withdrawn(now, token, before) {
			return false, fmt.Errorf("%s: spec.restartToken was removed before the restart began; the owner of the spec removes it: "+
				"see metadata.managedFields, then run berth restart %[1]s again", ref)
		}
		return answered(now, generation, token)
	})
}

// withdrawn reports whether a request to restart was removed before it was acted on: the incarnation is the one from before the request.
func withdrawn(object process.Object, token string, before int64) bool {
	status := object.GetProcessStatus()
	return token != "" && object.GetProcessSpec().RestartToken == "" && status.ObservedRestartToken != token &&
		status.ObservedGeneration >= object.GetGeneration() && status.Incarnation == before && !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRestarting)
}

// goalDeleted is the goal of a wait that ends when the object is missing, or when another object has its name.
const goalDeleted = "deleted"

// recreated returns the result of a wait whose object was deleted and recreated.
func (o *awaitOptions) recreated(ref reference) (bool, error) {
	if o.goal == goalDeleted {
		return true, nil
	}
	return false, errRecreated{ref.String()}
}

// await polls until done returns true or an error, at most for the timeout of wanted. It returns an error if the reference has a UID, and another object has
// the name of the object now, unless the goal is goalDeleted.
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
		case ref.uid != "" && object.GetUID() != ref.uid:
			return wanted.recreated(ref)
		case wanted.progress != nil:
			wanted.progress(object)
		}
		if wanted.goal == goalDeleted {
			ref.uid = object.GetUID()
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

// stalledBy returns the condition Stalled if it is True, and nil otherwise.
func stalledBy(conditions []metav1.Condition) *metav1.Condition {
	if !meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionStalled) {
		return nil
	}
	return meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
}

// answered reports whether the new incarnation is ready. It returns an error if that incarnation cannot become ready. An incarnation that was started for a
// newer restart request of another client counts too.
func answered(object process.Object, generation int64, token string) (bool, error) {
	status := object.GetProcessStatus()
	if status.ObservedGeneration < generation {
		return false, nil
	}
	if stalled := stalledBy(status.Conditions); stalled != nil {
		return false, fmt.Errorf("%s: %s", stalled.Reason, clean(stalled.Message))
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready != nil && ready.Reason == v1alpha1.ReasonStopped {
		return false, fmt.Errorf("%s: %s", ready.Reason, clean(ready.Message))
	}
	newer := object.GetProcessSpec().RestartToken
	asked := newer != "" && status.ObservedRestartToken != token && status.ObservedRestartToken != newer // a removed token is no request
	if asked || object.GetProcessSpec().UpdatePolicy != v1alpha1.UpdateOnRestart {
		if err := delayed(status, generation); err != nil {
			return false, err
		}
	}
	return !asked && meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady) &&
		!meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRestarting), nil
}

// delayed returns why a restart waits while the old process keeps running; nil if none waits.
func delayed(status *v1alpha1.ProcessStatus, generation int64) error {
	drift := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionDriftDetected)
	if drift == nil || drift.Status != metav1.ConditionTrue || drift.Reason == v1alpha1.ReasonDrifted || drift.ObservedGeneration < generation {
		return nil
	}
	return fmt.Errorf("%s: %s", drift.Reason, clean(drift.Message))
}

// hasStopped reports whether an object has no process and the manager has seen the generation.
func hasStopped(object process.Object, generation int64) bool {
	status := object.GetProcessStatus()
	return status.ObservedGeneration >= generation && status.Process == nil
}
