// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategyrun

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/plan"
)

// pendingRetry is how soon to check again whether a strategy has a current status. The write of that status also triggers a reconcile.
const pendingRetry = time.Second

// briefly is how long the write of the start of a run is postponed, in case the run ends soon.
const briefly = 250 * time.Millisecond

// missingRetry is how soon to check again for a missing strategy. The creation of the strategy also triggers a reconcile.
const missingRetry = time.Minute

// Prepare implements process.Kind: it blocks the start unless the strategy permits it. It copies the program and the settings of the strategy to the status, in
// the same write as the intent to start.
func (k *Kind) Prepare(_ context.Context, object process.Object, _ *facts.Incarnation, next *process.StartSpec) error {
	run := runOf(object)
	variables, blocked := argumentVariables(run.Spec.Arguments)
	next.Variables = variables
	if err := k.place(run, next); err != nil {
		return err
	}
	if where := k.placeOf(run); podspec.Type(where) == v1alpha1.RuntimePod {
		if err := podspec.Pod(next, run, "StrategyRun", where.Pod); err != nil {
			return err
		}
	}
	if started(run) {
		return nil
	}
	strategy := k.take(run.UID)
	gate := admit(run, strategy)
	switch {
	case gate != nil && gate.Reason == v1alpha1.ReasonSkippedCircuitOpen:
		run.Status.Outcome, run.Status.Pinned = v1alpha1.RunSkipped, pin(strategy)
		run.Status.Pinned.Process = nil
		next.Blocked = gate
	case gate != nil:
		next.Blocked = gate
	case next.Blocked != nil: // something other than the strategy already blocks the start
	case blocked != nil:
		next.Blocked = blocked
	default:
		run.Status.Pinned = pin(strategy)
	}
	return nil
}

// admit returns why a run must not start, or nil if the run may start.
func admit(run *v1alpha1.StrategyRun, strategy *v1alpha1.Strategy) *lifecycle.Blocked {
	name := run.Spec.StrategyRef.Name
	if strategy == nil || !strategy.DeletionTimestamp.IsZero() {
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonStrategyMissing, Retry: missingRetry,
			Message: fmt.Sprintf("Strategy %s does not exist in namespace %s; create it, or delete this run.", name, run.Namespace)}
	}
	if strategy.Spec.State == v1alpha1.StrategyDisabled {
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonDisabled,
			Message: fmt.Sprintf("Strategy %s is disabled; the run starts when spec.state of the strategy is Enabled.", name)}
	}
	if pinned := run.Spec.Program; pinned != "" && pinned != plan.Program(strategy) {
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonStrategyChanged,
			Message: fmt.Sprintf("The program of strategy %s has changed since the plan of this run started. Restore that program, "+
				"or cancel the plan and create a new one.", name)}
	}
	breaker := strategy.Status.Breaker
	if breaker == nil || strategy.Status.ObservedResetToken != strategy.Spec.ResetToken {
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonPending, Retry: pendingRetry,
			Message: fmt.Sprintf("Strategy %s has not been reconciled yet.", name)}
	}
	switch {
	case breaker.State == v1alpha1.BreakerOpen:
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonSkippedCircuitOpen,
			Message: fmt.Sprintf("The breaker of strategy %s is open after %d failures, so the run was skipped. "+
				"Fix the cause, then run \"berth reset strategies %s\".", name, breaker.Failures, name)}
	case breaker.State == v1alpha1.BreakerHalfOpen && breaker.Trial != run.UID:
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonCircuitHalfOpen,
			Message: fmt.Sprintf("The breaker of strategy %s allows one trial run first.", name)}
	default:
		return nil
	}
}

// argumentVariables converts arguments to environment variables: go-version becomes ARG_GO_VERSION.
func argumentVariables(arguments []v1alpha1.RunArgument) (map[string]string, *lifecycle.Blocked) {
	variables := make(map[string]string, len(arguments))
	names := make(map[string]string, len(arguments))
	for _, argument := range arguments {
		variable := "ARG_" + strings.ToUpper(strings.ReplaceAll(argument.Name, "-", "_"))
		if other, taken := names[variable]; taken {
			return variables, &lifecycle.Blocked{Reason: v1alpha1.ReasonInvalidArgument,
				Message: fmt.Sprintf("Arguments %s and %s both map to the variable %s. Recreate the run with other names.", other, argument.Name, variable)}
		}
		names[variable], variables[variable] = argument.Name, argument.Value
	}
	return variables, nil
}

