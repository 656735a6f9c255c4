// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// recordDelay is how long the write that records the process of a run is postponed. If the run ends within that time, one write is saved.
const recordDelay = 250 * time.Millisecond

// Once describes a process that runs once and then has an outcome, as a StrategyRun does.
type Once struct {
	// Outcome is the recorded outcome; empty while the run has not ended.
	Outcome v1alpha1.RunOutcome
	// FinishTime is set when the outcome was recorded. Afterwards only observedGeneration changes.
	FinishTime time.Time
}

// runOnce adjusts the decision to a process that runs once: it determines the outcome and the final conditions.
func (m *machine) runOnce(record *v1alpha1.ProcessStatus) {
	once := m.desired.Once
	if !once.FinishTime.IsZero() {
		m.status = *record.DeepCopy()
		m.status.ObservedGeneration = m.desired.Generation
		m.writer().Renew(v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionSucceeded) // final for every spec
		m.step.Outcome, m.step.Events, m.step.Expires = once.Outcome, nil, once.FinishTime
		return
	}
	// A process that starts only once has no breaker and no condition Restarting.
	m.status.Breaker = nil
	meta.RemoveStatusCondition(&m.status.Conditions, v1alpha1.ConditionRestarting)
	m.step.Outcome = cmp.Or(once.Outcome, m.step.Outcome, m.outcome())
	m.step.Events = m.eventsOnce()
	if left := m.recordLater(record); left > 0 {
		m.status = *record.DeepCopy()
		m.step.Events, m.step.Requeue, m.step.Postponed = nil, left, true
		return
	}
	if m.step.Outcome != "" {
		m.setOutcomeConditions()
	}
}

// outcome returns the outcome of a run; empty while the run has not ended.
func (m *machine) outcome() v1alpha1.RunOutcome {
	end := m.status.LastExit
	ended := end != nil && end.Incarnation == m.status.Incarnation
	switch {
	case m.status.Incarnation > 0 && !ended:
		return ""
	case !ended && (m.step.Released || m.desired.State == DesiredStopped):
		return v1alpha1.OutcomeCancelled
	case !ended: // not started
		return ""
	case exits[end.Reason].succeeded:
		return v1alpha1.OutcomeSucceeded
	case end.Reason == v1alpha1.ReasonTimedOut:
		return v1alpha1.OutcomeTimedOut
	case exits[end.Reason].requested:
		return v1alpha1.OutcomeCancelled
	default:
		return v1alpha1.OutcomeFailed
	}
}

// eventsOnce returns the events of a run. There can be thousands of runs. Their status shows normal progress, and an event for each step would double the writes.
func (m *machine) eventsOnce() []Event {
	warnings := slices.DeleteFunc(m.step.Events, func(event Event) bool { return !event.Warning })
	if len(warnings) < 2 {
		return warnings
	}
	// The event for Stalled repeats the event for the exit, and suggests a restart, which is not possible for a run. It is kept if it is the only event, as after a
	// failed start.
	stalled := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionStalled).Message
	return slices.DeleteFunc(warnings, func(event Event) bool { return event.Message == stalled })
}

// recordLater returns how long the write that records the process may still be postponed. It returns 0 if anything else must be written.
func (m *machine) recordLater(record *v1alpha1.ProcessStatus) time.Duration {
	running := m.status.Process
	switch {
	case running == nil || running.StartTime == nil || m.step.Outcome != "" || m.step.Action != None || m.status.Stopping != nil:
		return 0
	case record.Process != nil || record.Incarnation != m.status.Incarnation || record.ObservedGeneration != m.desired.Generation:
		return 0
	}
	left := running.StartTime.Add(recordDelay).Sub(m.now)
	if left > recordDelay {
		return 0 // the clock was set back
	}
	return left
}

// setOutcomeConditions sets the final conditions of a run that has ended.
func (m *machine) setOutcomeConditions() {
	reason, message := string(m.step.Outcome), "The run "+m.describeOnce()+"."
	if ready := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionReady); m.step.Outcome == v1alpha1.OutcomeSkipped && ready != nil {
		message = ready.Message
	}
	succeeded := m.step.Outcome == v1alpha1.OutcomeSucceeded
	m.set(v1alpha1.ConditionSucceeded, succeeded, reason, message)
	m.set(v1alpha1.ConditionReady, succeeded, reason, message)
	m.set(v1alpha1.ConditionReconciling, false, reason, "")
	if succeeded {
		message = "" // Ready and Succeeded contain it
	}
	m.set(v1alpha1.ConditionStalled, !succeeded, reason, message)
}

// describeOnce returns how a run ended, for users.
func (m *machine) describeOnce() string {
	end := m.status.LastExit
	switch {
	case m.step.Outcome == v1alpha1.OutcomeSucceeded:
		return "ended with exit code 0"
	case m.step.Outcome == v1alpha1.OutcomeCancelled:
		return "was cancelled"
	case m.step.Outcome == v1alpha1.OutcomeTimedOut:
		return "exceeded its timeout and was stopped"
	case end == nil:
		return "failed"
	}
	how, more := "failed", strings.TrimSuffix(end.Message, ".")
	switch {
	case exits[end.Reason].lost:
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
