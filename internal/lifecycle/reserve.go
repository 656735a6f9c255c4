// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// A start needs its intent on record, and a write takes longer than the start itself. So the number of the next incarnation is on record beforehand:
// the finalizer stands for the first, and every record names the one after its own. What is started ahead carries what it was started with, and one
// write then tells what has happened.
//
// A reservation is never taken back: it only says which number may turn up outside. Whether it may be used is decided anew each time.

// reserved is the incarnation that may turn up outside although the record does not say that it was started; 0 for none.
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

// startsAhead says whether what was decided is no more than the start that is reserved. Then it needs no write before: the record says already
// that this incarnation may run, and whoever finds it adopts it.
func (m *machine) startsAhead(record *v1alpha1.ProcessStatus) bool {
	number := record.Incarnation + 1
	if !m.desired.Reserve || !m.mayPreStart(record) || m.observed.Trouble != "" || reserved(m.desired.Reserve, record) != number {
		return false
	}
	return m.step.Action == StartProcess && m.step.Incarnation == number &&
		closed(record.Breaker) && closed(m.status.Breaker) && m.keepsEnd(record)
}

// closed says whether a breaker lets all through. A try after a cool-down is on record before it is made.
func closed(breaker *v1alpha1.BreakerStatus) bool {
	return breaker == nil || breaker.State == v1alpha1.BreakerClosed
}

// keepsEnd says whether the end of the incarnation on record is still known once the next one runs: from the record, or from the backend. One
// that was asked to end by nobody's record is none to go on from: the record is old.
func (m *machine) keepsEnd(record *v1alpha1.ProcessStatus) bool {
	if end := record.LastExit; record.Incarnation == 0 || end != nil && end.Incarnation >= record.Incarnation {
		return true
	}
	if !m.desired.KeepsEnd || record.Process == nil || record.Process.Incarnation != record.Incarnation {
		return false
	}
	for _, incarnation := range m.observed.Incarnations {
		if incarnation.Number == record.Incarnation {
			return incarnation.Phase == facts.Exited && (record.Stopping != nil || !incarnation.StopSent)
		}
	}
	return false
}

// why is the reason of the restart that was decided; empty for a start that is none.
func (m *machine) why() string {
	if restarting := meta.FindStatusCondition(m.status.Conditions, v1alpha1.ConditionRestarting); meta.IsStatusConditionTrue(m.status.Conditions, restarting.Type) {
		return restarting.Reason
	}
	return ""
}

// IsCurrent says whether an incarnation that is there is the one of the record: by its number, or as the one that was started ahead. reserves is
// Desired.Reserve.
func IsCurrent(reserves bool, record *v1alpha1.ProcessStatus, number int64) bool {
	return number == record.Incarnation || number == record.Incarnation+1 && number == reserved(reserves, record)
}

// adopt takes over an incarnation that was started ahead, as if its intent had been recorded when it was started: after the end of the one before,
// with what it was started with.
func (m *machine) adopt() {
	ahead := m.startedAhead()
	if ahead == nil {
		return
	}
	m.absorbEnd(m.current())
	now := m.desired
	if ahead.Origin.SpecHash != "" {
		m.desired.SpecHash, m.desired.RestartToken = ahead.Origin.SpecHash, ahead.Origin.RestartToken
	}
	if m.askedToStart() {
		m.forgetFailures()
	}
	m.next(m.restartReason())
	m.status.SpecHash, m.status.ObservedRestartToken = m.desired.SpecHash, m.desired.RestartToken
	m.desired = now
	if ahead.StopSent { // by whoever ended all that ran, when no manager was there to record it
		m.status.Stopping = &v1alpha1.StopRequest{Incarnation: ahead.Number, Reason: v1alpha1.ReasonStopped, Deadline: microTime(m.now.Add(m.desired.Grace))}
	}
	m.reconciling(v1alpha1.ReasonStarting, startingMessage(m.status.Incarnation))
}

// startedAhead gives the incarnation that is reserved, if it is there.
func (m *machine) startedAhead() *facts.Incarnation {
	number := reserved(m.desired.Reserve, &m.status)
	if number != m.status.Incarnation+1 {
		return nil
	}
	for i := range m.observed.Incarnations {
		if m.observed.Incarnations[i].Number == number {
			return &m.observed.Incarnations[i]
		}
	}
	return nil
}
