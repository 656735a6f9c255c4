// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// staleRetry is how long to wait before the next read if the record is older than the observed state.
const staleRetry = 100 * time.Millisecond

// preStartRetry is how long to wait before checking a pre-started incarnation if no event reports it.
const preStartRetry = time.Second

// Next decides the next step for one process. It is pure: the same arguments return the same Step.
func Next(desired Desired, record v1alpha1.ProcessStatus, observed Observed, now time.Time) Step {
	m := &machine{desired: desired, observed: observed, now: now, status: *record.DeepCopy()}
	m.numberUnknown()
	m.expandBefore()
	if !m.recordIsNewest() {
		return Step{Status: record, Action: Recheck, Requeue: staleRetry}
	}
	m.begin()
	m.recordPreStart()
	m.recordOrigin()
	m.decide()
	if m.canPreStart(&record) {
		return Step{Status: record, Action: StartProcess, Incarnation: m.step.Incarnation, SessionStart: m.step.SessionStart, PreStart: true, Why: m.why(),
			Requeue: preStartRetry}
	}
	m.reserve()
	m.concludeConditions()
	m.step.Events = m.eventsBetween(&record)
	if m.desired.Once != nil {
		m.runOnce(&record)
	}
	m.step.Status = m.status
	return m.step
}

// machine is one evaluation of Next: the status as it is being rewritten, and the resulting step.
type machine struct {
	desired  Desired
	observed Observed
	now      time.Time
	status   v1alpha1.ProcessStatus
	step     Step
	edited   bool   // the spec has changed since the record was written
	conflict bool   // the Conflict condition was set to True
	lostHost string // the former holder, if it was declared lost
}

// since returns the time that has elapsed since t was recorded.
func (m *machine) since(t time.Time) time.Duration { return m.observed.Timeline.Since(t, m.now) }

// numberUnknown assigns the recorded number to an incarnation that the backend cannot read. The backend reports such an incarnation with the number 0, so Next
// would otherwise take it for an older one and stop it.
func (m *machine) numberUnknown() {
	for i, incarnation := range m.observed.Incarnations {
		if incarnation.Number == 0 && incarnation.Phase == facts.Unknown {
			m.observed.Incarnations = slices.Clone(m.observed.Incarnations)
			m.observed.Incarnations[i].Number = m.status.Incarnation
		}
	}
}

// expandBefore adds the exited incarnations that a backend reports only in the field Before of the following incarnation.
func (m *machine) expandBefore() {
	if !m.desired.Reserve {
		return
	}
	for _, incarnation := range m.observed.Incarnations {
		if before := incarnation.Before; before != nil {
			m.observed.Incarnations = append(slices.Clone(m.observed.Incarnations), facts.Incarnation{Number: before.Number, Phase: facts.Exited, Exit: &before.Exit})
		}
	}
}

// recordIsNewest reports whether the record contains or reserves every observed incarnation. If it does not, there are two cases. Usually the record is
// outdated: after the record was read, another reconcile or manager recorded and started an incarnation. Then recordIsNewest returns false. But if the
// record is confirmed to be the newest, the entry for that incarnation was lost. Then recordIsNewest takes over the highest observed number with the
// current spec, and returns true.
func (m *machine) recordIsNewest() bool {
	known := max(m.status.Incarnation, reserved(m.desired.Reserve, &m.status))
	newest := known
	for _, incarnation := range m.observed.Incarnations {
		newest = max(newest, incarnation.Number)
	}
	if newest == known {
		return true
	}
	if !m.observed.Confirmed {
		return false
	}
	m.status.Incarnation = newest
	m.status.SpecHash = m.desired.SpecHash
	m.answerRestart()
	m.status.ObservedResetToken = m.desired.ResetToken
	m.status.Process, m.status.Stopping = nil, nil
	return true
}

func (m *machine) begin() {
	m.step.Action = None
	m.edited = m.status.ObservedGeneration != 0 && m.status.ObservedGeneration != m.desired.Generation
	m.status.ObservedGeneration = m.desired.Generation
	if m.status.Breaker == nil {
		m.status.Breaker = &v1alpha1.BreakerStatus{State: v1alpha1.BreakerClosed}
	}
	m.takeOver()
	m.upgradeSession()
	m.firstConditions()
}

