// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Conditions are the condition types that this package sets on every object from its first reconcile on.
var Conditions = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionRestarting,
	v1alpha1.ConditionCircuitOpen, v1alpha1.ConditionConflict, v1alpha1.ConditionDriftDetected, v1alpha1.ConditionContained,
}

// firstConditions sets every missing condition to Unknown, so that none is ever missing.
func (m *machine) firstConditions() {
	for _, conditionType := range Conditions {
		if condition := meta.FindStatusCondition(m.status.Conditions, conditionType); condition != nil {
			condition.ObservedGeneration = m.desired.Generation
			continue
		}
		m.setStatus(conditionType, metav1.ConditionUnknown, v1alpha1.ReasonPending, "")
	}
}

// retried reports, in place of the normal progress, that an action failed and is retried.
func (m *machine) retried() {
	if m.observed.Trouble == "" {
		return
	}
	cause := strings.TrimSuffix(m.observed.Trouble, ".") + "."
	switch m.step.Action {
	case StartProcess:
		m.reconciling(v1alpha1.ReasonStartFailed, fmt.Sprintf("The start of incarnation %d failed and is retried: %s", m.step.Incarnation, cause))
	case StopProcess, KillProcess:
		m.reconciling(v1alpha1.ReasonStopFailed, fmt.Sprintf("Incarnation %d cannot be stopped; Berth retries: %s", m.step.Incarnation, cause))
	}
}

// concludeConditions sets the conditions that follow from the rest of the status.
func (m *machine) concludeConditions() {
	m.retried()
	breaker := m.status.Breaker
	switch breaker.State {
	case v1alpha1.BreakerOpen:
		m.set(v1alpha1.ConditionCircuitOpen, true, v1alpha1.ReasonCircuitOpen, describe(m.status.LastExit)+"; no start is tried for now.")
	case v1alpha1.BreakerHalfOpen:
		m.set(v1alpha1.ConditionCircuitOpen, false, v1alpha1.ReasonCircuitHalfOpen, "One start is being tried after the cool-down.")
	default:
		m.set(v1alpha1.ConditionCircuitOpen, false, v1alpha1.ReasonCircuitClosed, "")
	}
	if !m.conflict {
		m.set(v1alpha1.ConditionConflict, false, v1alpha1.ReasonNoConflict, "")
	}
	if meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionDriftDetected).Status == metav1.ConditionUnknown {
		m.set(v1alpha1.ConditionDriftDetected, false, v1alpha1.ReasonUpToDate, "")
	}
	if restarting := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionRestarting); restarting.Status == metav1.ConditionUnknown {
		m.notRestarting()
	}
}

// ready, reconciling and stalled are the three possible states: exactly one of these conditions is True.

func (m *machine) ready(message string) {
	m.set(v1alpha1.ConditionReady, true, v1alpha1.ReasonRunning, message)
	m.set(v1alpha1.ConditionReconciling, false, v1alpha1.ReasonRunning, "")
	m.set(v1alpha1.ConditionStalled, false, v1alpha1.ReasonRunning, "")
	m.notRestarting()
}

func (m *machine) reconciling(reason, message string) {
	m.set(v1alpha1.ConditionReady, false, reason, message)
	m.set(v1alpha1.ConditionReconciling, true, reason, message)
	m.set(v1alpha1.ConditionStalled, false, reason, "")
	if m.desired.Want == Stop || m.desired.Want == Gone || m.desired.Want == Move {
		m.notRestarting()
	}
}

func (m *machine) stalled(reason, message string) {
	m.set(v1alpha1.ConditionReady, false, reason, message)
	m.set(v1alpha1.ConditionReconciling, false, reason, "")
	m.set(v1alpha1.ConditionStalled, true, reason, message)
	m.notRestarting()
}

func (m *machine) restarting(reason, message string) {
	m.set(v1alpha1.ConditionRestarting, true, reason, message)
}

func (m *machine) notRestarting() {
	m.set(v1alpha1.ConditionRestarting, false, v1alpha1.ReasonNotRestarting, "")
}

// expires records since when the object has been at rest without a process.
func (m *machine) expires() {
	since := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionStalled).LastTransitionTime.Time
	if end := m.status.LastExit; end != nil && end.FinishedAt != nil && end.FinishedAt.After(since) {
		since = end.FinishedAt.Time
	}
	m.step.Expires = since
}

func (m *machine) set(conditionType string, status bool, reason, message string) {
	value := metav1.ConditionFalse
	if status {
		value = metav1.ConditionTrue
	}
	m.setStatus(conditionType, value, reason, message)
}

// maxMessage is far below the API limit for condition messages. Users do not read longer ones.
const maxMessage = 2048

func (m *machine) setStatus(conditionType string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&m.status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: truncate(message, maxMessage),
		ObservedGeneration: m.desired.Generation,
		LastTransitionTime: metav1.NewTime(m.now.Truncate(time.Second)),
	})
}
