// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/terminal"
)

const (
	// noteEvery is the minimum interval between two writes that change only status.lastActivityTime.
	noteEvery = 30 * time.Second
	// decideAgain is how soon to reconcile an idle Instance again if it was not put to sleep.
	decideAgain = 100 * time.Millisecond
	// lookEvery is how often a quiet terminal is checked if the backend cannot report changes.
	lookEvery = 10 * time.Second
)

// objectCache is what the manager caches for one object. Losing it costs one check and one write.
type objectCache struct {
	// noted is when status.lastActivityTime was last written.
	noted time.Time
	// judged is the time of the latest terminal activity at the last examination of the screen. generation is the generation of the object at that
	// examination, because a new generation may have other patterns.
	judged     time.Time
	generation int64

	// contradicted is the time of the last report of a hook that something has contradicted since.
	contradicted time.Time

	// told is what the program has told its terminal, as of the time heard. before is the last activity that an earlier manager has recorded.
	told          facts.Signals
	heard, before time.Time

	// incarnation is the number of the incarnation that the rest is about.
	incarnation int64
	// screen is what the screen showed at the last examination.
	screen verdict
	// motion is what moves on the terminal.
	motion terminal.Motion
	// glanced is when the terminal was last examined while it changed. doubted reports that a question was not there at the last examination.
	glanced time.Time
	doubted bool
	// fresh is the time of the latest change of the terminal that is activity, and seen that of the latest change at all, as of the last examination.
	fresh, seen time.Time
}

// renew forgets what is known about the terminal of an earlier incarnation.
func (m *objectCache) renew(instance *v1alpha1.Instance, current facts.Incarnation) {
	if m.incarnation != current.Number {
		m.screen = earlier(instance, current)
		m.told, m.heard, m.before = facts.Signals{}, time.Time{}, time.Time{}
		if noted := instance.Status.LastActivityTime; noted != nil {
			m.before = noted.Time
		}
		m.incarnation, m.motion, m.glanced, m.doubted, m.fresh, m.seen = current.Number, terminal.Motion{}, time.Time{}, false, time.Time{}, time.Time{}
	}
}

// read notes whether a look at the terminal shows activity. active is the time of the latest activity before the screen was read.
func (m *objectCache) read(look terminal.Look, active time.Time) {
	if m.motion.Adds(look) {
		m.fresh = active
	}
	m.seen = active
}

// Asleep implements process.Kind: it reports whether the session has been unused for longer than its spec allows. Access through Berth or an edit of the spec
// wakes the Instance.
func (k *Kind) Asleep(ctx context.Context, object process.Object, now time.Time) bool {
	instance := object.(*v1alpha1.Instance) // New returns only Instances
	var started time.Time
	if running := instance.Status.Process; running != nil && running.StartTime != nil {
		started = running.StartTime.Time
	}
	if k.idleness(ctx, instance, started, now).Sleeps(now) && k.present.Rest(instance.UID) {
		return true
	}
	k.present.Rise(instance.UID)
	return false
}

// idleness collects the facts that determine whether an Instance is idle. started is when the running program was started; zero if none is running. A program
// that is being stopped for another reason is not idle.
func (k *Kind) idleness(ctx context.Context, instance *v1alpha1.Instance, started, now time.Time) lifecycle.Idleness {
	_, here := k.present.Last(instance.UID)
	idleness := lifecycle.Idleness{
		Timeout: time.Duration(ptr.Deref(instance.Spec.IdleTimeoutSeconds, 0)) * time.Second,
		Asleep:  lifecycle.Asleep(&instance.Status.ProcessStatus),
		Asked:   here || instance.Status.ObservedGeneration != instance.Generation,
		Kept: meta.IsStatusConditionTrue(instance.Status.Conditions, v1alpha1.ConditionAdopted) &&
			instance.Spec.DeletionPolicy != v1alpha1.DeletionTerminate,
	}
	if idleness.Timeout == 0 || started.IsZero() || instance.Status.Stopping != nil {
		return idleness
	}
	active, err := k.terminal(ctx, instance)
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot determine the last activity of a terminal")
		return idleness // unknown is not idle
	}
	active = k.freshText(ctx, instance, active, idleness.Timeout)
	used, _ := k.present.Last(instance.UID)
	since := k.clock.Since(started)
	for _, at := range []time.Time{active, used} {
		if !at.IsZero() {
			since = min(since, k.clock.Since(at))
		}
	}
	idleness.Since = now.Add(-since)
	return idleness
}

// freshText returns when the terminal last showed activity, which a repaint without new text is not. active is when it last changed. If the Instance would be
// idle, but the terminal has changed since the last examination, freshText examines it.
func (k *Kind) freshText(ctx context.Context, instance *v1alpha1.Instance, active time.Time, timeout time.Duration) time.Time {
	m := k.memories.Keep(instance.UID)
	switch {
	case m.fresh.IsZero() || m.incarnation != instance.Status.Incarnation:
		return active
	case m.seen.Equal(active) || k.clock.Since(m.fresh) < timeout:
		return m.fresh
	}
	look, err := k.look(ctx, instance)
	if err != nil {
		return active
	}
	m.read(look, active)
	return m.fresh
}

