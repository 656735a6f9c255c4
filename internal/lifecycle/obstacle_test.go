// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// obstacles are the two ways in which Next learns that the next start would fail. The argument is whether it would.
var obstacles = map[string]func(*fixture, bool){
	v1alpha1.ReasonInvalidEnvironment: func(s *fixture, fails bool) {
		s.desired.Blocked = nil
		if fails {
			s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonInvalidEnvironment, Message: "Secret s does not exist; create it."}
		}
	},
	v1alpha1.ReasonWorkingDirMissing: func(s *fixture, fails bool) {
		s.observed.StartChecked, s.observed.StartFailure = true, nil
		if fails {
			s.observed.StartFailure = &facts.StartError{Reason: v1alpha1.ReasonWorkingDirMissing, Message: "the working directory /x does not exist; create it"}
		}
	},
}

func TestRestart_KeepsProcessWhileNextStartWouldFail(t *testing.T) {
	requests := map[string]func(*Desired){
		v1alpha1.ReasonRequested:   func(d *Desired) { d.RestartToken = "again" },
		v1alpha1.ReasonSpecChanged: func(d *Desired) { d.SpecHash = "b" },
	}
	for cause, obstruct := range obstacles {
		for reason, request := range requests {
			t.Run(reason+" "+cause, func(t *testing.T) {
				s := newFixture(t).startToReady()
				request(&s.desired)
				s.desired.Generation++
				obstruct(s, true)
				s.g.Expect(s.next().Action).To(Equal(None), "the process is stopped although the next one cannot start")
				s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
				s.expectCondition(v1alpha1.ConditionDriftDetected, cause)
				s.expectAtRest()
				obstruct(s, false)
				s.g.Expect(s.next().Action).To(Equal(StopProcess))
				s.expectCondition(v1alpha1.ConditionRestarting, reason)
				obstruct(s, true)
				s.g.Expect(s.next().Action).To(Equal(StopProcess), "a stop that was recorded is carried out")
				obstruct(s, false)
				s.setExited(facts.Exit{Known: true, Signal: "SIGTERM"})
				s.g.Expect(s.next().Action).To(Equal(StartProcess))
				s.setRunning()
				s.next()
				s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionDriftDetected)).To(BeNil())
			})
		}
	}
}

func TestRestart_ReportsWhyItWaits(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.RestartToken = "again"
	obstacles[v1alpha1.ReasonWorkingDirMissing](s, true)
	s.next()
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionDriftDetected).Message).To(Equal(
		"The requested restart waits and the process keeps running, because the next start would fail: the working directory /x does not exist; create it."))
	s.desired.SpecHash = "b"
	s.next()
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionDriftDetected).Message).To(Equal(
		"The process runs with an older spec, because the new one cannot be started: the working directory /x does not exist; create it."))
}

// A start is checked only before a working process is stopped for a restart that the spec requests.
func TestRestart_RequestsCheckOnlyBeforeWorkingProcessIsStopped(t *testing.T) {
	s := newFixture(t).startToReady()
	s.g.Expect(s.next().CheckStart).To(BeFalse())
	s.desired.RestartToken = "again"
	before := s.status
	s.g.Expect(s.next().CheckStart).To(BeTrue())
	s.g.Expect(s.next().CheckStart).To(BeFalse(), "the stop is recorded")

	for name, change := range map[string]func(*fixture){
		"unhealthy": func(s *fixture) { s.observed.Unhealthy = "GET /healthz: no answer in 2 s" },
		"hung":      func(s *fixture) { s.observed.Unhealthy, s.observed.UnhealthyReason = "hangs", v1alpha1.ReasonHung },
		"stopped":   func(s *fixture) { s.desired.State = DesiredStopped },
		"asleep":    func(s *fixture) { s.desired.State = DesiredAsleep },
		"deleted":   func(s *fixture) { s.desired.State = DesiredDeleted },
		"moved":     func(s *fixture) { s.desired.State = DesiredMoved },
	} {
		t.Run(name, func(t *testing.T) {
			other := *s
			other.t, other.g, other.status = t, NewWithT(t), before
			obstacles[v1alpha1.ReasonWorkingDirMissing](&other, true)
			change(&other)
			step := other.next()
			other.g.Expect(step.CheckStart).To(BeFalse())
			other.g.Expect(step.Action).To(Equal(StopProcess))
		})
	}
}

func TestRestart_ChecksWaitingRestartAtIncreasingIntervals(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.RestartToken = "again"
	obstacles[v1alpha1.ReasonWorkingDirMissing](s, true)
	s.next()
	checks, over := 0, s.now.Add(24*time.Hour)
	for s.now.Before(over) {
		s.g.Expect(s.last.Requeue).To(And(BeNumerically(">=", checkFirst), BeNumerically("<=", checkLast)))
		s.now = s.now.Add(s.last.Requeue)
		s.next()
		checks++
	}
	s.g.Expect(checks).To(BeNumerically("<", 24*60+60))
	obstacles[v1alpha1.ReasonWorkingDirMissing](s, false)
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
}

func TestRestart_OfUnknownProcessReportsWhyItWaits(t *testing.T) {
	for cause, obstruct := range obstacles {
		t.Run(cause, func(t *testing.T) {
			s := newFixture(t).startToReady()
			s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Unknown, Killable: true, Message: "its shim does not respond"})
			s.desired.RestartToken = "again"
			s.g.Expect(s.next().CheckStart).To(BeTrue())
			s.status.Stopping = nil
			obstruct(s, true)
			s.g.Expect(s.next().Action).To(Equal(None))
			s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonUnknown)
			s.g.Expect(s.message()).To(ContainSubstring("does not exist; create it."))
			s.expectAtRest()
		})
	}
}
