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

// newSessionFixture returns an object whose spec has a command that resumes its session.
func newSessionFixture(t *testing.T) *fixture {
	s := newFixture(t)
	s.desired.SessionID, s.desired.ResumeHash = "one", "resume"
	return s
}

// run starts the next incarnation, lets it run for a time and exit, records the exit, and returns how it was started.
func (s *fixture) run(uptime time.Duration, exit facts.Exit) v1alpha1.SessionStart {
	s.t.Helper()
	step := s.nextStart()
	s.setRunning()
	s.next()
	s.now = s.now.Add(uptime)
	s.setExited(exit)
	return step.SessionStart
}

// nextStart calls Next, and waits if it requests that, until it starts an incarnation.
func (s *fixture) nextStart() Step {
	s.t.Helper()
	step := s.next()
	for range 10 {
		if step.Action == StartProcess {
			s.g.Expect(step.SessionStart).To(Equal(s.status.Resume.Start), "the status records how the incarnation is started")
			return step
		}
		s.g.Expect(step.Requeue).To(BeNumerically(">", 0), "nothing is started, and nothing will be: %v", s.status.Conditions)
		s.now = s.now.Add(step.Requeue)
		step = s.next()
	}
	s.t.Fatal("no incarnation was started")
	return step
}

// stop changes what the spec requests, so that Berth stops the process, which exits.
func (s *fixture) stop(change func()) {
	s.t.Helper()
	change()
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.setExited(facts.Exit{Known: true, Signal: "SIGHUP"})
}

var (
	refusedAtOnce = facts.Exit{Known: true, Code: 1}
	killed        = facts.Exit{Known: true, Signal: "SIGKILL"}
)

func TestSession_ResumesAfterStartThatRan(t *testing.T) {
	tests := map[string]struct {
		uptime time.Duration
		exit   facts.Exit
		want   v1alpha1.SessionStart
	}{
		"crashes after a while":              {time.Minute, refusedAtOnce, v1alpha1.SessionResumed},
		"crashes at once":                    {time.Second, refusedAtOnce, v1alpha1.SessionNew},
		"crashes at the limit":               {goodUptime, refusedAtOnce, v1alpha1.SessionNew},
		"crashes just after the limit":       {goodUptime + time.Millisecond, refusedAtOnce, v1alpha1.SessionResumed},
		"is killed at once":                  {time.Second, killed, v1alpha1.SessionResumed},
		"ends with 0 at once":                {time.Second, facts.Exit{Known: true}, v1alpha1.SessionResumed},
		"disappears while the machine is up": {time.Second, facts.Exit{}, v1alpha1.SessionResumed},
		"is lost with its Pod":               {time.Second, facts.Exit{Lost: true}, v1alpha1.SessionResumed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSessionFixture(t)
			s.g.Expect(s.run(tc.uptime, tc.exit)).To(Equal(v1alpha1.SessionNew))
			s.g.Expect(s.nextStart().SessionStart).To(Equal(tc.want))
		})
	}
}

func TestSession_ResumesAfterStopRestartSleepAndMove(t *testing.T) {
	for name, stop := range map[string]func(s *fixture){
		"stop": func(s *fixture) {
			s.stop(func() { s.desired.State, s.desired.SessionID, s.desired.ResumeHash = DesiredStopped, "one", "" })
			s.next()
			s.desired.State, s.desired.ResumeHash = DesiredRunning, "resume"
		},
		"restart request": func(s *fixture) { s.stop(func() { s.desired.RestartToken = "again" }) },
		"changed spec":    func(s *fixture) { s.stop(func() { s.desired.SpecHash = "b" }) },
		"sleep": func(s *fixture) {
			s.stop(func() { s.desired.State = DesiredAsleep })
			s.next()
			s.desired.State = DesiredRunning
		},
		"move": func(s *fixture) {
			s.stop(func() { s.desired.State, s.desired.MoveTo = DesiredMoved, "other" })
			s.next()
			s.desired.State, s.observed.Incarnations = DesiredRunning, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSessionFixture(t).startToReady()
			stop(s)
			s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionResumed))
			s.g.Expect(s.status.Resume.CommandHash).To(Equal("resume"))
		})
	}
}

