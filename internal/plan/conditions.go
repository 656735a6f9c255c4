// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
)

// describe sets what the plan waits for and the conditions Ready, Reconciling and Stalled, exactly one of which is True.
func (p *planner) describe() {
	s, last, blocked := p.status, p.last(), p.desired.Blocked
	waiting, which, reason, message := "", v1alpha1.ConditionStalled, last.Reason, last.Message
	switch {
	case s.State == queued && s.DuplicateOf != nil:
		waiting = "for nothing: plan " + s.DuplicateOf.Name + " has the same key"
		reason, message = v1alpha1.ReasonDuplicate, p.duplicateMessage()
	case blocked != nil && (s.State == queued || p.restored()):
		waiting, reason, message = blocked.Waiting, blocked.Reason, blocked.Message
	case p.ending != nil: // also in the state queued, if the status of a plan with runs was lost
		waiting = "for runs to end"
		which, reason, message = v1alpha1.ConditionReconciling, v1alpha1.ReasonEnding, "Stopping the runs that are still active."
	case s.State == queued:
		which, reason, message = v1alpha1.ConditionReconciling, v1alpha1.ReasonPending, "The plan has not started yet."
	case s.State == processing:
		waiting = conditions.Truncate(p.waitingForRuns(), longestMessage)
		which, reason, message = v1alpha1.ConditionReconciling, v1alpha1.ReasonProcessing, fmt.Sprintf("%s is waiting %s.", s.CurrentPhase, waiting)
	case s.State == complete:
		waiting = "for approval of " + string(after(s.CurrentPhase))
		which, reason = v1alpha1.ConditionReady, v1alpha1.ReasonAwaitingApproval
		message = fmt.Sprintf("%s succeeded. %s", s.CurrentPhase, p.howToApprove())
	case s.State == applied:
		which, reason = v1alpha1.ConditionReady, v1alpha1.ReasonApplied
	case s.State == errored:
		waiting = "for a retry or a revert"
	case s.State == constrained && last.Reason == v1alpha1.ReasonReversionLimit:
		waiting = "for cancellation or a retry: the reversion limit is reached"
	case s.State == constrained:
		waiting = "for a reset of " + strings.Join(p.strategiesWith(v1alpha1.OutcomeSkipped), ", ") + " and a retry"
	}
	s.Waiting = conditions.Truncate(waiting, longestMessage)
	p.be(which, reason, message)
}

// howToApprove names the approval that starts the next phase of this attempt.
func (p *planner) howToApprove() string {
	return fmt.Sprintf("To start %s, set spec.approval to phase %[1]s and attempt %d.", after(p.status.CurrentPhase), p.status.Attempt)
}

func (p *planner) waitingForRuns() string {
	phase := p.pinned()
	if phase == nil {
		return ""
	}
	ended := 0
	var stuck []string
	for _, listed := range p.status.Runs {
		if listed.Outcome != "" {
			ended++
		} else if run := p.runs[listed.Name]; run.Stuck != "" {
			stuck = append(stuck, listed.Strategy+" "+run.Stuck)
		}
	}
	text := fmt.Sprintf("for %d of %d runs", len(phase.Strategies)-ended, len(phase.Strategies))
	if len(stuck) > 0 {
		text += ": " + strings.Join(stuck, ", ")
	}
	return text
}

// last returns the latest entry of the history, which explains the state of the plan.
func (p *planner) last() v1alpha1.PlanHistoryEntry {
	if n := len(p.status.History); n > 0 {
		return p.status.History[n-1]
	}
	return v1alpha1.PlanHistoryEntry{}
}

// conditions sets the conditions that describe does not set.
func (p *planner) conditions() {
	s := p.status
	for i, conditionType := range []string{v1alpha1.ConditionStrategized, v1alpha1.ConditionExecuted, v1alpha1.ConditionApplied} {
		if slices.Contains(s.Completed, order[i]) {
			p.set(conditionType, metav1.ConditionTrue, v1alpha1.ReasonPhaseComplete, "Phase "+string(order[i])+" is complete.")
		} else {
			p.set(conditionType, metav1.ConditionFalse, v1alpha1.ReasonPending, "")
		}
	}
	if s.State == complete && !p.restored() {
		p.set(v1alpha1.ConditionAwaitingApproval, metav1.ConditionTrue, v1alpha1.ReasonAwaitingApproval, p.howToApprove())
	} else {
		p.set(v1alpha1.ConditionAwaitingApproval, metav1.ConditionFalse, string(s.State), "")
	}
	p.beSuccessful()
	p.beInConflict()
}

func (p *planner) beSuccessful() {
	s, last := p.status, p.last()
	switch s.State {
	case applied:
		p.set(v1alpha1.ConditionSucceeded, metav1.ConditionTrue, v1alpha1.ReasonApplied, "All phases are complete.")
	case errored, constrained, cancelled:
		p.set(v1alpha1.ConditionSucceeded, metav1.ConditionFalse, last.Reason, last.Message)
	default:
		p.set(v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, v1alpha1.ReasonPending, "")
	}
}

func (p *planner) beInConflict() {
	conflict := meta.FindStatusCondition(p.status.Conditions, v1alpha1.ConditionConflict)
	switch {
	case p.status.DuplicateOf != nil:
		p.set(v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonDuplicate, p.duplicateMessage())
	case p.taken != "":
		p.set(v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonNameTaken,
			fmt.Sprintf("StrategyRun %s already exists and does not belong to this plan. Delete it, then retry the plan.", p.taken))
	case p.status.State == queued && p.desired.Blocked != nil && p.desired.Blocked.Reason == v1alpha1.ReasonDuplicate:
		p.set(v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonDuplicate, p.desired.Blocked.Message)
	case conflict == nil || conflict.Reason != v1alpha1.ReasonNameTaken || p.status.Attempt != p.record.Attempt:
		p.set(v1alpha1.ConditionConflict, metav1.ConditionFalse, v1alpha1.ReasonNoConflict, "")
	default: // the conflict lasts until the next attempt
		p.set(v1alpha1.ConditionConflict, metav1.ConditionTrue, conflict.Reason, conflict.Message)
	}
}

func (p *planner) duplicateMessage() string {
	return fmt.Sprintf("Plan %s has the same idempotencyKey and started first. This plan never starts. Delete this plan, or recreate it with another key.", p.status.DuplicateOf.Name)
}

func (p *planner) be(which, reason, message string) {
	p.writer().Be(which, cmp.Or(reason, v1alpha1.ReasonPending), message)
}

func (p *planner) set(conditionType string, status metav1.ConditionStatus, reason, message string) {
	p.writer().Set(conditionType, status, cmp.Or(reason, v1alpha1.ReasonPending), message)
}

func (p *planner) writer() conditions.Writer {
	return conditions.Writer{Conditions: &p.status.Conditions, Generation: p.desired.Generation, Now: p.now}
}
