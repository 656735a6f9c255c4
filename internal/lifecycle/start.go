// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/facts"
)

// decideStart decides about an object that should run but has no living process. known reports whether the runtime still has the recorded incarnation.
func (m *machine) decideStart(known bool) {
	asked := m.askedToStart()
	if asked {
		m.forgetFailures()
	}
	vanished := m.observed.Vanished
	over := !asked && !m.intended() && m.status.NextRestartTime == nil // the process has exited and is not restarted
	switch {
	case vanished != nil && vanished.Phase != facts.Unknown:
		m.waitForVanished(*vanished)
	case over:
		m.reportEnded()
	case m.desired.Blocked != nil:
		m.blocked()
	case vanished != nil:
		m.unknownVanished(*vanished)
	case m.intended() && !known:
		m.startIntended()
	case asked:
		m.start()
	case m.status.Breaker.State == v1alpha1.BreakerOpen:
		m.circuitOpen()
	default:
		m.startAfterBackoff()
	}
}

// intended reports whether the record contains an incarnation but not its exit: the incarnation was not started yet, or no exit of it has been observed.
func (m *machine) intended() bool {
	return m.status.Incarnation > 0 && !m.endRecorded()
}

// askedToStart reports whether a start is requested regardless of failures: the first start, a start after a stop, a restart request, or a changed spec.
func (m *machine) askedToStart() bool {
	if m.intended() {
		return false
	}
	end := m.status.LastExit
	switch {
	case end == nil, exits[end.Reason].requested, m.status.SpecHash == "":
		return true
	case m.restartRequested():
		return true
	case !m.drifted():
		return false
	default:
		return m.desired.UpdatePolicy != v1alpha1.UpdateOnRestart || !exits[end.Reason].succeeded
	}
}

// start records the intent. The action follows only after the API server has acknowledged that write, unless the start is a pre-start (see canPreStart).
func (m *machine) start() {
	m.advance(m.restartReason())
	m.startIntended()
}

// advance advances the record to the next incarnation.
func (m *machine) advance(reason string) {
	again := m.status.Incarnation > 0
	m.status.Incarnation++
	if again {
		m.status.RestartCount++
	}
	if m.status.Breaker.State == v1alpha1.BreakerOpen {
		m.status.Breaker.State = v1alpha1.BreakerHalfOpen
	}
	m.status.Process, m.status.Stopping, m.status.NextRestartTime = nil, nil, nil
	m.startSession(m.nextSessionStart())
	if again && reason != "" {
		m.restarting(reason, startingMessage(m.status.Incarnation))
	}
}

func startingMessage(incarnation int64) string {
	return fmt.Sprintf("Starting incarnation %d.", incarnation)
}

// startIntended starts the recorded incarnation with the current spec.
func (m *machine) startIntended() {
	m.status.SpecHash = m.desired.SpecHash
	m.answerRestart()
	m.step.SessionStart = m.recordedSessionStart()
	m.startSession(m.step.SessionStart) // with the current resumeCommand
	m.reconciling(v1alpha1.ReasonStarting, startingMessage(m.status.Incarnation))
	m.act(StartProcess, m.status.Incarnation)
}

// restartReason returns why the process is restarted. It returns an empty string for the first start and for a start after a stop, a sleep or a move, because
// the conditions do not report these starts as restarts.
func (m *machine) restartReason() string {
	end := m.status.LastExit
	switch {
	case m.status.Incarnation == 0 || m.status.SpecHash == "":
		return ""
	case m.restartRequested():
		return v1alpha1.ReasonRequested
	case m.drifted():
		return v1alpha1.ReasonSpecChanged
	case end == nil:
		return v1alpha1.ReasonCrashed
	case exits[end.Reason].requested:
		restarting := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionRestarting)
		if restarting != nil && restarting.Status == metav1.ConditionTrue && restarting.Reason == v1alpha1.ReasonFolderReplaced {
			return restarting.Reason // as recorded before the stop
		}
		return v1alpha1.ReasonRequested
	default:
		return failureReason(end.Reason)
	}
}

func (m *machine) blocked() {
	blocked := m.desired.Blocked
	m.stalled(blocked.Reason, blocked.Message)
	if blocked.Conflict {
		m.conflict = true
		m.set(v1alpha1.ConditionConflict, true, blocked.Reason, blocked.Message)
	}
	if blocked.Absent {
		m.setExpires()
	}
	if blocked.Retry > 0 {
		m.requeue(blocked.Retry)
	}
	if m.step.Outcome = blocked.Outcome; blocked.Outcome != "" && m.intended() {
		m.recordEnd(v1alpha1.ProcessExit{Reason: v1alpha1.ReasonStopped, Message: neverStarted})
	}
}