// terminal returns when the terminal last changed. It returns ErrNotFound if the terminal has shown nothing so far.
func (k *Kind) terminal(ctx context.Context, instance *v1alpha1.Instance) (time.Time, error) {
	logs := k.Runtime(instance).Capabilities().Logs
	if logs == nil {
		return time.Time{}, errors.New("this runtime does not report the last activity of a terminal")
	}
	return logs.LastActivity(ctx, instance.UID)
}

// watch sets the conditions Idle and AwaitingInput, the state of the agent and the last activity of a running Instance. It returns when to check again, 0 for never.
func (k *Kind) watch(ctx context.Context, instance *v1alpha1.Instance, current facts.Incarnation) time.Duration {
	now, timeline := elapsed.Read(k.clock)
	before := instance.Status.DeepCopy()
	active, err := k.terminal(ctx, instance)
	screen := screenCheck{active, err, now, timeline}
	again := process.Soonest(k.showWaiting(ctx, instance, current, screen), k.showAgent(ctx, instance, current, screen))
	idleIn := k.showIdle(instance, k.idleness(ctx, instance, current.StartedAt, now), now)
	if m := k.memories.Keep(instance.UID); !m.fresh.IsZero() && m.incarnation == current.Number {
		active = m.fresh // activity since then is examined within two seconds
	}
	anyway := !equality.Semantic.DeepEqual(before.Conditions, instance.Status.Conditions) || !equality.Semantic.DeepEqual(before.Agent, instance.Status.Agent)
	latest := current.StartedAt
	used, _ := k.present.Last(instance.UID)
	for _, at := range []time.Time{active, used} {
		if timeline.After(at, latest, now) {
			latest = at
		}
	}
	return process.Soonest(idleIn, again, k.note(instance, latest, timeline, now, anyway))
}

// resting sets the conditions Idle and AwaitingInput while no program is running. What an agent has reported ends with its program.
func (k *Kind) resting(instance *v1alpha1.Instance) {
	k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionFalse, v1alpha1.ReasonNotRunning, "")
	instance.Status.Agent = nil
	switch {
	case lifecycle.Asleep(&instance.Status.ProcessStatus):
		k.set(instance, v1alpha1.ConditionIdle, metav1.ConditionTrue, v1alpha1.ReasonNoActivity, "Idle. "+
			"To start the program again, run berth attach or berth send, or change the spec.")
	case ptr.Deref(instance.Spec.IdleTimeoutSeconds, 0) == 0:
		k.set(instance, v1alpha1.ConditionIdle, metav1.ConditionFalse, v1alpha1.ReasonNoIdleTimeout, "")
	default:
		k.set(instance, v1alpha1.ConditionIdle, metav1.ConditionFalse, v1alpha1.ReasonNotRunning, "")
	}
}

// showIdle sets the condition Idle of a running incarnation and returns when to check again, 0 for never. It ignores whether the Instance was asleep before.
func (k *Kind) showIdle(instance *v1alpha1.Instance, idleness lifecycle.Idleness, now time.Time) time.Duration {
	falls := lifecycle.FallsAsleep(&instance.Status.ProcessStatus)
	passed := fmt.Sprintf("The terminal has been inactive for %s", idleness.Timeout)
	switch {
	case falls, idleness.Idle(now) && !idleness.Kept:
		k.set(instance, v1alpha1.ConditionIdle, metav1.ConditionTrue, v1alpha1.ReasonNoActivity, passed+". Stopping the program until its next use.")
		if falls {
			return 0
		}
		return decideAgain // an edit of the spec may have caused this reconcile; the edit counts as use until the status has the new generation
	case idleness.Idle(now):
		k.set(instance, v1alpha1.ConditionIdle, metav1.ConditionTrue, v1alpha1.ReasonNoActivity,
			passed+". The program was adopted, so it keeps running. Set deletionPolicy to Terminate to stop idle adopted programs.")
	case idleness.Timeout == 0:
		k.set(instance, v1alpha1.ConditionIdle, metav1.ConditionFalse, v1alpha1.ReasonNoIdleTimeout, "")
	default:
		k.set(instance, v1alpha1.ConditionIdle, metav1.ConditionFalse, v1alpha1.ReasonActive, "")
		return idleness.Left(now)
	}
	return 0
}

// note records the last activity in the status: immediately if the status is written anyway, otherwise at most every noteEvery. It returns when to check
// again.
func (k *Kind) note(instance *v1alpha1.Instance, active time.Time, timeline elapsed.Timeline, now time.Time, anyway bool) time.Duration {
	m, noted := k.memories.Keep(instance.UID), instance.Status.LastActivityTime
	active = active.Truncate(time.Second)
	if active.IsZero() || noted != nil && !timeline.After(active, noted.Time, now) {
		return 0
	}
	last := m.noted
	if last.IsZero() && noted != nil {
		last = noted.Time // the manager has just started
	}
	if left := noteEvery - timeline.Since(last, now); !anyway && left > 0 {
		return left
	}
	at := metav1.NewTime(active)
	instance.Status.LastActivityTime, m.noted = &at, now
	return 0
}
