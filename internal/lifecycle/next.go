// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// staleRetry is how long to wait before the next read if the record is older than the observed state.
const staleRetry = 100 * time.Millisecond

// aheadRetry is how long to wait before checking a pre-started incarnation if no event reports it.
const aheadRetry = time.Second

// Next decides the next step for one process. It is pure: the same arguments return the same Step.
func Next(desired Desired, record v1alpha1.ProcessStatus, observed Observed, now time.Time) Step {
	m := &machine{desired: desired, observed: observed, now: now, status: *record.DeepCopy()}
	m.numberUnknown()
	m.expandBefore()
	if !m.recordIsNewest() {
		return Step{Status: record, Action: Recheck, Requeue: staleRetry}
	}
	m.begin()
	m.adopt()
	m.decide()
	if m.startsAhead(&record) {
		return Step{Status: record, Action: StartProcess, Incarnation: m.step.Incarnation, PreStart: true, Why: m.why(), Requeue: aheadRetry}
	}
	m.reserve()
	m.concludeConditions()
	m.step.Status = m.status
	m.step.Events = m.eventsBetween(&record)
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

// numberUnknown assigns the recorded number to an incarnation that the backend cannot read. Otherwise it would count as an older incarnation and be
// ended to make room.
func (m *machine) numberUnknown() {
	for i, incarnation := range m.observed.Incarnations {
		if incarnation.Number == 0 && incarnation.Phase == facts.Unknown {
			m.observed.Incarnations = slices.Clone(m.observed.Incarnations)
			m.observed.Incarnations[i].Number = m.status.Incarnation
		}
	}
}

// expandBefore adds to the list each previous incarnation that a backend reports as part of the next one.
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

// recordIsNewest reports whether the record contains or reserves every observed incarnation. If it does not, there are two cases. Usually the
// record is outdated: another reconcile or manager has recorded and started an incarnation since it was read. But if the record is confirmed to be the
// newest, the entry for that incarnation was lost; then recordIsNewest takes over the highest observed number with the current spec, and returns true.
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
	m.status.ObservedRestartToken = m.desired.RestartToken
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
	m.firstConditions()
}

// decide checks what may have to be done, the most urgent first. Each check either determines the step or leaves it to the next check.
func (m *machine) decide() {
	if older := m.olderAlive(); older != nil {
		m.end(*older, v1alpha1.ReasonSuperseded)
		m.reconciling(v1alpha1.ReasonSuperseded, "Stopping an older incarnation first.")
		return
	}
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
		m.decideGone(current)
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
func (m *machine) current() *facts.Incarnation {
	for i := range m.observed.Incarnations {
		if m.observed.Incarnations[i].Number == m.status.Incarnation {
			return &m.observed.Incarnations[i]
		}
	}
	return nil
}

func (m *machine) olderAlive() *facts.Incarnation {
	for i := range m.observed.Incarnations {
		if incarnation := &m.observed.Incarnations[i]; incarnation.Number < m.status.Incarnation && incarnation.Alive() {
			return incarnation
		}
	}
	return nil
}

// canKillUnknown reports whether an incarnation in phase Unknown may be ended: an end is requested, and its exit will be observed even though its state
// cannot be read now.
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

// unknown keeps the process: Berth neither ends nor replaces what it cannot verify.
func (m *machine) unknown(current facts.Incarnation) {
	message := "Cannot determine whether the process is running"
	if current.Message != "" {
		message += ": " + current.Message
	}
	message += ". Berth does not stop or start anything until it can."
	if current.Killable {
		message += " To end the process, stop, restart or delete the object; the process is killed after the grace period."
	}
	m.stalled(v1alpha1.ReasonUnknown, message)
	m.requeue(unknownRetry)
}

// unknownRetry is how long to wait before checking an incarnation in phase Unknown again.
const unknownRetry = 5 * time.Second

func (m *machine) decideGone(current *facts.Incarnation) {
	if m.desired.Orphan {
		m.reconciling(v1alpha1.ReasonDeleting, "The object is being deleted; the adopted process keeps running.")
		m.step.Action, m.step.Released = Forget, true
		return
	}
	m.reconciling(v1alpha1.ReasonDeleting, "The object is being deleted; stopping its process first.")
	if current != nil && current.Alive() {
		m.end(*current, v1alpha1.ReasonDeleting)
		return
	}
	m.step.Action, m.step.Released = Forget, true
}

func (m *machine) decideStop(current *facts.Incarnation) {
	if current != nil && current.Alive() {
		m.reconciling(v1alpha1.ReasonStopping, "Stopping the process, because the spec requests it.")
		m.observeProcess(*current)
		m.end(*current, v1alpha1.ReasonStopped)
		return
	}
	// A stop resets the record: without a fingerprint, the next change to Running starts the process regardless of earlier failures.
	m.status.SpecHash = ""
	m.forgetFailures()
	m.rest(v1alpha1.ReasonStopped, "The process is stopped, as the spec requests. Set spec.state to Running to start it.")
	m.expires()
}

// maySleep returns false for a process that exited by itself or was never started. Such a process is started first, so that a failure shows before the
// next use.
func (m *machine) maySleep(current *facts.Incarnation) bool {
	if current != nil && current.Alive() {
		return true
	}
	end := m.status.LastExit
	return m.endRecorded() && end.Reason == v1alpha1.ReasonStopped
}

// decideSleep ends an unused process. The object stays usable, so it is Ready. The next start also satisfies a restart that is requested while the
// process sleeps.
func (m *machine) decideSleep(current *facts.Incarnation) {
	if current != nil && current.Alive() {
		m.observeProcess(*current)
		m.reconciling(v1alpha1.ReasonStopping, "The process is not used; stopping it until the next use.")
		m.end(*current, v1alpha1.ReasonIdle)
		return
	}
	m.status.SpecHash = ""
	m.status.ObservedRestartToken = m.desired.RestartToken
	m.rest(v1alpha1.ReasonIdle, "Idle. Starts on the next use.")
}

// end stops the incarnation: request, wait, kill. The intent is recorded before the first signal, and the deadline can only move closer.
func (m *machine) end(incarnation facts.Incarnation, reason string) {
	deadline := microTime(m.now.Add(m.desired.Grace))
	stopping := m.status.Stopping
	if stopping == nil || stopping.Incarnation != incarnation.Number {
		m.status.Stopping = &v1alpha1.StopRequest{Incarnation: incarnation.Number, Reason: reason, Deadline: deadline}
		m.act(StopProcess, incarnation.Number)
		m.requeue(m.desired.Grace)
		return
	}
	if deadline.Time.Before(stopping.Deadline.Time) {
		stopping.Deadline = deadline
	}
	left := stopping.Deadline.Sub(m.now)
	switch {
	case left <= 0:
		m.act(KillProcess, incarnation.Number)
		m.requeue(min(max(-left/2, killRetryFirst), killRetryLast))
	case !incarnation.StopSent:
		m.act(StopProcess, incarnation.Number)
		m.requeue(left)
	default:
		m.requeue(left)
	}
}

// SIGKILL is repeated with back-off between these bounds, because a process in uninterruptible sleep may outlive the first one.
const (
	killRetryFirst = 200 * time.Millisecond
	killRetryLast  = 30 * time.Second
)

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
