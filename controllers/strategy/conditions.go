// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"fmt"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
)

// concludeConditions sets the conditions. Exactly one of Ready, Reconciling and Stalled is True.
func concludeConditions(strategy *v1alpha1.Strategy, now time.Time) {
	w := conditions.Writer{Conditions: &strategy.Status.Conditions, Generation: strategy.Generation, Now: now}
	breaker := strategy.Status.Breaker
	switch {
	case breaker.State == v1alpha1.BreakerOpen:
		w.Be(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen, openMessage(strategy))
	case strategy.Spec.State == v1alpha1.StrategyDisabled:
		w.Be(v1alpha1.ConditionReady, v1alpha1.ReasonDisabled, "The strategy is disabled. Runs wait until spec.state is Enabled.")
	case breaker.State == v1alpha1.BreakerHalfOpen:
		w.Be(v1alpha1.ConditionReconciling, v1alpha1.ReasonCircuitHalfOpen, halfOpenMessage(strategy))
	default:
		w.Be(v1alpha1.ConditionReady, v1alpha1.ReasonEnabled, "The strategy accepts runs.")
	}
	switch breaker.State {
	case v1alpha1.BreakerOpen:
		w.SetBool(v1alpha1.ConditionCircuitOpen, true, v1alpha1.ReasonCircuitOpen, openMessage(strategy))
	case v1alpha1.BreakerHalfOpen:
		w.SetBool(v1alpha1.ConditionCircuitOpen, false, v1alpha1.ReasonCircuitHalfOpen, "")
	default:
		w.SetBool(v1alpha1.ConditionCircuitOpen, false, v1alpha1.ReasonCircuitClosed, "")
	}
}

func halfOpenMessage(strategy *v1alpha1.Strategy) string {
	if trial := strategy.Status.Breaker.TrialName; trial != "" {
		return fmt.Sprintf("The cool-down is over; the trial run is %s.", trial)
	}
	return "The cool-down is over; the next run that can start is the trial run."
}

func openMessage(strategy *v1alpha1.Strategy) string {
	message := fmt.Sprintf("%d consecutive failures; runs are skipped.", strategy.Status.Breaker.Failures)
	if desired(strategy).Breaker.CoolDown > 0 {
		return fmt.Sprintf("%s A trial run starts after the cool-down. To retry now, run \"berth reset strategies %s\".", message, strategy.Name)
	}
	return fmt.Sprintf("%s Fix the cause, then run \"berth reset strategies %s\".", message, strategy.Name)
}