func TestSession_FallsBackOnceAfterResumeThatFailsAtOnce(t *testing.T) {
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			s := newSessionFixture(t).startToReady()
			s.desired.RestartPolicy, s.desired.Breaker.Threshold = policy, 10
			s.stop(func() { s.desired.RestartToken = "again" })
			s.g.Expect(s.run(time.Second, refusedAtOnce)).To(Equal(v1alpha1.SessionResumed))

			step := s.nextStart()
			s.g.Expect(step.SessionStart).To(Equal(v1alpha1.SessionFallback), "whatever the restart policy")
			s.g.Expect(step.Events).To(ContainElement(Event{true, v1alpha1.ReasonResumeFailed,
				"Starting incarnation 3. It runs spec.process.command, because spec.process.resumeCommand failed at once."}))
			s.g.Expect(s.status.SpecHash).To(Equal("a"))
			s.setRunning()
			s.next()
			s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
			s.g.Expect(findMessage(s, v1alpha1.ConditionReady)).To(ContainSubstring("resumeCommand failed at once"))
			s.expectAtRest()

			s.now = s.now.Add(time.Second)
			s.setExited(refusedAtOnce)
			if policy == v1alpha1.RestartNever {
				s.next()
				s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
				s.desired.RestartToken = "once more"
				s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionResumed))
				return
			}
			for range 3 {
				s.g.Expect(s.run(time.Second, refusedAtOnce)).To(Equal(v1alpha1.SessionResumed), "both fail, and only one start is a fallback")
			}
			s.desired.RestartToken = "once more" // forgets the failures
			s.g.Expect(s.run(time.Second, refusedAtOnce)).To(Equal(v1alpha1.SessionResumed))
			s.g.Expect(s.run(time.Minute, refusedAtOnce)).To(Equal(v1alpha1.SessionFallback))
			s.g.Expect(s.run(time.Second, refusedAtOnce)).To(Equal(v1alpha1.SessionResumed), "the fallback has run, so the session can be resumed")
			s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionFallback), "a later failure falls back once more")
		})
	}
}

func findMessage(s *fixture, conditionType string) string {
	for _, condition := range s.status.Conditions {
		if condition.Type == conditionType {
			return condition.Message
		}
	}
	return ""
}

// The restart request must not erase the fallback that is due: with a breaker that opens at the first failure, no start would ever be one.
func TestSession_KeepsFallbackThatIsDue(t *testing.T) {
	s := newSessionFixture(t).startToReady()
	s.desired.Breaker = Breaker{Threshold: 1, Window: time.Minute}
	s.stop(func() { s.desired.RestartToken = "again" })
	s.g.Expect(s.run(time.Second, refusedAtOnce)).To(Equal(v1alpha1.SessionResumed))
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.desired.RestartToken = "once more"
	s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionFallback))
}

func TestSession_RepeatsStartWhoseProgramDidNotRun(t *testing.T) {
	s := newSessionFixture(t).startToReady()
	s.stop(func() { s.desired.RestartToken = "again" })
	s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionResumed))
	s.setIncarnation(facts.Incarnation{Number: 2, Phase: facts.Failed, StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound}})
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCommandNotFound)
	s.g.Expect(s.status.Resume.Next).To(Equal(v1alpha1.SessionResumed), "a resumeCommand that cannot be executed is a mistake in the spec, and a new session would hide it")
	s.desired.ResumeHash = "corrected"
	s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionResumed), "a corrected resumeCommand is started")
	s.g.Expect(s.status.Resume.CommandHash).To(Equal("corrected"))

	first := newSessionFixture(t)
	first.next()
	first.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Exited, Exit: &facts.Exit{Lost: true}})
	first.g.Expect(first.nextStart().SessionStart).To(Equal(v1alpha1.SessionNew), "a Pod that never ran has not started the session")
}

func TestSession_StartsAnotherSessionWithCommand(t *testing.T) {
	s := newSessionFixture(t).startToReady()
	s.stop(func() { s.desired.RestartToken, s.desired.SessionID = "again", "two" })
	s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionNew))
	s.g.Expect(s.status.Resume.SessionID).To(Equal("two"))
}

func TestSession_IsNotStartedByAdoptedProgram(t *testing.T) {
	s := newSessionFixture(t)
	s.next()
	s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Running, PID: 1, StartedAt: s.now, Adopted: true})
	s.next()
	s.g.Expect(s.status.Resume.Start).To(Equal(v1alpha1.SessionAdopted))
	s.expectAtRest()
	s.now = s.now.Add(time.Minute)
	s.setExited(refusedAtOnce)
	s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionNew))
}

