// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// After the clock is set back, no wait is longer than the spec allows.
func TestBackoff_StaysBoundedWhenClockIsSetBack(t *testing.T) {
	s := newFixture(t).startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
	s.now = s.now.Add(-time.Hour)
	s.next()
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
	s.g.Expect(s.last.Requeue).To(BeNumerically("<=", 1250*time.Millisecond))
	s.expectAtRest()
	s.now = s.now.Add(s.last.Requeue)
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
}

func TestCoolDown_StaysBoundedWhenClockIsSetBack(t *testing.T) {
	s := newFixture(t)
	s.desired.Breaker.Threshold = 1
	s.startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.now = s.now.Add(-24 * time.Hour)
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.g.Expect(s.last.Requeue).To(Equal(s.desired.Breaker.CoolDown))
	s.expectAtRest()
	s.now = s.now.Add(s.last.Requeue)
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
}

// A change of the spec also shortens a back-off that has already begun.
func TestBackoff_IsShortenedBySpecChange(t *testing.T) {
	s := newFixture(t).startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.desired.Backoff = Backoff{ResetAfter: time.Minute}
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
}
