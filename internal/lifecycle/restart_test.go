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

// newUnlimitedFixture returns a Ready object whose spec requests restarts without any back-off or limit.
func newUnlimitedFixture(t *testing.T) *fixture {
	s := newFixture(t)
	s.desired.Backoff = Backoff{ResetAfter: time.Second}
	s.desired.Breaker = Breaker{Threshold: 64, Window: time.Second}
	return s.startToReady()
}

// restartsWithin lets each incarnation exit immediately and returns the number of starts within the period.
func (s *fixture) restartsWithin(span time.Duration, exit facts.Exit) (starts int) {
	s.t.Helper()
	over := s.now.Add(span)
	for s.now.Before(over) {
		s.setExited(exit)
		step := s.next()
		for step.Action == None && s.now.Before(over) {
			s.g.Expect(step.Requeue).To(BeNumerically(">", 0))
			s.now = s.now.Add(step.Requeue)
			step = s.next()
		}
		if step.Action == StartProcess {
			starts++
			s.setRunning()
			s.next()
			s.now = s.now.Add(time.Millisecond)
		}
	}
	return starts
}

func TestRestart_HappensAtMostOncePerSecond(t *testing.T) {
	s := newUnlimitedFixture(t)
	s.g.Expect(s.restartsWithin(12*time.Second, facts.Exit{Known: true, Code: 1})).To(BeNumerically("~", 12, 1), "the first immediately, then one per second")
}

func TestRestart_WaitsFiveSecondsAfterLoss(t *testing.T) {
	s := newUnlimitedFixture(t)
	s.g.Expect(s.restartsWithin(time.Minute, facts.Exit{Lost: true, Message: "the node refused the Pod"})).To(BeNumerically("~", 12, 1))
}

func TestRestart_WaitsForBacklog(t *testing.T) {
	s := newUnlimitedFixture(t)
	s.observed.Backlog = 20 * time.Second
	s.setExited(facts.Exit{Known: true, Code: 1})
	step := s.next()
	s.g.Expect(step.PlannedRestart).To(BeTrue())
	s.g.Expect(step.Requeue).To(Equal(20 * time.Second))
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
	s.expectAtRest()
	s.g.Expect(s.last.PlannedRestart).To(BeFalse(), "only one step plans the restart")
	s.now = s.now.Add(5 * time.Second)
	s.observed.Backlog = 15 * time.Second
	s.g.Expect(s.next().Requeue).To(Equal(15 * time.Second))
	s.observed.Backlog = 0
	s.now = s.now.Add(15 * time.Second)
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
}