func TestResumeCommand_RestartsOnlyWhatItStarted(t *testing.T) {
	s := newSessionFixture(t).startToReady()
	s.desired.ResumeHash, s.desired.Generation = "changed", 2
	s.g.Expect(s.next().Action).To(Equal(None), "incarnation 1 runs command")
	s.stop(func() { s.desired.RestartToken = "again" })
	s.nextStart()
	s.setRunning()
	s.next()
	s.expectAtRest()
	s.desired.UpdatePolicy, s.desired.ResumeHash = v1alpha1.UpdateOnRestart, "again"
	s.next()
	s.expectCondition(v1alpha1.ConditionDriftDetected, v1alpha1.ReasonDrifted)
	s.desired.UpdatePolicy = v1alpha1.UpdateRecreate
	step := s.next()
	s.g.Expect(step.Action).To(Equal(StopProcess))
	s.g.Expect(s.status.Stopping.Reason).To(Equal(v1alpha1.ReasonSpecChanged))
}

func TestSession_WithoutResumeCommandNeverFallsBack(t *testing.T) {
	s := newSessionFixture(t)
	s.desired.ResumeHash, s.desired.RestartPolicy = "", v1alpha1.RestartNever
	s.startToReady()
	s.stop(func() { s.desired.RestartToken = "again" })
	s.g.Expect(s.run(time.Second, refusedAtOnce)).To(Equal(v1alpha1.SessionResumed), "for programs that decide themselves")
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
	s.desired.ResumeHash = "resume" // the running process does not depend on it
	s.g.Expect(s.next().Action).To(Equal(None))

	other := newFixture(t).startToReady()
	other.g.Expect(other.status.Resume).To(BeNil(), "other kinds have no sessions")
}

func TestSession_OfEarlierVersionIsResumed(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.SessionID, s.desired.ResumeHash = "one", "resume"
	s.next()
	s.g.Expect(s.last.Action).To(Equal(None))
	s.expectAtRest()
	s.stop(func() { s.desired.RestartToken = "again" })
	s.g.Expect(s.nextStart().SessionStart).To(Equal(v1alpha1.SessionResumed))
}

func TestSession_RecordsOriginOfIncarnation(t *testing.T) {
	s := newSessionFixture(t).startToReady()
	s.observed.Incarnations[0].Origin = facts.Origin{SpecHash: "a", SessionStart: "Resumed", ResumeHash: "older"}
	s.g.Expect(s.next().Action).To(Equal(StopProcess), "a replaced manager has resumed the session with an older command")
	s.g.Expect(s.status.Resume.Start).To(Equal(v1alpha1.SessionResumed))
	for _, origin := range []facts.Origin{
		{SpecHash: "a", SessionStart: "Adopted"}, {SpecHash: "a", SessionStart: "forged"},
		{SpecHash: "a", SessionStart: "Resumed", ResumeHash: "a hash that is longer than sixty-four bytes, which the API server would refuse"},
	} {
		s := newSessionFixture(t).startToReady()
		s.observed.Incarnations[0].Origin = origin
		s.expectAtRest()
	}
}

// A pre-started incarnation is recorded with the values of its start, although the spec has changed in the meantime.
func TestPreStart_RecordsHowSessionWasStarted(t *testing.T) {
	desired, record, observed, now := crashed(t)
	desired.SessionID, desired.ResumeHash = "one", "resume"
	record.Resume = &v1alpha1.ResumeStatus{SessionID: "one", Start: v1alpha1.SessionNew, Next: v1alpha1.SessionResumed}
	step := Next(desired, record, observed, now)
	g := NewWithT(t)
	g.Expect(step.PreStart).To(BeTrue())
	g.Expect(step.SessionStart).To(Equal(v1alpha1.SessionResumed))
	observed.Incarnations = append(observed.Incarnations, facts.Incarnation{Number: 2, Phase: facts.Running, PID: 2, StartedAt: now,
		Origin: facts.Origin{SpecHash: desired.SpecHash, RestartToken: desired.RestartToken, SessionStart: string(step.SessionStart), ResumeHash: "resume"}})
	desired.ResumeHash, desired.UpdatePolicy = "changed", v1alpha1.UpdateOnRestart
	step = Next(desired, record, observed, now.Add(10*time.Millisecond))
	g.Expect(step.Status.Resume).To(HaveValue(Equal(v1alpha1.ResumeStatus{
		SessionID: "one", Start: v1alpha1.SessionResumed, Next: v1alpha1.SessionResumed, CommandHash: "resume",
	})))
	g.Expect(step.Status.RestartCount).To(Equal(int64(1)))
	g.Expect(step.Status.Failures).To(Equal(int32(1)), "the changed resumeCommand does not hide the crash")

	observed.Incarnations[1].Origin.SessionStart = string(v1alpha1.SessionFallback) // decided by a manager that saw another exit
	step = Next(desired, record, observed, now.Add(10*time.Millisecond))
	g.Expect(step.Status.Resume.Start).To(Equal(v1alpha1.SessionFallback))
	g.Expect(step.Status.Resume.FallbackIncarnation).To(Equal(int64(2)))
}
