// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

func (m *machine) decideDeleted(current *facts.Incarnation) {
	if m.desired.Orphan {
		m.reconciling(v1alpha1.ReasonDeleting, "The object is being deleted; the adopted process keeps running.")
		m.step.Action, m.step.Released = Forget, true
		return
	}
	if current != nil && current.Alive() {
		m.reconciling(v1alpha1.ReasonDeleting, "The object is being deleted; stopping its process first.")
		m.stopThenKill(*current, v1alpha1.ReasonDeleting, "")
		return
	}
	// This message stays while the finalizer of another controller keeps the object.
	m.reconciling(v1alpha1.ReasonDeleting, "The object is being deleted and has no process. If it remains, another controller must remove its finalizer (metadata.finalizers).")
	m.step.Action, m.step.Released = Forget, true
}

func (m *machine) decideStop(current *facts.Incarnation) {
	if current != nil && current.Alive() {
		m.reconciling(v1alpha1.ReasonStopping, "Stopping the process, because the spec requests it.")
		m.observeProcess(*current)
		m.stopThenKill(*current, v1alpha1.ReasonStopped, "")
		return
	}
	// A stop resets the record: without a fingerprint, the next change to Running starts the process regardless of earlier failures.
	m.status.SpecHash = ""
	m.forgetFailures()
	m.beReady(v1alpha1.ReasonStopped, "The process is stopped, as the spec requests. Set spec.state to Running to start it.")
	m.setExpires()
}

// maySleep returns false for a process that exited by itself or was never started. Such a process is started first, so that a user sees a failure
// before the next use.
func (m *machine) maySleep(current *facts.Incarnation) bool {
	if current != nil && current.Alive() {
		return true
	}
	end := m.status.LastExit
	return m.endRecorded() && exits[end.Reason].requested
}

// decideSleep stops an unused process. The object stays usable, so it is Ready. If a restart is requested while the process sleeps, the next start also
// satisfies that request.
func (m *machine) decideSleep(current *facts.Incarnation) {
	if current != nil && current.Alive() {
		m.observeProcess(*current)
		m.reconciling(v1alpha1.ReasonStopping, "The process is not used; stopping it until the next use.")
		m.stopThenKill(*current, v1alpha1.ReasonIdle, "")
		return
	}
	m.status.SpecHash = ""
	m.answerRestart()
	m.beReady(v1alpha1.ReasonIdle, "Idle. Starts on the next use.")
}

// concludeOlderStop removes the request to stop an older incarnation. No older incarnation is alive, so the request is complete. The request to stop the current
// incarnation remains until the exit is recorded, because that request explains the exit.
func (m *machine) concludeOlderStop() {
	if stopping := m.status.Stopping; stopping != nil && stopping.Incarnation < m.status.Incarnation {
		m.status.Stopping = nil
	}
}

// killRetryFirst and killRetryLast bound the time until SIGKILL is repeated, which grows with each repetition. A process in uninterruptible sleep may
// outlive the first SIGKILL.
const (
	killRetryFirst = 200 * time.Millisecond
	killRetryLast  = 30 * time.Second
)

// deferredRetryFirst and deferredRetryLast bound the time until a deferred stop is repeated, which grows with the time since the first attempt.
const (
	deferredRetryFirst = 20 * time.Millisecond
	deferredRetryLast  = 500 * time.Millisecond
)

// stopThenKill stops the incarnation: request, wait, kill. The intent is recorded before the first signal. The deadline can become earlier, but not later.
func (m *machine) stopThenKill(incarnation facts.Incarnation, reason, message string) {
	deadline := microTime(m.now.Add(m.desired.Grace))
	stopping := m.status.Stopping
	if stopping == nil || stopping.Incarnation != incarnation.Number {
		m.status.Stopping = &v1alpha1.StopRequest{Incarnation: incarnation.Number, Reason: reason, Message: message, KillTime: deadline}
		m.act(StopProcess, incarnation.Number)
		m.requeue(m.desired.Grace)
		return
	}
	left, valid := m.observed.Timeline.Left(stopping.KillTime.Time, m.desired.Grace, m.now)
	if !valid {
		stopping.KillTime = deadline
	}
	switch {
	case left <= 0:
		m.act(KillProcess, incarnation.Number)
		m.requeue(min(max(-left/2, killRetryFirst), killRetryLast))
	case !incarnation.StopSent:
		m.act(StopProcess, incarnation.Number)
		m.requeue(left)
		if incarnation.StopDeferred {
			m.requeue(min(max((m.desired.Grace-left)/2, deferredRetryFirst), deferredRetryLast))
		}
	default:
		m.requeue(left)
	}
}
