// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
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
// is the circuit c, unchanged unless the clock was set back: then an OpenedAt in the future becomes now, so that the breaker blocks for at most CoolDown.
func (b Breaker) Cooling(c Circuit, now time.Time) (after Circuit, left time.Duration, ends bool) {
	if b.CoolDown == 0 || c.OpenedAt == nil {
		return c, 0, false
	}
	left = c.OpenedAt.Add(b.CoolDown).Sub(now)
	if left > b.CoolDown {
		opened := microTime(now)
		c.OpenedAt, left = &opened, b.CoolDown
	}
	return c, max(left, 0), true
}
