// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// decideRunning is for an incarnation that lives and should: end it for a reason to restart, or say how it is.
func (m *machine) decideRunning(current facts.Incarnation) {
	m.observeProcess(current)
	if reason, message := m.reasonToRestart(current); reason != "" {
		m.reconciling(reason, message)
		m.restarting(reason, message)
		m.end(current, reason)
		return
	}
	m.drift()
	if current.Phase == facts.Starting {
		message := startingMessage(current.Number) // as before: there is nothing new to write
		if current.Message != "" {
			message += " It waits: " + current.Message
		}
		m.reconciling(v1alpha1.ReasonStarting, message)
		return
	}
	m.readiness(current)
}

// reasonToRestart says why the incarnation that runs has to end, or nothing.
func (m *machine) reasonToRestart(current facts.Incarnation) (reason, message string) {
	if stopping := m.status.Stopping; stopping != nil && stopping.Incarnation == current.Number {
		return stopping.Reason, "The process is being ended and is then started again."
	}
	if m.observed.Unhealthy != "" {
		reason := m.observed.UnhealthyReason
		if reason == "" {
			return v1alpha1.ReasonUnhealthy, "The liveness probe failed: " + m.observed.Unhealthy
		}
		return reason, m.observed.Unhealthy
	}
	if m.desired.Blocked != nil {
		return "", "" // it could not be started again
	}
	if m.desired.RestartToken != m.status.ObservedRestartToken {
		return v1alpha1.ReasonRequested, "A restart was asked for by spec.restartToken."
	}
	if m.drifted() && m.desired.UpdatePolicy != v1alpha1.UpdateOnRestart {
		return v1alpha1.ReasonSpecChanged, "The spec has changed; the process is restarted with it."
	}
	return "", ""
}

func (m *machine) drifted() bool {
	return m.status.SpecHash != m.desired.SpecHash
}

func (m *machine) drift() {
	blocked := m.desired.Blocked
	switch {
	case m.drifted() && blocked != nil:
		m.set(v1alpha1.ConditionDriftDetected, true, blocked.Reason, "The process runs with an older spec, because the new one can't be started: "+blocked.Message)
	case m.drifted():
		m.set(v1alpha1.ConditionDriftDetected, true, v1alpha1.ReasonDrifted, "The process runs with an older spec until its next restart.")
	default:
		m.set(v1alpha1.ConditionDriftDetected, false, v1alpha1.ReasonUpToDate, "")
	}
}

// readiness is earned by this incarnation. That a manager has just come and has no answer of a probe yet takes nothing away.
func (m *machine) readiness(current facts.Incarnation) {
	ready := true
	if m.desired.Probed {
		if m.observed.Ready != nil {
			ready = *m.observed.Ready
		} else {
			ready = meta.IsStatusConditionTrue(m.status.Conditions, v1alpha1.ConditionReady)
		}
	}
	if !ready {
		message := m.observed.NotReady
		if message == "" {
			message = "The process runs and is not ready yet."
		}
		m.reconciling(v1alpha1.ReasonNotReady, message)
		if exit := current.LeaderExit; exit != nil && m.restartsAfter(exitReason(*exit)) {
			m.restarting(mishap(exitReason(*exit)), message) // it is as good as gone
		}
		return
	}
	m.ready(fmt.Sprintf("Incarnation %d runs.", current.Number))
	m.rewardGoodRun()
}

// rewardGoodRun forgets failures after a run that was long enough: at least ResetAfter, and twice the wait that came before it.
func (m *machine) rewardGoodRun() {
	if m.status.Failures == 0 && m.status.Breaker.State == v1alpha1.BreakerClosed && len(m.status.Breaker.Failures) == 0 {
		return
	}
	process := m.status.Process
	if process == nil || process.StartedAt == nil {
		return
	}
	needed := max(m.desired.Backoff.ResetAfter, 2*m.desired.Backoff.delay(m.desired.UID, m.status.Incarnation-1, m.status.Failures))
	if left := process.StartedAt.Add(needed).Sub(m.now); left > 0 {
		m.requeue(left)
		return
	}
	m.forgetFailures()
}

// observeProcess takes over who the process is. An identity that is recorded already is left alone, so that nothing is written twice.
func (m *machine) observeProcess(current facts.Incarnation) {
	if current.Phase != facts.Running {
		return
	}
	if current.Containment != "" {
		m.set(v1alpha1.ConditionContained, true, current.Containment, "")
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
		process.StartedAt = &started
	}
	return process
}

// uptime is how long the recorded process ran until the time given; 0 when its start is not known.
func (m *machine) uptime(until time.Time) time.Duration {
	process := m.status.Process
	if process == nil || process.StartedAt == nil {
		return 0
	}
	return max(0, until.Sub(process.StartedAt.Time))
}
