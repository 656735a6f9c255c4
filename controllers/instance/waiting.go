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
	// stillness is how long the terminal must not change before its whole content counts.
	stillness = 2 * time.Second
	// glanceEvery is how often a terminal that changes is examined. A question in it is reported if two successive examinations find it, so within
	// two seconds.
	glanceEvery = time.Second
	// frameTime is how soon to examine a changing terminal again if a question is no longer there. The program may have drawn only half of its screen.
	frameTime = 100 * time.Millisecond
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

// verdict is what the screen of an incarnation shows: the condition AwaitingInput that it implies, and the kind of the question, empty if it shows none.
type verdict struct {
	status                    metav1.ConditionStatus
	reason, message, question string
	generation                int64
}

// asks reports whether the screen shows a question.
func (v verdict) asks() bool { return v.status == metav1.ConditionTrue }

// unreadable is the verdict about a terminal that cannot be read.
func unreadable() verdict {
	return verdict{status: metav1.ConditionUnknown, reason: v1alpha1.ReasonUnknown, message: "Cannot read the terminal."}
}

// earlier returns the verdict of an earlier manager about the screen, as far as the status contains it.
func earlier(instance *v1alpha1.Instance, current facts.Incarnation) verdict {
	condition, agent := meta.FindStatusCondition(instance.Status.Conditions, v1alpha1.ConditionAwaitingInput), instance.Status.Agent
	if condition == nil || agent != nil && (agent.Incarnation != current.Number || agent.Source != "" && agent.Source != v1alpha1.AgentSourceScreen) {
		return verdict{status: metav1.ConditionFalse, reason: v1alpha1.ReasonNotAwaitingInput}
	}
	known := verdict{status: condition.Status, reason: condition.Reason, message: condition.Message, generation: condition.ObservedGeneration}
	if agent != nil {
		known.question = agent.Question
	}
	return known
}

// showWaiting notes in the cache whether the screen shows a question, and returns when to check again. It examines the screen once after each activity, when the terminal has not
// changed for the duration stillness, and repeatedly while the terminal changes: a question counts although something else on the screen moves.
func (k *Kind) showWaiting(ctx context.Context, instance *v1alpha1.Instance, current facts.Incarnation, s screenCheck) time.Duration {
	m := k.memories.Keep(instance.UID)
	m.renew(instance, current)
	if m.judged.IsZero() && m.glanced.IsZero() && stands(instance, m.screen, current, s) {
		m.judged, m.generation = s.active, instance.Generation
		return k.quiet(ctx, instance, s)
	}
	if errors.Is(s.err, runtime.ErrNotFound) || s.err == nil && s.precedes(s.active, current) {
		m.screen = waits(instance, "") // this incarnation has shown nothing so far
		return k.quiet(ctx, instance, s)
	}
	if s.err != nil {
		m.screen = unreadable()
		return lookEvery
	}
	left := stillness - s.timeline.Since(s.active, s.now)
	switch {
	case m.judged.Equal(s.active) && m.generation == instance.Generation:
		return k.quiet(ctx, instance, s)
	case left > 0:
		return min(left, k.glance(ctx, instance, m, s))
	}
	k.examineScreen(ctx, instance, m, s, true)
	m.judged, m.generation = s.active, instance.Generation
	return k.quiet(ctx, instance, s)
}

// glance examines a terminal that changes, at most once in each period of glanceEvery unless a question stands. It returns when to examine it again.
func (k *Kind) glance(ctx context.Context, instance *v1alpha1.Instance, m *objectCache, s screenCheck) time.Duration {
	if passed := s.timeline.Since(m.glanced, s.now); !m.glanced.IsZero() && passed < glanceEvery && !m.screen.asks() {
		m.screen = waits(instance, "")
		return glanceEvery - passed
	}
	m.glanced = s.now
	before := m.screen
	k.examineScreen(ctx, instance, m, s, false)
	if before.asks() && !m.screen.asks() && !m.doubted {
		m.doubted, m.screen = true, before
		return frameTime
	}
	m.doubted = false
	return glanceEvery
}

// stands reports whether a question that an earlier manager detected is still valid, because no later activity is known. The screen must not be examined again
// in this case: after a restart of the runtime, the retained output may lack the line with the question, because that line is unterminated.
func stands(instance *v1alpha1.Instance, asks verdict, current facts.Incarnation, s screenCheck) bool {
	noted := instance.Status.LastActivityTime
	if !asks.asks() || noted == nil || s.precedes(noted.Time, current) || asks.generation != instance.Generation {
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

// examineScreen notes what the content of the screen implies, and whether it shows activity. still reports that the terminal has not
// changed for the duration stillness.
func (k *Kind) examineScreen(ctx context.Context, instance *v1alpha1.Instance, m *objectCache, s screenCheck, still bool) {
	look, err := k.look(ctx, instance)
	if err != nil {
		m.fresh, m.seen = s.active, s.active
		m.screen = unreadable()
		return
	}
	m.read(look, s.active)
	questions := terminal.Defaults()
	if patterns := instance.Spec.Terminal.AwaitingInput.Patterns; len(patterns) > 0 {
		questions = terminal.Of(pattern.Compile(patterns))
	}
	look.Still = still
	m.screen = waits(instance, m.motion.Asks(look, questions))
}

// look returns what the terminal of an Instance shows, and how it is read. The patterns decide if the latter is not known.
func (k *Kind) look(ctx context.Context, instance *v1alpha1.Instance) (terminal.Look, error) {
	size := runtime.Terminal{Columns: ptr.Deref(instance.Spec.Terminal.Columns, defaultColumns), Rows: ptr.Deref(instance.Spec.Terminal.Rows, defaultRows)}
	moment, err := k.Runtime(instance).Capabilities().Look(ctx, instance.UID, size)
	return terminal.Look{View: moment.View, Input: moment.Input, Waits: k.memories.Keep(instance.UID).screen.asks()}, err
}

// waits returns the verdict for the question that the terminal shows; question is its name, empty if the terminal shows none. The verdict never contains text of
// the terminal, which may be a secret. If question is empty, waits reports patterns of the spec that cannot be used, because one of them might have matched.
func waits(instance *v1alpha1.Instance, question string) verdict {
	if question != "" {
		return verdict{status: metav1.ConditionTrue, reason: v1alpha1.ReasonAwaitingInput, message: "The terminal shows a question (" + question + ").", question: question}
	}
	if err := pattern.Compile(instance.Spec.Terminal.AwaitingInput.Patterns).Err("spec.terminal.awaitingInput.patterns"); err != nil {
		return verdict{status: metav1.ConditionUnknown, reason: v1alpha1.ReasonInvalidPattern, message: err.Error() + ". Correct the pattern."}
	}
	return verdict{status: metav1.ConditionFalse, reason: v1alpha1.ReasonNotAwaitingInput}
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
