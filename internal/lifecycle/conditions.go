// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
)

// always are the conditions that every object of a process kind has from its first reconcile on; only StrategyRuns have no Restarting. The other conditions are
// omitted while they have their usual status.
var always = []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionRestarting}

// firstConditions sets the conditions that are missing to Unknown, so that the decision does not have to handle missing ones.
func (m *machine) firstConditions() {
	for _, conditionType := range always {
		if meta.FindStatusCondition(m.status.Conditions, conditionType) == nil {
			m.writer().Set(conditionType, metav1.ConditionUnknown, v1alpha1.ReasonPending, "")
		}
	}
}

// reportRetry reports, in place of the normal progress, that an action failed and is retried.
func (m *machine) reportRetry() {
	if m.observed.LastError == "" {
		return
	}
	cause := strings.TrimSuffix(m.observed.LastError, ".") + "."
	switch m.step.Action {
	case StartProcess:
		m.reconciling(v1alpha1.ReasonStartFailed, fmt.Sprintf("The start of incarnation %d failed and is retried: %s", m.step.Incarnation, cause))
	case StopProcess, KillProcess:
		m.reconciling(v1alpha1.ReasonStopFailed, fmt.Sprintf("Incarnation %d cannot be stopped; Berth retries: %s", m.step.Incarnation, cause))
	}
}

// concludeConditions sets the conditions that follow from the rest of the status.
func (m *machine) concludeConditions() {
	m.reportRetry()
	breaker := m.status.Breaker
	switch breaker.State {
	case v1alpha1.BreakerOpen:
		m.set(v1alpha1.ConditionCircuitOpen, true, v1alpha1.ReasonCircuitOpen, describe(m.status.LastExit)+". Berth does not start the process for now.")
	case v1alpha1.BreakerHalfOpen:
		m.set(v1alpha1.ConditionCircuitOpen, false, v1alpha1.ReasonCircuitHalfOpen, "The cool-down is over; a trial start is in progress.")
	default:
		m.set(v1alpha1.ConditionCircuitOpen, false, v1alpha1.ReasonCircuitClosed, "")
	}
	if !m.conflict {
		m.set(v1alpha1.ConditionConflict, false, v1alpha1.ReasonNoConflict, "")
	}
	if restarting := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionRestarting); restarting.Status == metav1.ConditionUnknown {
		m.notRestarting()
	}
	m.writer().Renew(v1alpha1.ConditionRestarting) // a restart that is in progress continues
}

// The methods beReady, reconciling and stalled set the state of the object: exactly one of the conditions Ready, Reconciling and Stalled is True.

func (m *machine) ready(message string) { m.beReady(v1alpha1.ReasonRunning, message) }

// beReady reports that the object matches its spec. Without a process, the reason states why none runs: Stopped, Completed or Idle.
func (m *machine) beReady(reason, message string) {
	m.writer().Be(v1alpha1.ConditionReady, reason, message)
	m.notRestarting()
}

func (m *machine) reconciling(reason, message string) {
	m.writer().Be(v1alpha1.ConditionReconciling, reason, message)
	if m.desired.State == DesiredStopped || m.desired.State == DesiredDeleted || m.desired.State == DesiredMoved {
		m.notRestarting()
	}
}

func (m *machine) stalled(reason, message string) {
	m.writer().Be(v1alpha1.ConditionStalled, reason, message)
	m.notRestarting()
}

func (m *machine) restarting(reason, message string) {
	m.set(v1alpha1.ConditionRestarting, true, reason, message)
}

func (m *machine) notRestarting() {
	m.set(v1alpha1.ConditionRestarting, false, v1alpha1.ReasonNotRestarting, "")
}

// setExpires sets Step.Expires to the latest of three times: the exit of the process, and the last transitions of Ready and of Stalled.
func (m *machine) setExpires() {
	since := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionStalled).LastTransitionTime.Time
	if ready := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionReady).LastTransitionTime.Time; m.observed.Timeline.After(ready, since, m.now) {
		since = ready
	}
	if end := m.status.LastExit; end != nil && end.FinishTime != nil && m.observed.Timeline.After(end.FinishTime.Time, since, m.now) {
		since = end.FinishTime.Time
	}
	m.step.Expires = since
}

func (m *machine) set(conditionType string, status bool, reason, message string) {
	m.writer().SetBool(conditionType, status, reason, message)
}

func (m *machine) writer() conditions.Writer {
	return conditions.Writer{Conditions: &m.status.Conditions, Generation: m.desired.Generation, Now: m.now}
}
