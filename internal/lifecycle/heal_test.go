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

// newUnstartableFixture returns an object whose first start failed for the reason, on a backend that can check programs.
func newUnstartableFixture(t *testing.T, reason string) *fixture {
	s := newFixture(t)
	s.next()
	s.failStart(reason)
	s.expectCondition(v1alpha1.ConditionStalled, reason)
	return s
}

// failStart reports that the start on which Next has just decided has failed. The program check reports the same reason.
func (s *fixture) failStart(reason string) {
	s.t.Helper()
	s.setIncarnation(facts.Incarnation{Number: s.status.Incarnation, Phase: facts.Failed, StartError: &facts.StartError{Reason: reason, Message: "the directory /x does not exist; create it"}})
	s.observed.Program = &ProgramCheck{Reason: reason}
	s.next()
}

func TestHeal_StartsWhenTheCauseIsGone(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonCommandNotFound, v1alpha1.ReasonPermissionDenied, v1alpha1.ReasonWorkingDirMissing} {
		t.Run(reason, func(t *testing.T) {
			s := newUnstartableFixture(t, reason)
			s.g.Expect(s.message()).To(Equal("The directory /x does not exist; create it. Berth checks this again and starts the process as soon as the check passes."))
			s.now = s.now.Add(s.last.Requeue)
			s.expectAtRest()
			s.observed.Program.Reason = ""
			s.g.Expect(s.next().Action).To(Equal(StartProcess))
			s.g.Expect(s.status.Incarnation).To(Equal(int64(2)))
			s.setRunning()
			s.next()
			s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
			s.now = s.now.Add(time.Hour)
			s.next()
			s.g.Expect(s.status.Failures).To(BeZero())
		})
	}
}

func TestHeal_ReportsTheNextCause(t *testing.T) {
	s := newUnstartableFixture(t, v1alpha1.ReasonWorkingDirMissing)
	s.now = s.now.Add(s.last.Requeue)
	s.observed.Program.Reason = v1alpha1.ReasonCommandNotFound
	s.g.Expect(s.next().Action).To(Equal(StartProcess), "a start records the new cause")
	s.failStart(v1alpha1.ReasonCommandNotFound)
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCommandNotFound)
}

func TestHeal_ChecksAtIncreasingIntervals(t *testing.T) {
	s := newUnstartableFixture(t, v1alpha1.ReasonCommandNotFound)
	checks, over := 0, s.now.Add(24*time.Hour)
	for s.now.Before(over) {
		s.g.Expect(s.last.Requeue).To(And(BeNumerically(">=", checkFirst), BeNumerically("<=", checkLast)))
		s.now = s.now.Add(s.last.Requeue)
		s.expectAtRest()
		checks++
	}
	s.g.Expect(checks).To(BeNumerically("<", 24*60+60))
	s.g.Expect(s.status.Incarnation).To(Equal(int64(1)))
}

func TestHeal_LimitsStartsThatFailDespiteCheck(t *testing.T) {
	s := newUnstartableFixture(t, v1alpha1.ReasonCommandNotFound)
	over := s.now.Add(time.Hour)
	for s.now.Before(over) {
		s.observed.Program = &ProgramCheck{} // the program exists, but its interpreter does not
		if s.next().Action == StartProcess {
			s.failStart(v1alpha1.ReasonCommandNotFound)
			continue
		}
		s.g.Expect(s.last.Requeue).To(BeNumerically(">", 0))
		s.now = s.now.Add(s.last.Requeue)
	}
	s.g.Expect(s.status.Incarnation).To(And(BeNumerically(">", 30), BeNumerically("<", 66)), "about one start per minute")
}

func TestHeal_SkipsObjectsThatItCannotHeal(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"restartPolicy Never": func(s *fixture) { s.desired.RestartPolicy = v1alpha1.RestartNever },
		"asleep":              func(s *fixture) { s.desired.State = DesiredAsleep },
		"no check":            func(s *fixture) { s.observed.Program = nil },
		"another reason":      func(s *fixture) { s.status.LastExit.Reason = v1alpha1.ReasonImageMissing },
	} {
		t.Run(name, func(t *testing.T) {
			s := newUnstartableFixture(t, v1alpha1.ReasonCommandNotFound)
			s.observed.Program = &ProgramCheck{}
			s.desired.Restart = "berth restart devserver/web"
			change(s)
			s.next()
			s.now = s.now.Add(time.Hour)
			s.expectAtRest()
			s.g.Expect(s.last.Requeue).To(BeZero())
			s.g.Expect(s.message()).To(HaveSuffix(`To retry, run "berth restart devserver/web".`))
		})
	}
}
