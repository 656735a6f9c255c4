// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"github.com/berth-dev/berth/api/v1alpha1"
)

// A start needs its intent on record, and a write takes longer than the start itself. So the record of a process that runs already holds the
// number of the one after it. When it crashes, that one is started at once, and one write then tells what has happened.
//
// The reservation is never taken back: it only says which number may turn up outside. Whether it may be used is decided anew each time.

// reserve records which incarnation may be started when the current one crashes, in the write that records the current one.
func (m *machine) reserve() {
	if m.desired.Reserve && m.status.Process != nil && m.desired.RestartPolicy != v1alpha1.RestartNever {
		m.status.ReservedIncarnation = m.status.Incarnation + 1
	}
}

// startsAhead says whether what was decided is no more than the start that is reserved. Then it needs no write before: the record says already
// that this incarnation may run, and whoever finds it adopts it.
func (m *machine) startsAhead(record *v1alpha1.ProcessStatus) bool {
	reserved := record.ReservedIncarnation == record.Incarnation+1 &&
		m.step.Action == StartProcess && m.step.Incarnation == record.ReservedIncarnation
	return reserved && m.desired.Reserve && m.asRecorded(record) && m.hasCrashed(record)
}

// asRecorded says whether the spec is the one that the record has answered, so that the next incarnation is like the one before.
func (m *machine) asRecorded(record *v1alpha1.ProcessStatus) bool {
	return record.ObservedGeneration == m.desired.Generation && record.SpecHash == m.desired.SpecHash &&
		record.ObservedRestartToken == m.desired.RestartToken && record.ObservedResetToken == m.desired.ResetToken
}

// hasCrashed says whether the process of the record has ended by itself and nothing has happened since. That nobody asked it to end is known from
// the record and from outside: a record can be old, and what a stop has left outside is not.
func (m *machine) hasCrashed(record *v1alpha1.ProcessStatus) bool {
	if record.Process == nil || record.Process.Incarnation != record.Incarnation || record.Stopping != nil {
		return false
	}
	if record.Breaker == nil || record.Breaker.State != v1alpha1.BreakerClosed || m.status.Breaker.State != v1alpha1.BreakerClosed {
		return false
	}
	crashed := false
	for _, incarnation := range m.observed.Incarnations {
		switch {
		case incarnation.Number > record.Incarnation:
			return false
		case incarnation.Number == record.Incarnation:
			crashed = incarnation.Phase == Exited && !incarnation.StopSent
		}
	}
	return crashed
}

// IsCurrent says whether an incarnation that is there is the one of the record: by its number, or as the one that was started ahead.
func IsCurrent(record *v1alpha1.ProcessStatus, number int64) bool {
	return number == record.Incarnation || number == record.Incarnation+1 && number == record.ReservedIncarnation
}

// adopt takes over an incarnation that was started ahead: the end of the one before is recorded first, and so counted once, in the same write.
func (m *machine) adopt() {
	if !m.startedAhead() {
		return
	}
	m.absorbEnd(m.current())
	m.next(v1alpha1.ReasonCrashed)
	m.reconciling(v1alpha1.ReasonStarting, startingMessage(m.status.Incarnation))
}

// startedAhead says whether the incarnation that the record has reserved is there.
func (m *machine) startedAhead() bool {
	if m.status.ReservedIncarnation != m.status.Incarnation+1 {
		return false
	}
	for _, incarnation := range m.observed.Incarnations {
		if incarnation.Number == m.status.ReservedIncarnation {
			return true
		}
	}
	return false
}
