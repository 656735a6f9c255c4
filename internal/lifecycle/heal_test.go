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

// unstartable returns an object whose first start failed for the reason, on a backend that can check programs.
func unstartable(t *testing.T, reason string) *story {
	s := newStory(t)
	s.tick()
	s.fails(reason)
	s.expect(v1alpha1.ConditionStalled, reason)
	return s
}

// fails makes the start that Next has just decided fail; the program check reports the same reason.
func (s *story) fails(reason string) {
	s.t.Helper()
	s.is(facts.Incarnation{Number: s.status.Incarnation, Phase: facts.Failed, StartError: &facts.StartError{Reason: reason, Message: "the directory /x does not exist; create it"}})
	s.observed.Program = &ProgramCheck{Reason: reason}
	s.tick()
}

func TestHeal_StartsWhenTheCauseIsGone(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonCommandNotFound, v1alpha1.ReasonPermissionDenied, v1alpha1.ReasonWorkingDirMissing} {
		t.Run(reason, func(t *testing.T) {
			s := unstartable(t, reason)
			s.g.Expect(s.message()).To(Equal("The directory /x does not exist; create it. Berth checks this again and starts the process as soon as the check passes."))
			s.now = s.now.Add(s.last.Requeue)
			s.rest()
			s.observed.Program.Reason = ""
			s.g.Expect(s.tick().Action).To(Equal(StartProcess))
			s.g.Expect(s.status.Incarnation).To(Equal(int64(2)))
			s.runs()
			s.tick()
			s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
			s.now = s.now.Add(time.Hour)
			s.tick()
			s.g.Expect(s.status.Failures).To(BeZero())
		})
	}
}

func TestHeal_ReportsTheNextCause(t *testing.T) {
	s := unstartable(t, v1alpha1.ReasonWorkingDirMissing)
	s.now = s.now.Add(s.last.Requeue)
	s.observed.Program.Reason = v1alpha1.ReasonCommandNotFound
	s.g.Expect(s.tick().Action).To(Equal(StartProcess), "a start records the new cause")
	s.fails(v1alpha1.ReasonCommandNotFound)
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonCommandNotFound)
}

func TestHeal_ChecksMoreAndMoreRarely(t *testing.T) {
	s := unstartable(t, v1alpha1.ReasonCommandNotFound)
	checks, over := 0, s.now.Add(24*time.Hour)
	for s.now.Before(over) {
		s.g.Expect(s.last.Requeue).To(And(BeNumerically(">=", checkFirst), BeNumerically("<=", checkLast)))
		s.now = s.now.Add(s.last.Requeue)
		s.rest()
		checks++
	}
	s.g.Expect(checks).To(BeNumerically("<", 24*60+60))
	s.g.Expect(s.status.Incarnation).To(Equal(int64(1)))
}

func TestHeal_SpacesStartsThatTheCheckCannotForesee(t *testing.T) {
	s := unstartable(t, v1alpha1.ReasonCommandNotFound)
	over := s.now.Add(time.Hour)
	for s.now.Before(over) {
		s.observed.Program = &ProgramCheck{} // the program exists, but its interpreter does not
		if s.tick().Action == StartProcess {
			s.fails(v1alpha1.ReasonCommandNotFound)
			continue
		}
		s.g.Expect(s.last.Requeue).To(BeNumerically(">", 0))
		s.now = s.now.Add(s.last.Requeue)
	}
	s.g.Expect(s.status.Incarnation).To(And(BeNumerically(">", 30), BeNumerically("<", 66)), "about one start per minute")
}

func TestHeal_LeavesAloneWhatIsNotToRun(t *testing.T) {
	for name, change := range map[string]func(*story){
		"restartPolicy Never": func(s *story) { s.desired.RestartPolicy = v1alpha1.RestartNever },
		"asleep":              func(s *story) { s.desired.State = DesiredAsleep },
		"no check":            func(s *story) { s.observed.Program = nil },
		"another reason":      func(s *story) { s.status.LastExit.Reason = v1alpha1.ReasonImageMissing },
	} {
		t.Run(name, func(t *testing.T) {
			s := unstartable(t, v1alpha1.ReasonCommandNotFound)
			s.observed.Program = &ProgramCheck{}
			change(s)
			s.tick()
			s.now = s.now.Add(time.Hour)
			s.rest()
			s.g.Expect(s.last.Requeue).To(BeZero())
			s.g.Expect(s.message()).To(HaveSuffix("Correct the spec, or change spec.resetToken to retry."))
		})
	}
}
