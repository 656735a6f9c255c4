// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/facts"
)

// decideRunning decides about a living incarnation that should run: it stops the incarnation if there is a reason to restart, and otherwise reports its state.
func (m *machine) decideRunning(current facts.Incarnation) {
	m.observeProcess(current)
	if reason, message := m.reasonToRestart(current); reason != "" {
		m.reconciling(reason, message)
		m.restarting(reason, message)
		cause := ""
		if exits[reason].unhealthy {
			cause = message
		}
		m.step.CheckStart = m.status.Stopping == nil && cause == "" && !m.observed.StartChecked
		if m.step.CheckStart {
			m.step.SessionStart = m.startAfterStop()
		}
		m.stopThenKill(current, reason, conditions.Truncate(cause, maxExitMessage))
		return
	}
	m.drift()
	if current.Phase == facts.Starting {
		message := startingMessage(current.Number) // the same message as at the start, so that the status does not change
		if current.Message != "" {
			message += " Waiting: " + current.Message
		}
		m.reconciling(v1alpha1.ReasonStarting, message)
		return
	}
	m.readiness(current)
}

// reasonToRestart returns why the running incarnation must be stopped; empty if it keeps running.
func (m *machine) reasonToRestart(current facts.Incarnation) (reason, message string) {
	if stopping := m.status.Stopping; stopping != nil && stopping.Incarnation == current.Number {
		return stopping.Reason, cmp.Or(stopping.Message, "Stopping the process.")
	}
	if m.observed.Unhealthy != "" {
		reason := m.observed.UnhealthyReason
		if reason == "" {
			return v1alpha1.ReasonUnhealthy, "The liveness probe failed: " + m.observed.Unhealthy
		}
		return reason, m.observed.Unhealthy
	}
	if obstacle, _ := m.obstacle(); obstacle != "" {
		return "", "" // a restart would stop the process, but no new incarnation could be started
	}
	if m.restartRequested() {
		return v1alpha1.ReasonRequested, "Restarting because spec.restartToken changed."
	}
	if m.drifted() && m.desired.UpdatePolicy != v1alpha1.UpdateOnRestart {
		return v1alpha1.ReasonSpecChanged, "Restarting because the spec changed."
	}
	return "", ""
}

// obstacle returns why no incarnation could be started after the running one; empty if no cause is known.
func (m *machine) obstacle() (reason, message string) {
	if blocked := m.desired.Blocked; blocked != nil {
		return blocked.Reason, blocked.Message
	}
	if failure := m.observed.StartFailure; failure != nil {
		return cmp.Or(failure.Reason, v1alpha1.ReasonStartFailed), failure.Message
	}
	if contested := m.observed.Contested; contested != nil && contested.Obstructs {
		return contested.Reason, contested.Message
	}
	return "", ""
}

// restartRequested reports whether spec.restartToken requests a restart that has not begun. A removed token is no request: the owner of the spec, such as a
// GitOps tool, removes the tokens that others have set in it.
func (m *machine) restartRequested() bool {
	return m.desired.RestartToken != "" && m.desired.RestartToken != m.status.ObservedRestartToken
}

// answerRestart records the request that the next start satisfies. A removed token leaves the record as it is, so that the token is no request if it returns.
func (m *machine) answerRestart() {
	m.status.ObservedRestartToken = cmp.Or(m.desired.RestartToken, m.status.ObservedRestartToken)
}

func (m *machine) drifted() bool {
	return m.status.SpecHash != m.desired.SpecHash || m.resumeChanged()
}

// drift reports what the spec requests and the running process does not have yet: a newer spec, or a restart that an obstacle delays.
func (m *machine) drift() {
	reason, message := m.obstacle()
	switch {
	case m.drifted() && reason != "":
		m.delayed(reason, "The process runs with an older spec, because the new one cannot be started: "+message)
	case m.restartRequested() && reason != "":
		m.delayed(reason, "The requested restart waits and the process keeps running, because the next start would fail: "+message)
	case m.drifted():
		m.set(v1alpha1.ConditionDriftDetected, true, v1alpha1.ReasonDrifted, "The process runs with an older spec until its next restart.")
	default:
		m.set(v1alpha1.ConditionDriftDetected, false, v1alpha1.ReasonUpToDate, "")
	}
}

// delayed reports that an obstacle delays a restart, and schedules the next check of a start that would fail, because no event reports that its cause is gone.
func (m *machine) delayed(reason, message string) {
	m.set(v1alpha1.ConditionDriftDetected, true, reason, message)
	if m.observed.StartFailure != nil {
		since := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionDriftDetected).LastTransitionTime.Time
		m.requeue(checkInterval(m.since(since)))
	}
}