// vanishedRetry is how long to wait before the next check whether the process of a deleted object has exited, because no event reports that to this object.
const vanishedRetry = 250 * time.Millisecond

// waitForVanished starts nothing, because the process of a deleted object with the same name is alive. The manager stops that process.
func (m *machine) waitForVanished(process facts.Incarnation) {
	m.reconciling(v1alpha1.ReasonSuperseded, "Stopping "+describeVanished(process)+" first.")
	m.requeue(vanishedRetry)
}

// unknownVanished starts nothing, because the process of a deleted object with the same name may be alive.
func (m *machine) unknownVanished(process facts.Incarnation) {
	m.stalled(v1alpha1.ReasonUnknown, "Cannot determine whether "+describeVanished(process)+" is running: "+
		conditions.Sentence(cmp.Or(process.Message, "its state is unknown")))
	m.requeue(unknownRetry)
}

func describeVanished(process facts.Incarnation) string {
	pid := ""
	if process.PID > 0 {
		pid = fmt.Sprintf(", PID %d", process.PID)
	}
	return "the process of a deleted object with the same name (UID " + process.UID + pid + ")"
}

// reportEnded reports that the process is not restarted, because the restart policy or the kind of failure rules out a restart.
func (m *machine) reportEnded() {
	end := m.status.LastExit
	meaning, reason := exits[end.Reason], end.Reason
	if !meaning.ran {
		m.unstartable(end)
		return
	}
	if meaning.unhealthy {
		reason = v1alpha1.ReasonFailed
	}
	message := describe(end) + ". restartPolicy " + string(m.desired.RestartPolicy) + " does not restart the process." + m.retryAdvice("To run it again, run %q.")
	if meaning.succeeded {
		m.beReady(reason, message)
	} else {
		m.stalled(reason, message+m.seeLogs(end))
	}
	m.setExpires()
}

// unstartable reports that the program could not be executed, until the spec changes or the cause is gone.
func (m *machine) unstartable(end *v1alpha1.ProcessExit) {
	next := m.retryAdvice("To retry, run %q.")
	if m.heals(end.Reason) {
		if m.checkHealed(end.Reason) {
			m.start()
			return
		}
		next = " Berth checks this again and starts the process as soon as the check passes."
	}
	m.stalled(end.Reason, conditions.Sentence(cmp.Or(end.Message, "The program could not be started."))+next)
	m.setExpires()
}

func (m *machine) circuitOpen() {
	if m.edited {
		m.start() // allow one trial: the edit may have fixed the cause of the failures, for example a probe
		return
	}
	breaker := m.status.Breaker
	end := m.status.LastExit
	message := describe(end)
	if end != nil && exits[end.Reason].succeeded && end.Message == "" && m.desired.RestartPolicy == v1alpha1.RestartAlways {
		message += ", but with restartPolicy Always it must keep running; set spec.restartPolicy to OnFailure if it may end"
	}
	message += ". Too many failures"
	after, left, ends := m.desired.Breaker.Cooling(Circuit{State: breaker.State, OpenedAt: breaker.OpenTime}, m.observed.Timeline, m.now)
	if !ends {
		m.stalled(v1alpha1.ReasonCircuitOpen, message+"."+m.retryAdvice("Correct the cause, then run %q.")+m.seeLogs(end))
		return
	}
	if left == 0 {
		m.start()
		return
	}
	breaker.OpenTime = after.OpenedAt
	until := microTime(after.OpenedAt.Add(m.desired.Breaker.CoolDown))
	m.status.NextRestartTime = &until // replaces the end of the back-off, which the breaker overrides
	m.stalled(v1alpha1.ReasonCircuitOpen, message+"; restarts at "+clockTime(until.Time)+"."+m.retryAdvice("To retry now, run %q.")+m.seeLogs(end))
	m.requeue(left)
}

func (m *machine) startAfterBackoff() {
	left, valid := m.observed.Timeline.Left(m.status.NextRestartTime.Time, m.restartWait()+m.observed.Backlog, m.now)
	if m.step.PlannedRestart { // by this step, perhaps with no wait
		left = m.status.NextRestartTime.Sub(m.now)
	} else if !valid {
		next := microTime(m.now.Add(left))
		m.status.NextRestartTime = &next
	}
	if left <= 0 {
		m.start()
		return
	}
	message := fmt.Sprintf("%s. Restarts at %s.", describe(m.status.LastExit), clockTime(m.status.NextRestartTime.Time)) +
		m.seeLogs(m.status.LastExit)
	m.reconciling(v1alpha1.ReasonBackOff, message)
	m.restarting(m.restartReason(), message)
	m.requeue(left)
}
