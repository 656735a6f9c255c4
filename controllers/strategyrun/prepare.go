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
func (k *Kind) Prepare(ctx context.Context, object process.Object, _ *facts.Incarnation, start *process.StartSpec) error {
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
	if restored, err := k.restored(ctx, run); err != nil || restored != nil {
		start.Blocked = restored
		return err
	}
	if started(run) {
		return k.readmit(ctx, run, start)
	}
	strategy := k.take(run.UID)
	gate, held := admit(run, strategy)
	switch {
	case gate != nil:
		start.Blocked = gate
		if gate.Outcome != "" {
			run.Status.Pinned = pin(strategy)
		}
	case start.Blocked != nil: // something other than the strategy already blocks the start
	case blocked != nil:
		start.Blocked = blocked
	case held != nil:
		start.Held = held
	default:
		run.Status.Pinned = pin(strategy)
	}
	return nil
}

// readmit checks again whether the strategy permits a start that is recorded but has not happened, because the breaker may have opened since the record, for
// example while no manager was running. Such a run keeps the program that it copied. If its strategy was deleted, it starts, as the record says.
func (k *Kind) readmit(ctx context.Context, run *v1alpha1.StrategyRun, start *process.StartSpec) error {
	if start.Found || run.Status.Process != nil || run.Status.LastExit != nil || run.Status.Pinned == nil {
		return nil
	}
	strategy, err := k.strategy(ctx, run)
	if err != nil || strategy == nil || strategy.UID != run.Status.Pinned.UID {
		return err
	}
	gate, held := admit(run, strategy)
	if gate != nil {
		start.Blocked = gate
	}
	start.Held = held
	run.Status.Pinned.Epoch = strategy.Status.Epoch
	return nil
}

// admit returns why a run must not start. held is why a run that could start must wait. Both are nil if the run may start.
func admit(run *v1alpha1.StrategyRun, strategy *v1alpha1.Strategy) (blocked, held *lifecycle.Blocked) {
	name := run.Spec.StrategyRef.Name
	if strategy == nil || !strategy.DeletionTimestamp.IsZero() {
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonStrategyMissing, Retry: missingRetry,
			Message: fmt.Sprintf("Strategy %s does not exist in namespace %s; create it, or delete this run.", name, run.Namespace)}, nil
	}
	if strategy.Spec.State == v1alpha1.StrategyDisabled {
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonDisabled,
			Message: fmt.Sprintf("Strategy %s is disabled; the run starts when spec.state of the strategy is Enabled.", name)}, nil
	}
	if pinned := run.Spec.Program; pinned != "" && pinned != plan.Program(strategy) {
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonStrategyChanged,
			Message: fmt.Sprintf("The program of strategy %s has changed since the plan of this run started. Restore that program, "+
				"or cancel the plan and create a new one.", name)}, nil
	}
	return admitByBreaker(run, strategy)
}

// admitByBreaker is the part of admit that depends on the breaker.
func admitByBreaker(run *v1alpha1.StrategyRun, strategy *v1alpha1.Strategy) (blocked, held *lifecycle.Blocked) {
	name, breaker := run.Spec.StrategyRef.Name, strategy.Status.Breaker
	reset := strategy.Spec.ResetToken
	if breaker == nil || reset != "" && reset != strategy.Status.ObservedResetToken {
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonPending, Retry: pendingRetry,
			Message: fmt.Sprintf("Strategy %s has not been reconciled yet.", name)}, nil
	}
	switch {
	case breaker.State == v1alpha1.BreakerOpen:
		return &lifecycle.Blocked{Reason: v1alpha1.ReasonSkippedCircuitOpen, Outcome: v1alpha1.OutcomeSkipped,
			Message: fmt.Sprintf("The breaker of strategy %s is open after %d failures, so the run was skipped. "+
				"Fix the cause, then run \"berth reset strategies %s\".", name, breaker.Failures, name)}, nil
	case breaker.State == v1alpha1.BreakerHalfOpen && breaker.Trial != run.UID:
		first := "which it has not chosen yet"
		if breaker.TrialName != "" {
			first = breaker.TrialName
		}
		return nil, &lifecycle.Blocked{Reason: v1alpha1.ReasonCircuitHalfOpen,
			Message: fmt.Sprintf("The breaker of strategy %s allows one trial run first: %s.", name, first)}
	default:
		return nil, nil
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
