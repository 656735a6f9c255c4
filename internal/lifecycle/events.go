// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
)

// eventsBetween returns the user-visible differences between two records as events. Each event is emitted only once, because each difference is recorded
// only once.
func (m *machine) eventsBetween(before *v1alpha1.ProcessStatus) []Event {
	var events []Event
	after := &m.status
	ended, stuck := m.ended(before, after), stuck(before, after)
	if stuck != nil && stuck.Reason == v1alpha1.ReasonCircuitOpen {
		ended = nil // the event about the open breaker begins with the exit
	}
	for _, event := range []*Event{ended, ending(before, after), starting(before, after), stuck, contested(before, after), becameReady(before, after)} {
		if event != nil {
			events = append(events, *event)
		}
	}
	return events
}

// Together merges the events of one step into one. Its reason is that of the first warning, or else of the last event. events must not be empty.
func Together(events []Event) Event {
	together := events[len(events)-1]
	messages := make([]string, 0, len(events))
	for _, event := range slices.Backward(events) {
		if event.Warning {
			together.Warning, together.Reason = true, event.Reason
		}
	}
	for _, event := range events {
		messages = append(messages, conditions.Sentence(event.Message))
	}
	together.Message = strings.Join(messages, " ")
	return together
}

func (m *machine) ended(before, after *v1alpha1.ProcessStatus) *Event {
	end := after.LastExit
	if end == nil || end.Message == neverStarted || before.LastExit != nil && before.LastExit.Incarnation == end.Incarnation {
		return nil
	}
	switch meaning := exits[end.Reason]; {
	case !meaning.ran: // the Stalled condition reports the failed start
		return nil
	case meaning.requested:
		return &Event{Reason: end.Reason, Message: describe(end) + ", as requested."}
	case meaning.succeeded:
		return &Event{Reason: end.Reason, Message: describe(end) + "."}
	default:
		return &Event{Warning: true, Reason: failureReason(end.Reason), Message: describe(end) + "." + m.whenAgain() + m.seeLogs(end)}
	}
}

func ending(before, after *v1alpha1.ProcessStatus) *Event {
	stop := after.Stopping
	if stop == nil || before.Stopping != nil && before.Stopping.Incarnation == stop.Incarnation {
		return nil
	}
	message := fmt.Sprintf("Stopping incarnation %d.", stop.Incarnation)
	if stop.Message != "" {
		message = conditions.Sentence(stop.Message) + " " + message
	}
	return &Event{Warning: exits[stop.Reason].unhealthy, Reason: stop.Reason, Message: message}
}

func starting(before, after *v1alpha1.ProcessStatus) *Event {
	if after.Incarnation == before.Incarnation {
		return nil
	}
	if fallback := describeFallback(after); fallback != "" {
		return &Event{Warning: true, Reason: v1alpha1.ReasonResumeFailed, Message: startingMessage(after.Incarnation) + " " + fallback}
	}
	return &Event{Reason: v1alpha1.ReasonStarting, Message: startingMessage(after.Incarnation)}
}

// stuck returns an event if the object becomes stalled, or stalled for another reason. A conflict that is already reported has an event.
func stuck(before, after *v1alpha1.ProcessStatus) *Event {
	was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionStalled)
	is := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionStalled)
	conflict := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionConflict)
	known := was != nil && was.Status == is.Status && was.Reason == is.Reason ||
		conflict != nil && conflict.Status == metav1.ConditionTrue && conflict.Reason == is.Reason
	if is.Status != metav1.ConditionTrue || known {
		return nil
	}
	return &Event{Warning: true, Reason: is.Reason, Message: is.Message}
}

// contested returns an event if a conflict begins that does not make the object stalled.
func contested(before, after *v1alpha1.ProcessStatus) *Event {
	is := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionConflict)
	if is == nil || is.Status != metav1.ConditionTrue || meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionStalled) ||
		meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionConflict) {
		return nil
	}
	return &Event{Warning: true, Reason: is.Reason, Message: is.Message}
}

func becameReady(before, after *v1alpha1.ProcessStatus) *Event {
	was := meta.IsStatusConditionTrue(before.Conditions, v1alpha1.ConditionReady) && before.Incarnation == after.Incarnation
	is := meta.FindStatusCondition(after.Conditions, v1alpha1.ConditionReady)
	if was || is.Status != metav1.ConditionTrue {
		return nil
	}
	switch is.Reason {
	case v1alpha1.ReasonRunning:
		return &Event{Reason: is.Reason, Message: fmt.Sprintf("Incarnation %d is ready.", after.Incarnation)}
	case v1alpha1.ReasonIdle:
		return &Event{Reason: is.Reason, Message: "Idle. Starts on the next use."}
	default: // the exit has a separate event
		return nil
	}
}

// whenAgain returns the sentence that announces the next start; empty if none is planned, or if its time has come.
func (m *machine) whenAgain() string {
	next := m.status.NextRestartTime
	if next == nil || !next.After(m.now) || m.desired.Blocked != nil || m.status.Breaker.State == v1alpha1.BreakerOpen {
		return ""
	}
	return " Restarts at " + clockTime(next.Time) + "."
}

// clockTime formats a time for users in RFC 3339 (UTC). It rounds up to a full second, so that the result is never earlier than t.
func clockTime(t time.Time) string {
	return t.Add(time.Second - time.Nanosecond).UTC().Format(time.RFC3339)
}

// seeLogs returns the sentence that points to the output of a failed program. The status does not contain the output itself, because it may hold secrets
// and not everyone who may read an object may read its log.
func (m *machine) seeLogs(end *v1alpha1.ProcessExit) string {
	if m.desired.Logs == "" || !Ran(end) {
		return ""
	}
	return fmt.Sprintf(" To see the output, run %q.", m.desired.Logs)
}

// retryAdvice returns advice that names the restart command; empty if the object cannot be restarted. The argument is a format with one verb for the command,
// such as "To retry now, run %q.", which begins a sentence.
func (m *machine) retryAdvice(advice string) string {
	if m.desired.Restart == "" {
		return ""
	}
	return " " + fmt.Sprintf(advice, m.desired.Restart)
}