// DeriveStatus implements process.StatusDeriver: it sets the outcome from the exit of the process. An outcome never changes.
func (k *Kind) DeriveStatus(object, base process.Object, step *lifecycle.Step, now time.Time) {
	run, before := runOf(object), runOf(base)
	// There can be thousands of runs. Their status shows normal progress, and an event for each step would double the writes.
	step.Events = slices.DeleteFunc(step.Events, func(event lifecycle.Event) bool { return !event.Warning })
	if len(step.Events) > 1 {
		// The event for Stalled repeats the event for the exit, and suggests a restart, which is not possible for a run. It is kept if it is the only event, as
		// after a failed start.
		step.Events = slices.DeleteFunc(step.Events, func(event lifecycle.Event) bool {
			return event.Message == condition(run, v1alpha1.ConditionStalled).Message
		})
	}
	if before.Status.Outcome != "" {
		step.Events = nil
		before.Status.DeepCopyInto(&run.Status)
		run.Status.ObservedGeneration = run.Generation
		for i := range run.Status.Conditions {
			run.Status.Conditions[i].ObservedGeneration = run.Generation
		}
		if run.Status.FinishTime != nil {
			step.Expires = run.Status.FinishTime.Time
		}
		return
	}
	leaveOut(run)
	if run.Status.Outcome == "" {
		run.Status.Outcome = outcome(run, step)
	}
	k.collect(run, step)
	if left := unrecorded(run, before, step, now); left > 0 {
		before.Status.DeepCopyInto(&run.Status)
		step.Events, step.Requeue = nil, left
		return
	}
	if run.Status.Outcome == "" {
		return
	}
	finished := metav1.NewMicroTime(now)
	if end := run.Status.LastExit; end != nil && end.FinishTime != nil {
		finished = *end.FinishTime
	}
	run.Status.FinishTime = &finished
	conclude(run, now)
}

// leaveOut removes the parts of the status that have no meaning for a process that starts only once.
func leaveOut(run *v1alpha1.StrategyRun) {
	run.Status.Breaker = nil
	meta.RemoveStatusCondition(&run.Status.Conditions, v1alpha1.ConditionRestarting)
}

// unrecorded returns how long the write that records the start of a process may still be postponed. It returns 0 if anything else must be written. If the
// process ends within that time, one write is saved.
func unrecorded(run, before *v1alpha1.StrategyRun, step *lifecycle.Step, now time.Time) time.Duration {
	is := run.Status.Process
	idle := step.Action == lifecycle.None || step.Action == ""
	if run.Status.Outcome != "" || !idle || is == nil || is.StartTime == nil || before.Status.Process != nil || run.Status.Stopping != nil ||
		before.Status.Incarnation != run.Status.Incarnation || before.Status.ObservedGeneration != run.Generation {
		return 0
	}
	left := is.StartTime.Add(briefly).Sub(now)
	if left > briefly {
		return 0 // the clock was set back
	}
	return left
}

// outcome returns the outcome of a run. It returns "" while the run has not ended.
func outcome(run *v1alpha1.StrategyRun, step *lifecycle.Step) v1alpha1.RunOutcome {
	status := &run.Status
	end := status.LastExit
	ended := end != nil && end.Incarnation == status.Incarnation
	switch {
	case status.Incarnation > 0 && !ended:
		return ""
	case !ended: // not started
		if step.Released || run.Spec.State == v1alpha1.RunCancelled {
			return v1alpha1.RunWasCancelled
		}
		return ""
	case end.Reason == v1alpha1.ReasonCompleted:
		return v1alpha1.RunSucceeded
	case end.Reason == v1alpha1.ReasonTimedOut:
		return v1alpha1.RunTimedOut
	case end.Reason == v1alpha1.ReasonStopped:
		return v1alpha1.RunWasCancelled
	default:
		return v1alpha1.RunFailed
	}
}

// conclude sets the final conditions of a run that has ended.
func conclude(run *v1alpha1.StrategyRun, now time.Time) {
	reason := string(run.Status.Outcome)
	message := "The run " + describe(run) + "."
	succeeded, failed := metav1.ConditionFalse, metav1.ConditionTrue
	if run.Status.Outcome == v1alpha1.RunSucceeded {
		succeeded, failed = failed, succeeded
	}
	if ready := condition(run, v1alpha1.ConditionReady); run.Status.Outcome == v1alpha1.RunSkipped && ready != nil {
		message = ready.Message
	}
	process.SetCondition(run, now, v1alpha1.ConditionSucceeded, succeeded, reason, message)
	process.SetCondition(run, now, v1alpha1.ConditionReady, succeeded, reason, message)
	process.SetCondition(run, now, v1alpha1.ConditionReconciling, metav1.ConditionFalse, reason, "")
	if failed == metav1.ConditionFalse {
		message = "" // Ready and Succeeded contain it
	}
	process.SetCondition(run, now, v1alpha1.ConditionStalled, failed, reason, message)
}

func describe(run *v1alpha1.StrategyRun) string {
	end := run.Status.LastExit
	switch {
	case run.Status.Outcome == v1alpha1.RunSucceeded:
		return "ended with exit code 0"
	case run.Status.Outcome == v1alpha1.RunWasCancelled:
		return "was cancelled"
	case run.Status.Outcome == v1alpha1.RunTimedOut:
		return "exceeded its timeout and was stopped"
	case end == nil:
		return "failed"
	}
	how, more := "failed", strings.TrimSuffix(end.Message, ".")
	switch {
	case end.Reason == v1alpha1.ReasonLost:
		how = "was lost"
	case end.ExitCode != nil:
		how = fmt.Sprintf("ended with exit code %d", *end.ExitCode)
	case end.Signal != "":
		how = "was terminated by " + end.Signal
	}
	if more != "" {
		how += ": " + more
	}
	return how
}

func condition(run *v1alpha1.StrategyRun, conditionType string) *metav1.Condition {
	for i := range run.Status.Conditions {
		if run.Status.Conditions[i].Type == conditionType {
			return &run.Status.Conditions[i]
		}
	}
	return nil
}
