// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// maxDoublings prevents an overflow of the shift below. A delay reaches its maximum after far fewer doublings.
const maxDoublings = 30

// delay returns how long to wait between the exit of the given incarnation and the next start: Initial, doubled with every further failure up to Max,
// ± 25 %. The jitter is derived from the UID and the incarnation, so that the same state always yields the same delay, but many objects do not restart at
// the same time.
func (b Backoff) delay(uid types.UID, incarnation int64, failures int32) time.Duration {
	if failures <= 0 || b.Initial <= 0 {
		return 0
	}
	delay := b.Max
	if doublings := failures - 1; doublings < maxDoublings && b.Initial<<doublings < b.Max && b.Initial<<doublings > 0 {
		delay = b.Initial << doublings
	}
	return time.Duration(float64(delay) * (0.75 + 0.5*fraction(uid, incarnation)))
}

// minRestartWait and minLostRestartWait are the shortest waits before a restart after two or more consecutive failures. minLostRestartWait applies if the
// process was lost, minRestartWait in all other cases. The spec can only request longer waits. Without a minimum, a program that fails immediately, or a
// Pod that its node rejects, would be started hundreds of times per second.
const (
	minRestartWait     = time.Second
	minLostRestartWait = 5 * time.Second
)

// restartWait returns how long to wait before the next start. The current incarnation has ended.
func (m *machine) restartWait() time.Duration {
	wait := m.desired.Backoff.delay(m.desired.UID, m.status.Incarnation, m.status.Failures)
	switch {
	case m.status.Failures <= 1:
		return wait
	case m.status.LastExit.Reason == v1alpha1.ReasonLost:
		return max(wait, minLostRestartWait)
	default:
		return max(wait, minRestartWait)
	}
}

// fraction returns a pseudo-random number from 0 to 1 that is always the same for one incarnation.
func fraction(uid types.UID, incarnation int64) float64 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid))
	_ = binary.Write(hash, binary.LittleEndian, incarnation)
	return float64(hash.Sum32()%1024) / 1023
}

// countFailure adds a failure to the breaker. It opens the breaker if too many failures lie within the window, or if the trial start after a cool-down
// has failed.
func (m *machine) countFailure(at time.Time) {
	breaker := m.status.Breaker
	var recent []metav1.MicroTime
	for _, failure := range breaker.FailureTimes {
		if failure.Add(m.desired.Breaker.Window).After(at) {
			recent = append(recent, failure)
		}
	}
	breaker.FailureTimes = append(recent, microTime(at))
	if extra := len(breaker.FailureTimes) - m.desired.Breaker.Threshold; extra > 0 {
		breaker.FailureTimes = breaker.FailureTimes[extra:]
	}
	after := m.desired.Breaker.Fail(Circuit{State: breaker.State, OpenedAt: breaker.OpenTime}, len(breaker.FailureTimes), m.now)
	breaker.State, breaker.OpenTime = after.State, after.OpenedAt
}

// forgetFailures closes the breaker and resets the back-off.
func (m *machine) forgetFailures() {
	m.status.Failures = 0
	m.status.NextRestartTime = nil
	m.status.Breaker = &v1alpha1.BreakerStatus{State: v1alpha1.BreakerClosed}
}

// absorbReset handles a changed reset token: it forgets the failures. If the process was waiting for its next start, or had failed permanently, absorbReset
// schedules an immediate start.
func (m *machine) absorbReset() {
	if m.desired.ResetToken == m.status.ObservedResetToken {
		return
	}
	m.status.ObservedResetToken = m.desired.ResetToken
	end := m.status.LastExit
	failed := end != nil && end.Incarnation == m.status.Incarnation &&
		end.Reason != v1alpha1.ReasonCompleted && end.Reason != v1alpha1.ReasonStopped
	waited := m.status.NextRestartTime != nil
	m.forgetFailures()
	if failed || waited {
		now := microTime(m.now)
		m.status.NextRestartTime = &now
	}
}

// microTime truncates a time to the precision that the API server stores (microseconds).
func microTime(t time.Time) metav1.MicroTime {
	return metav1.NewMicroTime(t.Truncate(time.Microsecond))
}
