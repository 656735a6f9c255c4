// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/elapsed/elapsedtest"
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

// waits are the states in which time decides what happens next. Each brings the object to the state and returns how long it lasts; over reports whether it is over.
var waits = map[string]struct {
	enter func(*fixture) time.Duration
	over  func(*fixture) bool
}{
	"back-off": {
		enter: func(s *fixture) time.Duration {
			s.desired.Backoff = Backoff{Initial: 4 * time.Minute, Max: 4 * time.Minute, ResetAfter: time.Hour}
			s.startToReady().setExited(facts.Exit{Known: true, Code: 1})
			return s.next().Requeue
		},
		over: func(s *fixture) bool { return s.last.Action == StartProcess },
	},
	"cool-down": {
		enter: func(s *fixture) time.Duration {
			s.desired.Breaker.Threshold = 1
			s.startToReady().setExited(facts.Exit{Known: true, Code: 1})
			s.next()
			return s.desired.Breaker.CoolDown
		},
		over: func(s *fixture) bool { return s.last.Action == StartProcess },
	},
	"grace period": {
		enter: func(s *fixture) time.Duration {
			s.startToReady()
			s.desired.State, s.desired.Grace = DesiredStopped, 5*time.Minute
			s.g.Expect(s.next().Action).To(Equal(StopProcess))
			s.observed.Incarnations[0].StopSent = true
			return s.desired.Grace
		},
		over: func(s *fixture) bool { return s.last.Action == KillProcess },
	},
	"run that resets the failures": {
		enter: func(s *fixture) time.Duration {
			s.startToReady().setExited(facts.Exit{Known: true, Code: 1})
			s.now = s.now.Add(s.next().Requeue)
			s.startToReady()
			s.g.Expect(s.status.Failures).To(Equal(int32(1)))
			return s.desired.Backoff.ResetAfter
		},
		over: func(s *fixture) bool { return s.status.Failures == 0 },
	},
	"window of the breaker": {
		enter: func(s *fixture) time.Duration {
			s.startToReady().setExited(facts.Exit{Known: true, Code: 1})
			s.now = s.now.Add(s.next().Requeue)
			s.desired.Breaker.Threshold = 2
			s.desired.Backoff.ResetAfter = time.Hour
			s.startToReady()
			return s.desired.Breaker.Window - s.now.Sub(s.status.Breaker.FailureTimes[0].Time)
		},
		over: func(s *fixture) bool { // a second failure opens the breaker only within the window
			fails := *s
			fails.setExited(facts.Exit{Known: true, Code: 1})
			fails.next()
			return fails.status.Breaker.State == v1alpha1.BreakerClosed
		},
	},
	"check of the program": {
		enter: func(s *fixture) time.Duration {
			s.next()
			s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "x"}})
			s.observed.Program = &ProgramCheck{Reason: v1alpha1.ReasonCommandNotFound}
			s.next()
			s.status.Failures = maxStartDoublings
			s.observed.Program = &ProgramCheck{}
			return checkFirst << (maxStartDoublings - 1)
		},
		over: func(s *fixture) bool { return s.last.Action == StartProcess },
	},
}

// A step of the wall clock, which a suspend also causes, neither ends a wait nor makes it longer.
func TestWaits_DoNotChangeWithClock(t *testing.T) {
	for name, wait := range waits {
		for _, step := range elapsedtest.Steps {
			t.Run(fmt.Sprint(name, " ", step), func(t *testing.T) {
				s := newFixture(t)
				left := wait.enter(s)
				wall := elapsedtest.New(s.now)
				clock := elapsed.New(wall)
				advance := func(d time.Duration) {
					wall.Step(d)
					s.now, s.observed.Timeline = clock.Read()
					s.next()
				}
				advance(left / 4)
				s.g.Expect(wait.over(s)).To(BeFalse(), "before the step")
				wall.Set(step)
				advance(0)
				s.g.Expect(wait.over(s)).To(BeFalse(), "right after the step")
				advance(left/2 - time.Millisecond)
				advance(left/4 - 2*time.Millisecond)
				s.g.Expect(wait.over(s)).To(BeFalse(), "just before the end")
				advance(5 * time.Millisecond)
				s.g.Expect(wait.over(s)).To(BeTrue(), "after the end")
			})
		}
	}
}

// Without a known step, for example after a restart of the manager, each wait ends within its length after the clock was set back.
func TestWaits_EndAfterClockWasSetBackBetweenManagers(t *testing.T) {
	for _, name := range []string{"back-off", "cool-down", "grace period"} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			left := waits[name].enter(s)
			s.now = s.now.Add(-time.Hour)
			s.next()
			s.expectAtRest()
			s.now = s.now.Add(left * 5 / 4)
			s.next()
			s.g.Expect(waits[name].over(s)).To(BeTrue())
		})
	}
}

// The clock of another machine, such as that of a node, does not shorten the back-off.
func TestBackoff_IgnoresClockOfOtherMachine(t *testing.T) {
	for _, skew := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		s := newFixture(t)
		s.desired.Breaker.Threshold, s.desired.Backoff.ResetAfter = 20, time.Hour
		s.next()
		for range 4 {
			s.setRunning()
			s.observed.Incarnations[0].StartedAt = s.now.Add(skew)
			s.next()
			s.setIncarnation(facts.Incarnation{Number: s.status.Incarnation, Phase: facts.Exited, Exit: &facts.Exit{Known: true, Code: 1, FinishedAt: s.now.Add(skew)}})
			s.next()
			s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
			s.g.Expect(s.last.Requeue).To(BeNumerically(">=", 750*time.Millisecond), "skew %s", skew)
			s.now = s.now.Add(s.last.Requeue)
			s.g.Expect(s.next().Action).To(Equal(StartProcess))
		}
		s.g.Expect(s.status.Breaker.FailureTimes).To(HaveLen(4))
	}
}

// The TTL of a process that is stopped during the back-off begins with the stop, also if the clock was set back between the exit and the stop.
func TestExpires_CountsFromLastChangeAfterStep(t *testing.T) {
	s := newFixture(t)
	s.desired.Backoff = Backoff{Initial: time.Hour, Max: time.Hour, ResetAfter: time.Hour}
	wall := elapsedtest.New(s.now)
	clock := elapsed.New(wall)
	advance := func(d time.Duration) {
		wall.Step(d)
		s.now, s.observed.Timeline = clock.Read()
		s.next()
	}
	advance(0)
	s.startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1, FinishedAt: s.now})
	advance(time.Second)
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
	advance(10 * time.Minute)
	wall.Set(-time.Hour)
	advance(0)
	s.desired.State = DesiredStopped
	advance(0)
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	advance(time.Minute)
	s.g.Expect(s.observed.Timeline.Since(s.last.Expires, s.now)).To(BeNumerically("~", time.Minute, 2*time.Second))
}
