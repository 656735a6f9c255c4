// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategyrun

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/plan"
)

// pendingRetry is how soon to check again whether a strategy has a current status. The write of that status also triggers a reconcile.
const pendingRetry = time.Second

// missingRetry is how soon to check again for a missing strategy. The creation of the strategy also triggers a reconcile.
const missingRetry = time.Minute

// Prepare implements process.Kind: it blocks the start unless the strategy permits it. It copies the program and the settings of the strategy to the status, in
// the same write as the intent to start.
func (k *Kind) Prepare(_ context.Context, object process.Object, _ *facts.Incarnation, start *process.StartSpec) error {
	run := runOf(object)
	variables, blocked := argumentVariables(run.Spec.Arguments)
	start.Variables = variables
	if err := k.setResultPaths(run, start); err != nil {
		return err
	}
	if where := k.runtimeOf(run); podspec.Type(where) == v1alpha1.RuntimePod {
		if err := podspec.Pod(start, run, "StrategyRun", where.Pod); err != nil {
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
		run.Status.Outcome, run.Status.Pinned = v1alpha1.OutcomeSkipped, pin(strategy)
		run.Status.Pinned.Process = nil
		start.Blocked = gate
	case gate != nil:
		start.Blocked = gate
	case start.Blocked != nil: // something other than the strategy already blocks the start
	case blocked != nil:
		start.Blocked = blocked
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
