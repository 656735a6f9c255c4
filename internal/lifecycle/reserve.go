// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// The status must record the intent to start a process before the process starts. Waiting for that write would take longer than the start itself. Therefore
// the number of the next incarnation is recorded in advance: an object that has the finalizer reserves number 1, and every written status reserves the
// number after its current incarnation. The backend stores the values that a pre-started incarnation was started with, so that a single later write can
// record the start completely.
//
// A reservation is never withdrawn: it only states which number may appear in the backend. Each reconcile decides again whether it may be used.

// reserved returns the incarnation that may exist in the backend although the record does not show its start; 0 if there is none.
func reserved(reserves bool, record *v1alpha1.ProcessStatus) int64 {
	if reserves && record.Incarnation == 0 {
		return 1
	}
	return record.ReservedIncarnation
}

// reserve records which incarnation may be started next.
func (m *machine) reserve() {
	if m.desired.Reserve {
		m.status.ReservedIncarnation = m.status.Incarnation + 1
	}
}

// canPreStart reports whether the decision is exactly the reserved start. That start needs no prior write: the record already permits this incarnation,
// and any manager that finds it adopts it.
func (m *machine) canPreStart(record *v1alpha1.ProcessStatus) bool {
	number := record.Incarnation + 1
	if !m.desired.Reserve || m.desired.RecordFirst || !m.mayPreStart(record) || m.observed.LastError != "" || reserved(m.desired.Reserve, record) != number {
		return false
	}
	return m.step.Action == StartProcess && m.step.Incarnation == number &&
		closed(record.Breaker) && closed(m.status.Breaker) && m.keepsEnd(record)
}

// closed reports whether a breaker permits every start. The trial after a cool-down cannot be a pre-start, because it must be recorded before it
// starts.
func closed(breaker *v1alpha1.BreakerStatus) bool {
	return breaker == nil || breaker.State == v1alpha1.BreakerClosed
}

// keepsEnd reports whether the exit of the recorded incarnation stays known after the next one starts, either from the record or from the backend. It also
// returns false if the incarnation was asked to stop but the record contains no stop request, because such a record is stale.
func (m *machine) keepsEnd(record *v1alpha1.ProcessStatus) bool {
	if end := record.LastExit; record.Incarnation == 0 || end != nil && end.Incarnation >= record.Incarnation {
		return true
	}
	if !m.desired.KeepsPreviousExit || record.Process == nil || record.Process.Incarnation != record.Incarnation {
		return false
	}
	ended := m.incarnation(record.Incarnation)
	asked := record.Stopping != nil && record.Stopping.Incarnation == record.Incarnation
	return ended != nil && ended.Phase == facts.Exited && (asked || !ended.StopSent)
}

// why returns the reason of the decided restart; empty if the start is not a restart.
func (m *machine) why() string {
	if restarting := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionRestarting); meta.IsStatusConditionTrue(m.status.Conditions, restarting.Type) {
		return restarting.Reason
	}
	return ""
}

// IsCurrent reports whether an observed incarnation is the recorded one: by its number, or as the pre-started one. reserves is Desired.Reserve.
func IsCurrent(reserves bool, record *v1alpha1.ProcessStatus, number int64) bool {
	return number == record.Incarnation || number == record.Incarnation+1 && number == reserved(reserves, record)
}

// recordPreStart records a pre-started incarnation as if a write had preceded its start. It first records the exit of the previous incarnation, and then the
// spec hash and the restart token that the incarnation was started with.
func (m *machine) recordPreStart() {
	ahead := m.preStarted()
	if ahead == nil {
		return
	}
	m.absorbEnd(m.current())
	now := m.desired
	if ahead.Origin.SpecHash != "" {
		m.desired.SpecHash, m.desired.RestartToken, m.desired.ResumeHash = ahead.Origin.SpecHash, ahead.Origin.RestartToken, ahead.Origin.ResumeHash
	}
	if m.askedToStart() {
		m.forgetFailures()
	}
	m.advance(m.restartReason())
	m.status.SpecHash = m.desired.SpecHash
	m.answerRestart()
	m.desired = now
	if ahead.StopSent { // the process was asked to stop before a manager recorded its start
		m.status.Stopping = &v1alpha1.StopRequest{Incarnation: ahead.Number, Reason: v1alpha1.ReasonStopped, KillTime: microTime(m.now.Add(m.desired.Grace))}
	}
	m.reconciling(v1alpha1.ReasonStarting, startingMessage(m.status.Incarnation))
}

// preStarted returns the reserved incarnation if it exists, or nil.
func (m *machine) preStarted() *facts.Incarnation {
	number := reserved(m.desired.Reserve, &m.status)
	if number != m.status.Incarnation+1 {
		return nil
	}
	return m.incarnation(number)
}
