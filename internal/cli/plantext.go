// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// brief returns a short description of the state of a plan.
func brief(plan *v1alpha1.Plan) string {
	s := &plan.Status
	words := []string{string(cmp.Or(s.State, v1alpha1.PlanQueued))}
	if s.CurrentPhase != "" {
		words = []string{string(s.CurrentPhase), string(s.State)}
	}
	if s.Attempt > 1 {
		words = append(words, fmt.Sprintf("(attempt %d)", s.Attempt))
	}
	if s.Waiting != "" {
		words = append(words, "waiting "+clean(s.Waiting))
	}
	return strings.Join(words, " ")
}

// remarks returns why a plan does not continue, and what the user can do about it.
func remarks(plan *v1alpha1.Plan) []string {
	s, name := &plan.Status, plan.Name
	var said []string
	if reason := plan.Annotations[annotationReason]; reason != "" {
		said = append(said, "reason: "+reason)
	}
	if stalled := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionStalled); stalled != nil && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionStalled) {
		said = append(said, stalled.Reason+": "+stalled.Message)
	}
	switch {
	case plan.Spec.State == v1alpha1.PlanCancelRequested && s.State != v1alpha1.PlanCancelled && s.State != v1alpha1.PlanApplied:
		said = append(said, "cancellation in progress")
	case s.State == v1alpha1.PlanComplete && phaseRank(plan.Spec.TargetPhase) <= phaseRank(s.CurrentPhase):
		said = append(said, "to continue: berth plan approve "+name)
	case s.State == v1alpha1.PlanErrored:
		said = append(said, fmt.Sprintf("to run %s again: berth plan retry %s; to start over: berth plan revert %s", s.CurrentPhase, name, name))
	case s.State == v1alpha1.PlanConstrained && skipped(s) != "":
		said = append(said, fmt.Sprintf("to continue: berth reset strategies %s, then berth plan retry %s", skipped(s), name))
	case s.State == v1alpha1.PlanConstrained:
		said = append(said, fmt.Sprintf("to continue from here: berth plan retry %s; to end the plan: berth plan cancel %s", name, name))
	}
	return said
}

// skipped returns the names of the strategies of the current phase that were skipped because their breaker was open, separated by spaces.
func skipped(s *v1alpha1.PlanStatus) string {
	var names []string
	for _, run := range s.Runs {
		if run.Outcome == v1alpha1.RunSkipped {
			names = append(names, run.Strategy)
		}
	}
	return strings.Join(names, " ")
}
