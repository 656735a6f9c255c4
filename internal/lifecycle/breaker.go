// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/elapsed"
)

// Breaker configures when Berth stops retrying. Processes and Strategies use the same logic: a failure of a process counts for the duration Window, a
// failure of a Strategy counts until the next success. CoolDown 0 keeps the breaker open until a reset.
type Breaker struct {
	Threshold        int
	Window, CoolDown time.Duration
}

// Circuit is the state of a breaker.
type Circuit struct {
	State    v1alpha1.BreakerState
	OpenedAt *metav1.MicroTime
}

// Fail returns the circuit after a failure. failures is the number of failures that count, including this one. The breaker opens when they reach
// Threshold, or when the trial after a cool-down has failed. An open breaker is unchanged.
func (b Breaker) Fail(c Circuit, failures int, now time.Time) Circuit {
	if c.State == v1alpha1.BreakerOpen || c.State != v1alpha1.BreakerHalfOpen && failures < b.Threshold {
		return c
	}
	opened := microTime(now)
	return Circuit{State: v1alpha1.BreakerOpen, OpenedAt: &opened}
}

// Cooling returns how long an open breaker still blocks: left is 0 if a trial is due, and ends is false if only a reset closes the breaker. The first result
// is the circuit c, unchanged unless OpenedAt lies in the future and no step in timeline explains that: then it becomes now, so that the breaker blocks for at most
// CoolDown.
func (b Breaker) Cooling(c Circuit, timeline elapsed.Timeline, now time.Time) (after Circuit, left time.Duration, ends bool) {
	if b.CoolDown == 0 || c.OpenedAt == nil {
		return c, 0, false
	}
	left, valid := timeline.Left(c.OpenedAt.Add(b.CoolDown), b.CoolDown, now)
	if !valid {
		opened := microTime(now)
		c.OpenedAt = &opened
	}
	return c, max(left, 0), true
}

// countFailure adds a failure to the breaker. It opens the breaker if too many failures lie within the window, or if the trial start after a cool-down
// has failed.
func (m *machine) countFailure() {
	breaker := m.status.Breaker
	var recent []metav1.MicroTime
	for _, failure := range breaker.FailureTimes {
		left, valid := m.observed.Timeline.Left(failure.Add(m.desired.Breaker.Window), m.desired.Breaker.Window, m.now)
		if !valid {
			failure = microTime(m.now)
		}
		if left > 0 {
			recent = append(recent, failure)
		}
	}
	breaker.FailureTimes = append(recent, microTime(m.now))
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
	if m.status.Resume != nil {
		m.status.Resume.FallbackIncarnation = 0
	}
	m.status.Breaker = &v1alpha1.BreakerStatus{State: v1alpha1.BreakerClosed}
}

// absorbReset handles a new reset token: it forgets the failures. A removed token is no request. If the process was waiting for its next start, or had failed permanently, absorbReset
// schedules an immediate start.
func (m *machine) absorbReset() {
	if token := m.desired.ResetToken; token == "" || token == m.status.ObservedResetToken {
		return
	}
	m.status.ObservedResetToken = m.desired.ResetToken
	end := m.status.LastExit
	failed := end != nil && end.Incarnation == m.status.Incarnation && !exits[end.Reason].succeeded && !exits[end.Reason].requested
	waited := m.status.NextRestartTime != nil
	m.forgetFailures()
	if failed || waited {
		now := microTime(m.now)
		m.status.NextRestartTime = &now
	}
}
