// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// message returns the message of the condition Ready.
func (s *fixture) message() string {
	return meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady).Message
}

// announced matches a time in a message.
var announced = regexp.MustCompile(`[Rr]estarts at ([0-9TZ:-]+)`)

// expectAnnouncedTime checks that the message names the time of the next start, and that this time is in the future.
func (s *fixture) expectAnnouncedTime(text string) {
	s.t.Helper()
	match := announced.FindStringSubmatch(text)
	s.g.Expect(match).To(HaveLen(2), text)
	at, err := time.Parse(time.RFC3339, match[1])
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(at).To(BeTemporally(">", s.now), text)
	s.g.Expect(at).To(BeTemporally(">=", s.status.NextRestartTime.Time), text)
	s.g.Expect(at).To(BeTemporally("<", s.status.NextRestartTime.Add(time.Second)), text)
}

func TestCrash_MessageHasRestartTimeAndLogCommand(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.Logs, s.desired.Restart = "berth logs devserver/web", "berth restart devserver/web"
	s.now = s.now.Add(200 * time.Millisecond) // a back-off below one second ends within the same second
	s.desired.Backoff.Initial = 500 * time.Millisecond
	for range s.desired.Breaker.Threshold {
		s.setExited(facts.Exit{Known: true, Code: 1})
		s.next()
		s.g.Expect(s.message()).To(HaveSuffix(` To see the output, run "berth logs devserver/web".`))
		s.g.Expect(s.last.Events[0].Message).To(HaveSuffix(` To see the output, run "berth logs devserver/web".`))
		s.expectAnnouncedTime(s.message()) // also with an open breaker, whose time replaces that of the back-off
		s.expectAtRest()
		if s.status.Breaker.State == v1alpha1.BreakerOpen {
			break
		}
		s.expectAnnouncedTime(s.last.Status.Conditions[0].Message + s.message())
		s.now = s.status.NextRestartTime.Time
		s.g.Expect(s.next().Action).To(Equal(StartProcess))
		s.setRunning()
		s.next()
	}
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.g.Expect(s.status.NextRestartTime.Time).To(BeTemporally("==", s.status.Breaker.OpenTime.Add(s.desired.Breaker.CoolDown)))
}

func TestCrash_AfterGoodRunOmitsRestartTime(t *testing.T) {
	s := newFixture(t).startToReady()
	s.now = s.now.Add(time.Hour)
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.g.Expect(s.last.Events[0].Message).To(Equal("Incarnation 1 ended with exit code 1."))
}

func TestExit_MessageReportsProcessesLeftInBackground(t *testing.T) {
	for name, test := range map[string]struct {
		exit  facts.Exit
		asked bool
		says  bool
	}{
		"exits with 0":             {exit: facts.Exit{Known: true, Left: "nginx (3)"}, says: true},
		"exits with 1":             {exit: facts.Exit{Known: true, Code: 1, Left: "esbuild"}},
		"killed by a signal":       {exit: facts.Exit{Known: true, Signal: "SIGKILL", Left: "esbuild"}},
		"stopped on request":       {exit: facts.Exit{Known: true, Left: "nginx"}, asked: true},
		"leaves no process behind": {exit: facts.Exit{Known: true}},
		"unknown exit code":        {exit: facts.Exit{Left: "nginx"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t).startToReady()
			if test.asked {
				s.desired.RestartToken = "1"
				s.next()
			}
			s.setExited(test.exit)
			s.next()
			hint := ContainSubstring("in the background (" + test.exit.Left + "), which Berth has terminated; run the program in the foreground")
			if test.says {
				s.g.Expect(s.status.LastExit.Message).To(hint)
				s.g.Expect(s.message()).To(hint)
				return
			}
			s.g.Expect(s.status.LastExit.Message).NotTo(ContainSubstring("foreground"))
		})
	}
}

func TestFailedStart_MessageHasCauseAndRemedy(t *testing.T) {
	s := newFixture(t)
	s.next()
	s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{
		Reason: v1alpha1.ReasonCommandNotFound, Message: `the program "x" does not exist; correct spec.process.command`,
	}})
	s.next()
	s.g.Expect(s.message()).To(Equal(`The program "x" does not exist; correct spec.process.command.`))
}

func TestFailedAction_SetsReasonWhileRetried(t *testing.T) {
	s := newFixture(t)
	s.next()
	s.observed.LastError = "record the start: no space left on device"
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonStartFailed)
	s.g.Expect(s.message()).To(Equal("The start of incarnation 1 failed and is retried: record the start: no space left on device."))

	s.observed.LastError = ""
	s.startToReady()
	s.desired.RestartToken = "1"
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonRequested)
	s.observed.LastError = "record the request: no space left on device"
	for _, action := range []Action{StopProcess, KillProcess} {
		s.g.Expect(s.next().Action).To(Equal(action))
		s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonStopFailed)
		s.g.Expect(s.message()).To(Equal("Incarnation 1 cannot be stopped; Berth retries: record the request: no space left on device."))
		s.now = s.now.Add(s.desired.Grace)
	}
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonRequested)
}

func TestUnhealthy_CauseStaysInMessagesAndEvents(t *testing.T) {
	s := newFixture(t).startToReady()
	s.observed.Unhealthy, s.observed.UnhealthyReason = "the language server has not answered for 30s"+strings.Repeat("…", 2000), v1alpha1.ReasonHung
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.g.Expect(len(s.status.Stopping.Message)).To(BeNumerically("<=", maxExitMessage))
	s.g.Expect(s.last.Events).To(HaveLen(1))
	s.g.Expect(s.last.Events[0]).To(And(HaveField("Warning", true), HaveField("Reason", v1alpha1.ReasonHung),
		HaveField("Message", And(HavePrefix("The language server has not answered for 30s"), HaveSuffix(" Stopping incarnation 1.")))))

	s.status.Stopping.Message = "the language server has not answered for 30s"
	s.next()
	s.g.Expect(s.message()).To(Equal("The language server has not answered for 30s."), "while it is being stopped")
	s.observed.Unhealthy = ""
	s.setExited(facts.Exit{Known: true, Signal: "SIGTERM"})
	s.next()
	s.g.Expect(s.status.LastExit.Message).To(Equal("the language server has not answered for 30s"))
	s.g.Expect(s.message()).To(HavePrefix("Incarnation 1 was stopped. The language server has not answered for 30s. Restarts at "))
	s.g.Expect(s.last.Events).To(HaveLen(1))
	s.g.Expect(s.last.Events[0].Reason).To(Equal(v1alpha1.ReasonHung))
}

func TestCrash_ThatOpensTheBreakerIsReportedOnce(t *testing.T) {
	s := newFixture(t)
	s.desired.Breaker.Threshold = 1
	s.startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.g.Expect(s.last.Events).To(HaveLen(1))
	s.g.Expect(s.last.Events[0]).To(And(HaveField("Reason", v1alpha1.ReasonCircuitOpen), HaveField("Message", HavePrefix("Incarnation 1 ended with exit code 1. Too many failures"))))
}

func TestCircuitOpen_BlamesRestartPolicyOnlyIfItIsAlways(t *testing.T) {
	s := newFixture(t)
	s.desired.Breaker.Threshold = 1
	s.startToReady()
	s.setExited(facts.Exit{Known: true})
	s.next()
	s.g.Expect(s.message()).To(ContainSubstring("ended with exit code 0, but with restartPolicy Always it must keep running"))
	s.desired.RestartPolicy = v1alpha1.RestartOnFailure
	s.next()
	s.g.Expect(s.message()).NotTo(ContainSubstring("restartPolicy Always"))
}
