// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// goodUptime is how long a process must have run for its first crash to be followed by an immediate restart.
const goodUptime = 10 * time.Second

// planRestart counts the failure and records when the next incarnation starts, so that the plan survives a restart of the manager. It counts from now, because
// the time of the exit may come from the clock of another machine.
func (m *machine) planRestart(uptime time.Duration) {
	m.status.Failures++
	wait := m.restartWait()
	if m.status.Failures == 1 && uptime > goodUptime {
		wait = 0
	}
	planned := microTime(m.now.Add(max(wait, m.observed.Backlog)))
	m.status.NextRestartTime, m.step.PlannedRestart = &planned, true
	if !exits[m.status.LastExit.Reason].lost { // a lost process does not indicate a faulty program; the wait alone prevents a tight loop
		m.countFailure()
	}
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
	case exits[m.status.LastExit.Reason].lost:
		return max(wait, minLostRestartWait)
	default:
		return max(wait, minRestartWait)
	}
}

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

// fraction returns a pseudo-random number from 0 to 1 that is always the same for one incarnation.
func fraction(uid types.UID, incarnation int64) float64 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid))
	_ = binary.Write(hash, binary.LittleEndian, incarnation)
	return float64(hash.Sum32()%1024) / 1023
}

// microTime truncates a time to the precision that the API server stores (microseconds).
func microTime(t time.Time) metav1.MicroTime {
	return metav1.NewMicroTime(t.Truncate(time.Microsecond))
}