// RecordsReady reports whether the status records the incarnation as ready. An incarnation that is not usable only because other processes receive its
// connections counts as ready.
func RecordsReady(status *v1alpha1.ProcessStatus) bool {
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady) {
		return true
	}
	stalled := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionStalled)
	return stalled != nil && stalled.Status == metav1.ConditionTrue && stalled.Reason == v1alpha1.ReasonPortShared
}

// readiness sets the conditions of a running incarnation: Ready, Reconciling with the reason NotReady, or Stalled if the incarnation is ready but must yield to
// other processes. A manager that has just started and has no probe result yet keeps the recorded readiness.
func (m *machine) readiness(current facts.Incarnation) {
	contested := m.observed.Contested
	if contested != nil {
		m.conflict = true
		m.set(v1alpha1.ConditionConflict, true, contested.Reason, contested.Message)
	}
	ready := true
	if m.desired.Probed {
		if m.observed.Ready != nil {
			ready = *m.observed.Ready
		} else {
			ready = RecordsReady(&m.status)
		}
	}
	if !ready {
		message := m.observed.NotReady
		if message == "" {
			message = "The process is running but not ready yet."
		}
		m.reconciling(v1alpha1.ReasonNotReady, message)
		if exit := current.LeaderExit; exit != nil && m.restartsAfter(exitReason(*exit)) {
			m.restarting(failureReason(exitReason(*exit)), message) // the program has exited; only other processes of its tree are alive
		}
		return
	}
	if contested != nil && contested.Yields {
		m.stalled(contested.Reason, contested.Message)
		return
	}
	m.ready(strings.TrimSpace(fmt.Sprintf("Incarnation %d is running. %s", current.Number, describeFallback(&m.status))))
	m.rewardGoodRun()
}

// rewardGoodRun forgets failures after a run that was long enough: at least ResetAfter, and at least twice the back-off that preceded the run.
func (m *machine) rewardGoodRun() {
	if m.status.Failures == 0 && m.status.Breaker.State == v1alpha1.BreakerClosed && len(m.status.Breaker.FailureTimes) == 0 {
		return
	}
	process := m.status.Process
	if process == nil || process.StartTime == nil {
		return
	}
	needed := max(m.desired.Backoff.ResetAfter, 2*m.desired.Backoff.delay(m.desired.UID, m.status.Incarnation-1, m.status.Failures))
	if left := needed - m.since(process.StartTime.Time); left > 0 {
		m.requeue(left)
		return
	}
	m.forgetFailures()
}

// contained sets the Contained condition, which reports whether the whole process tree can be killed with certainty.
func (m *machine) contained(by string) {
	if by == v1alpha1.ReasonSubreaper {
		m.set(v1alpha1.ConditionContained, false, by, "No cgroup is writable: a process that keeps changing its parent can escape for a moment.")
		return
	}
	m.set(v1alpha1.ConditionContained, true, by, "")
}

// observeProcess records the identity of the process. It keeps an identity that is already recorded, so that nothing is written twice.
func (m *machine) observeProcess(current facts.Incarnation) {
	if current.Phase != facts.Running {
		return
	}
	if current.Adopted {
		m.adoptSession()
	}
	if current.Containment != "" {
		m.contained(current.Containment)
	}
	recorded, seen := m.status.Process, reference(current)
	if recorded != nil && recorded.Incarnation == seen.Incarnation && recorded.PID == seen.PID &&
		recorded.StartTicks == seen.StartTicks && recorded.BootID == seen.BootID && recorded.Node == seen.Node {
		return
	}
	m.status.Process = &seen
}

// reference returns the identity of an incarnation as the status records it.
func reference(i facts.Incarnation) v1alpha1.ProcessReference {
	process := v1alpha1.ProcessReference{
		Incarnation: i.Number, Node: i.Node, PID: i.PID, StartTicks: i.StartTicks, BootID: i.BootID, ContainerID: i.ContainerID, PodName: i.PodName,
	}
	if !i.StartedAt.IsZero() {
		started := microTime(i.StartedAt)
		process.StartTime = &started
	}
	return process
}

// uptime returns how long the recorded process had run at the given time; 0 if its start time is unknown.
func (m *machine) uptime(until time.Time) time.Duration {
	process := m.status.Process
	if process == nil || process.StartTime == nil {
		return 0
	}
	return max(0, m.since(process.StartTime.Time)-m.since(until))
}