// decide checks what may have to be done, the most urgent first. Each check either determines the step or leaves it to the next check.
func (m *machine) decide() {
	if older := m.olderAlive(); older != nil {
		m.stopThenKill(*older, v1alpha1.ReasonSuperseded, "")
		m.reconciling(v1alpha1.ReasonSuperseded, "Stopping an older incarnation first.")
		return
	}
	m.concludeOlderStop()
	current := m.current()
	if current != nil && current.Phase == facts.Unknown && !m.canKillUnknown(*current) {
		m.unknown(*current)
		return
	}
	if current == nil || !current.Alive() {
		m.absorbEnd(current)
	}
	m.absorbReset()
	switch {
	case m.desired.State == DesiredDeleted:
		m.decideDeleted(current)
	case m.desired.State == DesiredMoved:
		m.decideMove(current)
	case m.desired.State == DesiredStopped:
		m.decideStop(current)
	case m.desired.State == DesiredAsleep && m.maySleep(current):
		m.decideSleep(current)
	case current != nil && current.Alive():
		m.decideRunning(*current)
	default:
		m.decideStart(current != nil)
	}
}

// current returns the observed incarnation with the recorded number, or nil.
func (m *machine) current() *facts.Incarnation { return m.incarnation(m.status.Incarnation) }

// incarnation returns the observed incarnation with this number, or nil.
func (m *machine) incarnation(number int64) *facts.Incarnation {
	for i := range m.observed.Incarnations {
		if m.observed.Incarnations[i].Number == number {
			return &m.observed.Incarnations[i]
		}
	}
	return nil
}

// recordOrigin records what the current incarnation was started with, if the backend reports it. The record differs from it if a replaced manager started the
// incarnation late: its successor had found no such incarnation, and had recorded it again with a newer spec. Without recordOrigin the status would claim that
// the newer spec is running. An empty hash in the record stays empty, because the object was stopped, is asleep or was moved.
func (m *machine) recordOrigin() {
	current := m.current()
	if current == nil || current.Origin.SpecHash == "" || m.status.SpecHash == "" {
		return
	}
	m.status.SpecHash, m.status.ObservedRestartToken = current.Origin.SpecHash, current.Origin.RestartToken
	m.recordSessionOrigin(current.Origin)
}

func (m *machine) olderAlive() *facts.Incarnation {
	for i := range m.observed.Incarnations {
		if incarnation := &m.observed.Incarnations[i]; incarnation.Number < m.status.Incarnation && incarnation.Alive() {
			return incarnation
		}
	}
	return nil
}

// canKillUnknown reports whether an incarnation in phase Unknown may be stopped: a stop or restart is due, and the backend can kill the incarnation and then
// observe its exit, although the backend cannot determine the state of the incarnation now.
func (m *machine) canKillUnknown(current facts.Incarnation) bool {
	switch m.desired.State {
	case DesiredDeleted, DesiredStopped, DesiredMoved:
		return current.Killable
	case DesiredRunning:
		reason, _ := m.reasonToRestart(current)
		atRest := m.status.SpecHash == "" // no spec is recorded after a stop, a sleep or a move
		return current.Killable && reason != "" && (reason != v1alpha1.ReasonSpecChanged || !atRest)
	default:
		return false
	}
}

// unknown reports the incarnation and takes no action: Berth neither stops nor replaces a process whose state it cannot determine.
func (m *machine) unknown(current facts.Incarnation) {
	message := "Cannot determine whether the process is running"
	if current.Message != "" {
		message += ": " + strings.TrimSuffix(current.Message, ".")
	}
	switch _, obstacle := m.obstacle(); {
	case current.Killable && obstacle != "" && m.desired.State == DesiredRunning:
		message += ". Berth does nothing until it can. To kill the process after its grace period, stop or delete the object; it cannot be restarted: " + obstacle
	case current.Killable:
		message += ". Berth does nothing until it can. To kill the process after its grace period, stop, restart or delete the object."
	default:
		message += ". Berth does not stop or start anything until it can."
	}
	m.stalled(v1alpha1.ReasonUnknown, message)
	m.requeue(unknownRetry)
}

// unknownRetry is how long to wait before checking an incarnation in phase Unknown again.
const unknownRetry = 5 * time.Second

func (m *machine) act(action Action, incarnation int64) {
	m.step.Action, m.step.Incarnation = action, incarnation
}

// requeue schedules the next check after d, unless an earlier one is already scheduled.
func (m *machine) requeue(d time.Duration) {
	d = max(d, time.Millisecond)
	if m.step.Requeue == 0 || d < m.step.Requeue {
		m.step.Requeue = d
	}
}
