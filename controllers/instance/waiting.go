// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/pattern"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
)

const (
	// stillness is how long the terminal must not change before its content counts as a question.
	stillness = 2 * time.Second
)

// screenCheck is the input of one check of a terminal. active is when the terminal last showed something new, err is why that time is not known, now is the time
// of the check, and timeline converts recorded times to elapsed time.
type screenCheck struct {
	active time.Time
	err    error
	now    time.Time

	timeline elapsed.Timeline
}

// precedes reports whether t was recorded before the incarnation was started. Some times have a precision of one second.
func (s screenCheck) precedes(t time.Time, current facts.Incarnation) bool {
	return s.timeline.After(current.StartedAt.Truncate(time.Second), t, s.now)
}

// showWaiting sets the condition AwaitingInput and returns when to check again. It examines the screen once after each activity: when the terminal has not
// changed for the duration stillness, or immediately if the activity may have answered a question.
func (k *Kind) showWaiting(ctx context.Context, instance *v1alpha1.Instance, current facts.Incarnation, s screenCheck) time.Duration {
	m, condition := k.memories.Keep(instance.UID), meta.FindStatusCondition(instance.Status.Conditions, v1alpha1.ConditionAwaitingInput)
	waiting := condition != nil && condition.Status == metav1.ConditionTrue
	if m.judged.IsZero() && stands(instance, condition, current, s) {
		m.judged, m.generation = s.active, instance.Generation
		return k.quiet(ctx, instance, s)
	}
	if errors.Is(s.err, runtime.ErrNotFound) || s.err == nil && s.precedes(s.active, current) {
		k.waits(instance, "") // this incarnation has shown nothing so far
		return k.quiet(ctx, instance, s)
	}
	if s.err != nil {
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionUnknown, v1alpha1.ReasonUnknown, "Cannot read the terminal.")
		return lookEvery
	}
	left := stillness - s.timeline.Since(s.active, s.now)
	switch {
	case m.judged.Equal(s.active) && m.generation == instance.Generation:
		if condition != nil {
			condition.ObservedGeneration = instance.Generation
		}
		return k.quiet(ctx, instance, s)
	case left > 0 && !waiting:
		k.waits(instance, "")
		return left
	}
	k.examineScreen(ctx, instance)
	if left > 0 {
		return left
	}
	m.judged, m.generation = s.active, instance.Generation
	return k.quiet(ctx, instance, s)
}

// stands reports whether a question that an earlier manager detected is still valid, because no later activity is known. The screen must not be examined again
// in this case: after a restart of the runtime, the retained output may lack the line with the question, because that line is unterminated.
func stands(instance *v1alpha1.Instance, asks *metav1.Condition, current facts.Incarnation, s screenCheck) bool {
	noted := instance.Status.LastActivityTime
	if asks == nil || asks.Status != metav1.ConditionTrue || noted == nil || s.precedes(noted.Time, current) || asks.ObservedGeneration != instance.Generation {
		return false
	}
	return errors.Is(s.err, runtime.ErrNotFound) || s.err == nil && !s.timeline.After(s.active.Truncate(time.Second), noted.Time, s.now)
}

// quiet requests a report of the next terminal change. It returns how long to wait before the next check: stillness if the terminal has changed since the
// check, lookEvery if the backend cannot report changes, otherwise 0.
func (k *Kind) quiet(ctx context.Context, instance *v1alpha1.Instance, s screenCheck) time.Duration {
	logs := k.Runtime(instance).Capabilities().Logs
	if logs == nil || logs.Watch(ctx, instance.UID) != nil {
		return lookEvery
	}
	if active, err := logs.LastActivity(ctx, instance.UID); err == nil && !active.Equal(s.active) {
		return stillness // the terminal has changed since the check
	}
	return 0
}

// examineScreen sets the condition AwaitingInput from the content of the screen.
func (k *Kind) examineScreen(ctx context.Context, instance *v1alpha1.Instance) {
	size := runtime.Terminal{Columns: ptr.Deref(instance.Spec.Terminal.Columns, defaultColumns), Rows: ptr.Deref(instance.Spec.Terminal.Rows, defaultRows)}
	view, err := k.Runtime(instance).Capabilities().Shown(ctx, instance.UID, size)
	if err != nil {
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionUnknown, v1alpha1.ReasonUnknown, "Cannot read the terminal.")
		return
	}
	questions := terminal.Defaults()
	if patterns := instance.Spec.Terminal.AwaitingInput.Patterns; len(patterns) > 0 {
		questions = terminal.Of(pattern.Compile(patterns))
	}
	input, _ := k.Runtime(instance).Capabilities().Input(ctx, instance.UID) // the patterns decide if the zero value is returned
	k.waits(instance, terminal.Asks(view, input, questions))
}

// waits sets the condition AwaitingInput. question is the name of the question that the terminal shows; empty if it shows none. The condition never contains
// text of the terminal, which may be a secret. If question is empty, waits reports patterns of the spec that cannot be used, because one of them might have
// matched.
func (k *Kind) waits(instance *v1alpha1.Instance, question string) {
	if question != "" {
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput, "The terminal shows a question ("+question+").")
		return
	}
	if err := pattern.Compile(instance.Spec.Terminal.AwaitingInput.Patterns).Err("spec.terminal.awaitingInput.patterns"); err != nil {
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionUnknown, v1alpha1.ReasonInvalidPattern, err.Error()+". Correct the pattern.")
		return
	}
	k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionFalse, v1alpha1.ReasonNotAwaitingInput, "")
}

// DeriveStatus implements process.StatusDeriver: it returns an event when the program begins to wait for input.
func (k *Kind) DeriveStatus(object, base process.Object, step lifecycle.Step, _ time.Time) []lifecycle.Event {
	if step.Action == lifecycle.Recheck || isWaiting(base) || !isWaiting(object) {
		return nil
	}
	message := meta.FindStatusCondition(object.GetProcessStatus().Conditions, v1alpha1.ConditionAwaitingInput).Message
	return []lifecycle.Event{{Reason: v1alpha1.ReasonAwaitingInput, Message: message}}
}

func isWaiting(object process.Object) bool {
	return meta.IsStatusConditionTrue(object.GetProcessStatus().Conditions, v1alpha1.ConditionAwaitingInput)
}
