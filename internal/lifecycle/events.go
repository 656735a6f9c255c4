// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// eventsBetween says what a user may notice between two records: told once, because the record changes once.
func eventsBetween(before, after *v1alpha1.ProcessStatus) []Event {
	var events []Event
	add := func(warning bool, reason, message string) {
		events = append(events, Event{Warning: warning, Reason: reason, Message: message})
	}
	if end := after.LastExit; end != nil && (before.LastExit == nil || before.LastExit.Incarnation != end.Incarnation) && end.Message != neverStarted {
		switch end.Reason {
		case v1alpha1.ReasonStopped:
			add(false, v1alpha1.ReasonStopped, describe(end)+", as asked.")
		case v1alpha1.ReasonCompleted:
			add(false, v1alpha1.ReasonCompleted, describe(end)+".")
		case v1alpha1.ReasonFailed, v1alpha1.ReasonUnknown, v1alpha1.ReasonUnhealthy:
			add(true, v1alpha1.ReasonCrashed, describe(end)+"."+whenAgain(after))
		}
	}
	if stop := after.Stopping; stop != nil && (before.Stopping == nil || before.Stopping.Incarnation != stop.Incarnation) {
		add(stop.Reason == v1alpha1.ReasonUnhealthy, stop.Reason, fmt.Sprintf("Ending incarnation %d.", stop.Incarnation))
	}
	if after.Incarnation != before.Incarnation {
		add(false, v1alpha1.ReasonStarting, fmt.Sprintf("Starting incarnation %d.", after.Incarnation))
	}
	was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionStalled)
	is := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionStalled)
	if is.Status == "True" && (was == nil || was.Status != "True" || was.Reason != is.Reason) &&
		is.Reason != v1alpha1.ReasonStopped && is.Reason != v1alpha1.ReasonCompleted {
		add(true, is.Reason, is.Message)
	}
	if !meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionReady) && meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionReady) {
		add(false, v1alpha1.ReasonRunning, fmt.Sprintf("Incarnation %d is ready.", after.Incarnation))
	}
	return events
}

// whenAgain says when a process that crashed is started again.
func whenAgain(status *v1alpha1.ProcessStatus) string {
	if status.NextRestartTime == nil || status.Breaker == nil || status.Breaker.State == v1alpha1.BreakerOpen {
		return ""
	}
	return " Started again at " + status.NextRestartTime.UTC().Format(time.RFC3339) + "."
}
