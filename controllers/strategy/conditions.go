// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// concludeConditions sets the conditions. Exactly one of Ready, Reconciling and Stalled is True.
func concludeConditions(strategy *v1alpha1.Strategy, now time.Time) {
	breaker := strategy.Status.Breaker
	switch {
	case breaker.State == v1alpha1.BreakerOpen:
		be(strategy, now, v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen, openMessage(strategy))
	case strategy.Spec.State == v1alpha1.StrategyDisabled:
		be(strategy, now, v1alpha1.ConditionStalled, v1alpha1.ReasonDisabled, "Runs wait until spec.state is Enabled.")
	case breaker.State == v1alpha1.BreakerHalfOpen:
		be(strategy, now, v1alpha1.ConditionReconciling, v1alpha1.ReasonCircuitHalfOpen, "One run is tried after the cool-down.")
	default:
		be(strategy, now, v1alpha1.ConditionReady, v1alpha1.ReasonEnabled, "Runs are started.")
	}
	switch breaker.State {
	case v1alpha1.BreakerOpen:
		set(strategy, now, v1alpha1.ConditionCircuitOpen, true, v1alpha1.ReasonCircuitOpen, openMessage(strategy))
	case v1alpha1.BreakerHalfOpen:
		set(strategy, now, v1alpha1.ConditionCircuitOpen, false, v1alpha1.ReasonCircuitHalfOpen, "")
	default:
		set(strategy, now, v1alpha1.ConditionCircuitOpen, false, v1alpha1.ReasonCircuitClosed, "")
	}
}

func openMessage(strategy *v1alpha1.Strategy) string {
	message := fmt.Sprintf("%d failures without a success between them: runs are skipped.", strategy.Status.Breaker.Failures)
	if desired(strategy).Breaker.CoolDown > 0 {
		return message + " One is tried after the cool-down; berth reset strategies " + strategy.Name + " tries at once."
	}
	return message + " Mend the cause and run: berth reset strategies " + strategy.Name
}

// be sets one of the three conditions to True and the others to False.
func be(strategy *v1alpha1.Strategy, now time.Time, which, reason, message string) {
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		set(strategy, now, conditionType, conditionType == which, reason, message)
	}
}

func set(strategy *v1alpha1.Strategy, now time.Time, conditionType string, status bool, reason, message string) {
	value := metav1.ConditionFalse
	if status {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&strategy.Status.Conditions, metav1.Condition{
		Type: conditionType, Status: value, Reason: reason, Message: message,
		ObservedGeneration: strategy.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}
