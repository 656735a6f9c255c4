// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Breaker is when to stop trying. It is one piece of code for processes, whose failures count for Window, and for Strategies, whose failures
// count until a success. CoolDown 0 keeps it open until a reset.
type Breaker struct {
	Threshold        int
	Window, CoolDown time.Duration
}

// Circuit is where a breaker stands.
type Circuit struct {
	State    v1alpha1.BreakerState
	OpenedAt *metav1.MicroTime
}

// Fail says where the breaker stands after a failure that makes so many: it opens at the threshold, and when the one try after a cool-down has failed.
// One that is open stays as it is.
func (b Breaker) Fail(c Circuit, failures int, now time.Time) Circuit {
	if c.State == v1alpha1.BreakerOpen || c.State != v1alpha1.BreakerHalfOpen && failures < b.Threshold {
		return c
	}
	opened := microTime(now)
	return Circuit{State: v1alpha1.BreakerOpen, OpenedAt: &opened}
}

// Cooling says how long an open breaker lets nothing through: 0 when one try is due, and ends false when only a reset closes it. The circuit it
// gives back differs when the clock was set back: what opened in what is the future now must not stay open for as long.
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
