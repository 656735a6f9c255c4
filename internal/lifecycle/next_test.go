// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions/conditionstest"
	"github.com/berth-dev/berth/internal/facts"
)

var start = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// fixture is one object and its process. The test sets the desired and the observed state; next calls Next and keeps the status that it returns.
type fixture struct {
	t        *testing.T
	g        *WithT
	desired  Desired
	status   v1alpha1.ProcessStatus
	observed Observed
	now      time.Time
	last     Step
}

func newFixture(t *testing.T) *fixture {
	return &fixture{t: t, g: NewWithT(t), now: start, desired: Desired{
		UID: "uid", Generation: 1, State: DesiredRunning, SpecHash: "a", RestartPolicy: v1alpha1.RestartAlways, UpdatePolicy: v1alpha1.UpdateRecreate,
		Grace:   10 * time.Second,
		Backoff: Backoff{Initial: time.Second, Max: time.Minute, ResetAfter: time.Minute},
		Breaker: Breaker{Threshold: 3, Window: 3 * time.Minute, CoolDown: 10 * time.Minute},
	}}
}

// next calls Next once and checks the invariants of every step.
func (s *fixture) next() Step {
	s.t.Helper()
	s.last = Next(s.desired, s.status, s.observed, s.now)
	s.status = s.last.Status
	s.g.Expect(trueConditions(&s.status)).To(HaveLen(1), "exactly one of Ready, Reconciling and Stalled is True")
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionRestarting} {
		s.g.Expect(meta.FindStatusCondition(s.status.Conditions, conditionType)).NotTo(BeNil(), conditionType)
	}
	s.g.Expect(conditionstest.Faulty(s.status.Conditions)).To(BeEmpty(), "%v", s.status.Conditions)
	for _, condition := range s.status.Conditions {
		switch condition.Type {
		case v1alpha1.ConditionDriftDetected, v1alpha1.ConditionContained: // evaluated only while the process runs and is to keep running
			s.g.Expect(condition.ObservedGeneration).To(BeNumerically("<=", s.desired.Generation), condition.Type)
		default:
			s.g.Expect(condition.ObservedGeneration).To(Equal(s.desired.Generation), condition.Type)
		}
	}
	return s.last
}

// expectAtRest calls Next again and expects no write and no action.
func (s *fixture) expectAtRest() {
	s.t.Helper()
	before := s.status.DeepCopy()
	step := s.next()
	s.g.Expect(step.Action).To(Equal(None))
	s.g.Expect(step.Events).To(BeEmpty())
	s.g.Expect(cmp.Diff(before, &s.status)).To(BeEmpty(), "a second call changes nothing")
}

func (s *fixture) setIncarnation(incarnation facts.Incarnation) {
	s.observed.Incarnations = []facts.Incarnation{incarnation}
}

func (s *fixture) setRunning() {
	s.setIncarnation(facts.Incarnation{Number: s.status.Incarnation, Phase: facts.Running, Containment: v1alpha1.ReasonCgroup,
		PID: 100 + s.status.Incarnation, StartedAt: s.now})
}

func (s *fixture) setExited(exit facts.Exit) {
	exit.FinishedAt = s.now
	s.setIncarnation(facts.Incarnation{Number: s.status.Incarnation, Phase: facts.Exited, Exit: &exit})
}

// startToReady brings the object to Ready.
func (s *fixture) startToReady() *fixture {
	s.t.Helper()
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.setRunning()
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	return s
}

func (s *fixture) expectCondition(conditionType, reason string) {
	s.t.Helper()
	condition := meta.FindStatusCondition(s.status.Conditions, conditionType)
	s.g.Expect(string(condition.Status)+" "+condition.Reason).To(Equal("True "+reason), condition.Message)
}

func trueConditions(status *v1alpha1.ProcessStatus) (types []string) {
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if meta.IsStatusConditionTrue(status.Conditions, conditionType) {
			types = append(types, conditionType)
		}
	}
	return types
}

func TestFirstStart_RecordsIntentThenBecomesReady(t *testing.T) {
	s := newFixture(t)
	step := s.next()
	s.g.Expect(step.Action).To(Equal(StartProcess))
	s.g.Expect(step.Incarnation).To(Equal(int64(1)), "the status of the same step records the intent")
	s.g.Expect(s.status.Incarnation).To(Equal(int64(1)))
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonStarting)
	s.g.Expect(meta.IsStatusConditionFalse(s.status.Conditions, v1alpha1.ConditionRestarting)).To(BeTrue(), "a first start is not a restart")

	again := s.next()
	s.g.Expect(again.Action).To(Equal(StartProcess), "until the incarnation is observed, the same one is started")
	s.g.Expect(again.Incarnation).To(Equal(int64(1)))

	s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Starting})
	s.next()
	s.expectAtRest()
	s.setRunning()
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.g.Expect(s.status.Conditions).To(HaveLen(4), "conditions with their usual status are left out")
	s.g.Expect(s.status.Process.PID).To(Equal(int64(101)))
	s.g.Expect(s.status.RestartCount).To(BeZero())
	s.expectAtRest()
}

func TestReady_WaitsForProbeOfCurrentIncarnation(t *testing.T) {
	s := newFixture(t)
	s.desired.Probed = true
	s.next()
	s.setRunning()
	s.next()
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonNotReady)
	yes, no := true, false
	s.observed.Ready, s.observed.NotReady = &no, "GET / returned status 503"
	s.next()
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady).Message).To(Equal("GET / returned status 503."))
	s.observed.Ready = &yes
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.observed.Ready = nil
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.desired.RestartToken = "1"
	s.next()
	s.setExited(facts.Exit{Known: true})
	s.next()
	s.setRunning()
	s.next()
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonNotReady)
}

func TestRestart_CoalescesRequestsBeforeStart(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.RestartToken = "1"
	step := s.next()
	s.g.Expect(step.Action).To(Equal(StopProcess))
	s.g.Expect(s.status.Stopping).NotTo(BeNil(), "the status of the same step records the intent to stop the process")
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonRequested)

	s.desired.RestartToken = "2" // a request before the new process starts belongs to the same restart
	s.observed.Incarnations[0].StopSent = true
	s.g.Expect(s.next().Action).To(Equal(None), "the process is not asked to stop twice")
	s.setExited(facts.Exit{Known: true, Signal: "SIGTERM"})
	step = s.next()
	s.g.Expect(step.Action).To(Equal(StartProcess))
	s.g.Expect(s.status.Incarnation).To(Equal(int64(2)))
	s.g.Expect(s.status.ObservedRestartToken).To(Equal("2"))
	s.g.Expect(s.status.LastExit.Reason).To(Equal(v1alpha1.ReasonStopped), "a requested exit is not a crash")
	s.g.Expect(s.status.Failures).To(BeZero())
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonRequested)
	s.setRunning()
	s.next()
	s.g.Expect(s.status.RestartCount).To(Equal(int64(1)))
	s.g.Expect(meta.IsStatusConditionTrue(s.status.Conditions, v1alpha1.ConditionRestarting)).To(BeFalse())
	s.expectAtRest()
}

func TestStop_RepeatsUntilSignalIsSent(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.State = DesiredStopped
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
}

func TestStop_RepeatsDeferredStopWithBackOff(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.State = DesiredStopped
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.observed.Incarnations[0].StopDeferred = true
	stops, deadline := 0, s.status.Stopping.KillTime
	for s.next(); s.last.Action == StopProcess; s.next() {
		stops++
		s.g.Expect(s.last.Requeue).To(And(BeNumerically(">=", 20*time.Millisecond), BeNumerically("<=", 500*time.Millisecond)))
		s.now = s.now.Add(s.last.Requeue)
		s.g.Expect(s.status.Stopping.KillTime).To(Equal(deadline), "the grace period includes the time in which the stop is deferred")
	}
	s.g.Expect(s.last.Action).To(Equal(KillProcess))
	s.g.Expect(s.now).To(Equal(deadline.Time))
	s.g.Expect(stops).To(BeNumerically("<", 40))
}

func TestGracePeriod_OnlyShrinksThenKills(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.State = DesiredStopped
	s.next()
	s.observed.Incarnations[0].StopSent = true
	s.now = s.now.Add(2 * time.Second)
	s.desired.Grace = time.Hour
	s.next()
	s.g.Expect(s.status.Stopping.KillTime.Time).To(Equal(start.Add(10 * time.Second)))
	s.desired.Grace = time.Second
	s.next()
	s.g.Expect(s.status.Stopping.KillTime.Time).To(Equal(s.now.Add(time.Second)))
	s.g.Expect(s.last.Requeue).To(Equal(time.Second))
	s.now = s.now.Add(time.Second)
	step := s.next()
	s.g.Expect(step.Action).To(Equal(KillProcess))
	s.g.Expect(step.Requeue).To(BeNumerically(">", 0), "SIGKILL is repeated while a process of the tree survives")
}

func TestStop_LaterStartIsNotRestart(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.State = DesiredStopped
	s.next()
	s.setExited(facts.Exit{Known: true, Code: 143})
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	s.g.Expect(s.last.Events).To(ConsistOf(HaveField("Reason", v1alpha1.ReasonStopped)), "only the exit, without an event about Ready")
	s.g.Expect(s.last.Expires).NotTo(BeZero())
	s.expectAtRest()
	s.desired.RestartToken = "while stopped"
	s.expectAtRest()
	s.desired.State = DesiredRunning
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.g.Expect(s.status.ObservedRestartToken).To(Equal("while stopped"))
	s.g.Expect(meta.IsStatusConditionTrue(s.status.Conditions, v1alpha1.ConditionRestarting)).To(BeFalse(), "a start after a stop is not a restart")
}

// The owner of the spec, such as a GitOps tool, removes the tokens that others have set in it.
func TestToken_RemovedIsNoRequest(t *testing.T) {
	for name, token := range map[string]func(*Desired) *string{
		"restart": func(d *Desired) *string { return &d.RestartToken },
		"reset":   func(d *Desired) *string { return &d.ResetToken },
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t).startToReady()
			given := token(&s.desired)
			*given = "1"
			s.next()
			if name == "restart" {
				s.setExited(facts.Exit{Known: true, Signal: "SIGTERM"})
				s.next()
				s.setRunning()
				s.next()
			}
			s.expectAtRest()
			answered := s.status.DeepCopy()
			for _, now := range []string{"", "1"} { // removed, and set again by its user
				*given = now
				s.expectAtRest()
				s.g.Expect(s.status).To(Equal(*answered), "token %q", now)
			}
			*given = ""
			s.desired.SpecHash = "changed"
			s.next()
			s.setExited(facts.Exit{Known: true, Signal: "SIGTERM"})
			s.next()
			s.setRunning()
			s.next()
			*given = "1"
			s.expectAtRest() // also after a start in which the token was missing
			s.setExited(facts.Exit{Known: true, Code: 1})
			*given = ""
			s.next()
			s.g.Expect(s.status.Failures).To(Equal(int32(1)), "the removed token neither restarts the process at once nor resets the back-off")
		})
	}
}

func TestRestarting_IsTrueOnceLeaderExits(t *testing.T) {
	for policy, want := range map[v1alpha1.RestartPolicy]bool{v1alpha1.RestartAlways: true, v1alpha1.RestartNever: false} {
		s := newFixture(t).startToReady()
		s.desired.RestartPolicy, s.desired.Probed = policy, true
		notReady := false
		s.observed.Ready, s.observed.Incarnations[0].LeaderExit = &notReady, &facts.Exit{Known: true, Signal: "SIGKILL"}
		s.next()
		s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonNotReady)
		s.g.Expect(meta.IsStatusConditionTrue(s.status.Conditions, v1alpha1.ConditionRestarting)).To(Equal(want), string(policy))
	}
	s := newFixture(t).startToReady()
	notReady := false
	s.desired.Probed, s.observed.Ready = true, &notReady
	s.observed.Incarnations[0].LeaderExit = &facts.Exit{Known: true, Lost: true}
	s.next()
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonLost)
}

func TestSleep_StopsAndWakesWithoutRestart(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.State = DesiredAsleep
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.g.Expect(s.status.Stopping.Reason).To(Equal(v1alpha1.ReasonIdle))
	s.setExited(facts.Exit{Known: true, Code: 143})
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonIdle)
	s.g.Expect(s.last.Expires).To(BeZero(), "a sleeping object does not expire")
	s.g.Expect(s.last.Events).To(ContainElement(HaveField("Reason", v1alpha1.ReasonIdle)))
	s.expectAtRest()
	s.desired.RestartToken = "while asleep"
	s.next()
	s.expectAtRest()
	s.desired.State = DesiredRunning
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.g.Expect(meta.IsStatusConditionTrue(s.status.Conditions, v1alpha1.ConditionRestarting)).To(BeFalse(), "waking is not a restart")
}

func TestSleep_DoesNotReplaceBackoff(t *testing.T) {
	s := newFixture(t).startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.desired.State = DesiredAsleep
	s.next()
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
}

func TestUnhealthy_ReportsReasonInConditionAndExit(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonHung, v1alpha1.ReasonProtocolError, v1alpha1.ReasonMemoryLimit, v1alpha1.ReasonCanaryFailed} {
		s := newFixture(t).startToReady()
		s.observed.Unhealthy, s.observed.UnhealthyReason = "it answers nothing", reason
		s.g.Expect(s.next().Action).To(Equal(StopProcess))
		s.expectCondition(v1alpha1.ConditionReconciling, reason)
		restarting := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionRestarting)
		s.g.Expect(restarting.Reason).To(Equal(reason))
		s.g.Expect(restarting.Message).To(Equal("It answers nothing."))
		s.observed.Unhealthy = ""
		s.setExited(facts.Exit{Known: true, Signal: "SIGKILL"})
		s.next()
		s.g.Expect(s.status.LastExit.Reason).To(Equal(reason))
		s.g.Expect(s.status.Failures).To(BeEquivalentTo(1), "a restart by a probe counts as a failure, not as a requested stop")
	}
}

func TestStop_CancelsRecordedStart(t *testing.T) {
	s := newFixture(t)
	s.next()
	s.desired.State = DesiredStopped
	s.g.Expect(s.next().Action).To(Equal(None))
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	s.desired.State = DesiredRunning
	s.g.Expect(s.next().Incarnation).To(Equal(int64(2)))
}

func TestDelete_TakesPrecedenceOverRestart(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.RestartToken = "1"
	s.next()
	s.desired.State = DesiredDeleted
	step := s.next()
	s.g.Expect(step.Released).To(BeFalse())
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonDeleting)
	s.setExited(facts.Exit{Known: true})
	step = s.next()
	s.g.Expect(step.Action).To(Equal(Forget))
	s.g.Expect(step.Released).To(BeTrue())
}

func TestDelete_ReleasesAdoptedSessionWithoutStop(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.State, s.desired.Orphan = DesiredDeleted, true
	step := s.next()
	s.g.Expect(step.Action).To(Equal(Forget), "there is no process to stop")
	s.g.Expect(step.Released).To(BeTrue())
	s.g.Expect(step.Status.Stopping).To(BeNil())
}

// The loss of a process, for example by an eviction, does not count as a failure of the program, so the breaker stays closed. OnFailure restarts a
// lost process even if its exit code is 0.
func TestLostProcess_RestartsWithoutOpeningBreaker(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.RestartPolicy = v1alpha1.RestartOnFailure
	for range s.desired.Breaker.Threshold + 1 {
		s.setExited(facts.Exit{Known: true, Lost: true, Message: "the cluster evicted the Pod: EvictionByEvictionAPI: evicting."})
		s.next()
		s.g.Expect(s.status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonLost), HaveField("ExitCode", HaveValue(BeZero())),
			HaveField("Message", ContainSubstring("EvictionAPI")))))
		s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
		s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonLost)
		s.g.Expect(s.last.Events[0]).To(Equal(Event{Warning: true, Reason: v1alpha1.ReasonLost,
			Message: fmt.Sprintf("Incarnation %d was lost: the cluster evicted the Pod: EvictionByEvictionAPI: evicting. Restarts at %s.",
				s.status.Incarnation, clockTime(s.status.NextRestartTime.Time))}))
		s.now = s.status.NextRestartTime.Time
		s.g.Expect(s.next().Action).To(Equal(StartProcess))
		s.setRunning()
		s.next()
		s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	}
	s.g.Expect(s.status.Breaker.FailureTimes).To(BeEmpty())

	s.desired.RestartPolicy = v1alpha1.RestartNever
	s.setExited(facts.Exit{Lost: true, Message: "the node terminated the Pod: NodeLost"})
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonLost)
	s.expectAtRest()
}

// A backend cannot distinguish a requested stop from a loss; after a requested stop, the status must not report a loss.
func TestRequestedStop_IsNotRecordedAsLoss(t *testing.T) {
	for _, exit := range []facts.Exit{{Known: true, Lost: true, Message: "the Pod was deleted"}, {Lost: true, Message: "the Pod was deleted"}} {
		s := newFixture(t).startToReady()
		s.desired.State = DesiredStopped
		s.next()
		s.setExited(exit)
		s.next()
		s.g.Expect(s.status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonStopped), HaveField("Message", BeEmpty()))))
	}
}

func TestExit_MessageHasCauseFromBackend(t *testing.T) {
	s := newFixture(t).startToReady()
	s.setExited(facts.Exit{Known: true, Code: 137, Message: "the container exceeded its memory limit"})
	s.next()
	s.g.Expect(s.status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonFailed), HaveField("Message", "the container exceeded its memory limit"))))
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady).Message).To(
		HavePrefix("Incarnation 1 ended with exit code 137: the container exceeded its memory limit. Restarts at"))
}

func TestCrash_BacksOffThenOpensBreaker(t *testing.T) {
	s := newFixture(t).startToReady()
	var waits []time.Duration
	for range 2 {
		s.setExited(facts.Exit{Known: true, Code: 1})
		s.next()
		s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
		s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonCrashed)
		s.expectAtRest()
		waits = append(waits, s.last.Requeue)
		s.now = s.status.NextRestartTime.Time
		s.g.Expect(s.next().Action).To(Equal(StartProcess))
		s.setRunning()
		s.next()
	}
	s.g.Expect(waits[0]).To(BeNumerically("~", time.Second, 250*time.Millisecond))
	s.g.Expect(waits[1]).To(BeNumerically("~", 2*time.Second, 500*time.Millisecond))
	s.setExited(facts.Exit{Known: true, Signal: "SIGSEGV"})
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.expectCondition(v1alpha1.ConditionCircuitOpen, v1alpha1.ReasonCircuitOpen)
	s.g.Expect(s.status.LastExit.Signal).To(Equal("SIGSEGV"))
	s.expectAtRest()

	s.now = s.now.Add(10 * time.Minute)
	s.g.Expect(s.next().Action).To(Equal(StartProcess), "one attempt after the cool-down")
	s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerHalfOpen))
	s.setRunning()
	s.next()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
}

func TestBreaker_ClosesAfterRequestOrCoolDown(t *testing.T) {
	for name, request := range map[string]func(*fixture){
		"a reset token":      func(s *fixture) { s.desired.ResetToken = "1" },
		"a new spec":         func(s *fixture) { s.desired.SpecHash = "b" },
		"another probe":      func(s *fixture) { s.desired.Generation++ },
		"a restart token":    func(s *fixture) { s.desired.RestartToken = "1" },
		"a stop and a start": func(s *fixture) { s.desired.State = DesiredStopped; s.next(); s.desired.State = DesiredRunning },
		"the cool-down only": func(s *fixture) { s.now = s.now.Add(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.desired.Breaker.Threshold = 1
			s.startToReady()
			s.setExited(facts.Exit{Known: true, Code: 1})
			s.next()
			s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
			request(s)
			s.g.Expect(s.next().Action).To(Equal(StartProcess))
			s.setRunning()
			s.next()
			s.now = s.now.Add(time.Hour)
			s.next()
			s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerClosed))
			s.expectAtRest()
		})
	}
}

func TestBreaker_ClosesWhenTrialCompletes(t *testing.T) {
	s := newFixture(t)
	s.desired.Breaker.Threshold, s.desired.RestartPolicy = 1, v1alpha1.RestartOnFailure
	s.startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.g.Expect(s.status.NextRestartTime.Time).To(BeTemporally("==", s.status.Breaker.OpenTime.Add(s.desired.Breaker.CoolDown)), "clients see when the cool-down ends")
	s.now = s.now.Add(time.Hour)
	s.next()
	s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerHalfOpen))
	s.setRunning()
	s.next()
	s.setExited(facts.Exit{Known: true})
	s.next()
	s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerClosed), "a completed process closes the breaker, because no restart follows")
	s.expectAtRest()
}

func TestBreaker_StaysOpenWithoutCoolDown(t *testing.T) {
	s := newFixture(t)
	s.desired.Breaker = Breaker{Threshold: 1, Window: time.Minute}
	s.startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.now = s.now.Add(1000 * time.Hour)
	s.expectAtRest()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.g.Expect(s.last.Requeue).To(BeZero())

	s.desired.Generation++
	s.g.Expect(s.next().Action).To(Equal(StartProcess), "any edit of the spec allows one attempt")
	s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerHalfOpen))
	s.setRunning()
	s.next()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.expectAtRest()
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
}

func TestBreaker_IgnoresFailuresOutsideWindow(t *testing.T) {
	s := newFixture(t).startToReady()
	for range 6 {
		s.now = s.now.Add(2 * time.Minute)
		s.setExited(facts.Exit{Known: true, Code: 1})
		s.next()
		s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerClosed))
		s.now = s.now.Add(time.Minute)
		s.g.Expect(s.next().Action).To(Equal(StartProcess))
		s.setRunning()
		s.next()
	}
}

func TestGoodRun_ResetsFailures(t *testing.T) {
	s := newFixture(t).startToReady()
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.next()
	s.now = s.status.NextRestartTime.Time
	s.next()
	s.setRunning()
	s.next()
	s.g.Expect(s.last.Requeue).To(Equal(time.Minute), "requeued for when the run counts as good")
	s.now = s.now.Add(time.Minute)
	s.next()
	s.g.Expect(s.status.Failures).To(BeZero())
	s.g.Expect(s.status.Breaker.FailureTimes).To(BeEmpty())
	s.expectAtRest()

	s.setExited(facts.Exit{Known: true, Code: 1})
	s.g.Expect(s.next().Action).To(Equal(StartProcess), "the first crash after a good run restarts immediately")
}

func TestRestartPolicy_DecidesWhetherExitRestarts(t *testing.T) {
	for _, c := range []struct {
		policy v1alpha1.RestartPolicy
		exit   facts.Exit
		want   string
	}{
		{v1alpha1.RestartAlways, facts.Exit{Known: true}, v1alpha1.ReasonBackOff},
		{v1alpha1.RestartAlways, facts.Exit{Known: true, Code: 1}, v1alpha1.ReasonBackOff},
		{v1alpha1.RestartAlways, facts.Exit{}, v1alpha1.ReasonBackOff},
		{v1alpha1.RestartOnFailure, facts.Exit{Known: true}, v1alpha1.ReasonCompleted},
		{v1alpha1.RestartOnFailure, facts.Exit{Known: true, Signal: "SIGKILL"}, v1alpha1.ReasonBackOff},
		{v1alpha1.RestartOnFailure, facts.Exit{}, v1alpha1.ReasonBackOff},
		{v1alpha1.RestartNever, facts.Exit{Known: true}, v1alpha1.ReasonCompleted},
		{v1alpha1.RestartNever, facts.Exit{Known: true, Code: 2}, v1alpha1.ReasonFailed},
		{v1alpha1.RestartNever, facts.Exit{}, v1alpha1.ReasonUnknown},
	} {
		t.Run(fmt.Sprintf("%s after %+v", c.policy, c.exit), func(t *testing.T) {
			s := newFixture(t)
			s.desired.RestartPolicy = c.policy
			s.startToReady()
			s.setExited(c.exit)
			s.next()
			s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady).Reason).To(Equal(c.want))
			s.expectAtRest()
			if !c.exit.Known {
				s.g.Expect(s.status.LastExit.ExitCode).To(BeNil(), "an exit code is never invented")
			}
		})
	}
}

func TestCompletedProcess_RerunsOnRequest(t *testing.T) {
	for name, request := range map[string]func(*fixture){
		"restart token": func(s *fixture) { s.desired.RestartToken = "1" },
		"new spec":      func(s *fixture) { s.desired.SpecHash = "b" },
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.desired.RestartPolicy = v1alpha1.RestartNever
			s.startToReady()
			s.setExited(facts.Exit{Known: true})
			s.next()
			s.desired.ResetToken = "1"
			s.g.Expect(s.next().Action).To(Equal(None), "a reset does not rerun a completed process")
			request(s)
			s.g.Expect(s.next().Action).To(Equal(StartProcess))
		})
	}
}

func TestStartError_StallsUntilReset(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonCommandNotFound, v1alpha1.ReasonPermissionDenied, v1alpha1.ReasonWorkingDirMissing} {
		t.Run(reason, func(t *testing.T) {
			s := newFixture(t)
			s.next()
			s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{Reason: reason, Message: "no program foo in PATH."}})
			s.next()
			s.expectCondition(v1alpha1.ConditionStalled, reason)
			s.g.Expect(s.last.Requeue).To(BeZero(), "no crash loop")
			s.now = s.now.Add(time.Hour)
			s.expectAtRest()
			s.desired.ResetToken = "1"
			s.g.Expect(s.next().Action).To(Equal(StartProcess))
			s.g.Expect(s.status.Incarnation).To(Equal(int64(2)))
		})
	}
	s := newFixture(t)
	s.next()
	s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{Message: "no more processes"}})
	s.next()
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
}

func TestBlocked_DelaysStartButKeepsRunningProcess(t *testing.T) {
	s := newFixture(t)
	s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonPortClaimed, Message: "port 80 is that of default/web", Conflict: true, Retry: time.Second}
	s.next()
	s.g.Expect(s.last.Action).To(Equal(None))
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonPortClaimed)
	s.expectCondition(v1alpha1.ConditionConflict, v1alpha1.ReasonPortClaimed)
	s.g.Expect(s.last.Requeue).To(Equal(time.Second))
	s.now = s.now.Add(time.Minute)
	s.expectAtRest()
	s.desired.Blocked = nil
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionConflict)).To(BeNil())
	s.setRunning()
	s.next()

	s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonInvalidEnvironment, Message: "no Secret s"}
	s.desired.SpecHash = "b"
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.expectCondition(v1alpha1.ConditionDriftDetected, v1alpha1.ReasonInvalidEnvironment)
	s.expectAtRest()
}

func TestVanished_DelaysFirstStart(t *testing.T) {
	for _, reserve := range []bool{false, true} {
		s := newFixture(t)
		s.desired.Reserve = reserve
		s.observed.Vanished = &facts.Incarnation{UID: "old", PID: 42, Phase: facts.Running}
		s.next()
		s.g.Expect(s.last.Action).To(Equal(None))
		s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonSuperseded)
		s.g.Expect(s.last.Requeue).To(Equal(vanishedRetry), "no event reports the exit to this object")
		s.expectAtRest()
		s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonPortInUse, Message: "port 80 is in use"}
		s.expectAtRest() // the old process may be what blocks the start
		s.desired.Blocked = nil

		s.observed.Vanished = &facts.Incarnation{UID: "old", Phase: facts.Unknown, Message: "its shim does not respond"}
		s.next()
		s.g.Expect(s.last.Action).To(Equal(None))
		s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonUnknown)
		s.expectAtRest()
		s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonRuntimeUnavailable, Message: "start the engine"}
		s.next()
		s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonRuntimeUnavailable)

		s.observed.Vanished, s.desired.Blocked = nil, nil
		s.g.Expect(s.next().Action).To(Equal(StartProcess))
	}
}

func TestBlocked_AbsentSessionCountsAsStopped(t *testing.T) {
	s := newFixture(t)
	s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonNothingToAdopt, Message: "no session", Retry: time.Second}
	s.next()
	s.g.Expect(s.last.Expires).To(BeZero(), "a blocked object does not expire")
	s.desired.Blocked.Absent = true
	s.next()
	since := s.last.Expires
	s.g.Expect(since).To(BeTemporally("~", s.now, time.Second))
	s.now = s.now.Add(time.Minute)
	s.expectAtRest()
	s.g.Expect(s.last.Expires).To(Equal(since))
	s.desired.Blocked = nil
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.g.Expect(s.last.Expires).To(BeZero())
}

func TestUpdatePolicy_OnRestartDriftsAndRecreateRestarts(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.UpdatePolicy = v1alpha1.UpdateOnRestart
	s.desired.SpecHash = "b"
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.expectCondition(v1alpha1.ConditionDriftDetected, v1alpha1.ReasonDrifted)
	s.expectAtRest()
	s.desired.UpdatePolicy = v1alpha1.UpdateRecreate
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonSpecChanged)
	s.setExited(facts.Exit{Known: true})
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.g.Expect(s.status.SpecHash).To(Equal("b"))

	done := newFixture(t)
	done.desired.RestartPolicy, done.desired.UpdatePolicy = v1alpha1.RestartNever, v1alpha1.UpdateOnRestart
	done.startToReady()
	done.setExited(facts.Exit{Known: true})
	done.next()
	done.desired.SpecHash = "b"
	s.g.Expect(done.next().Action).To(Equal(None), "OnRestart does not rerun a completed process")
}

func TestUnhealthy_CountsAsFailure(t *testing.T) {
	s := newFixture(t).startToReady()
	s.observed.Unhealthy = "GET /healthz: no answer in 2 s"
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonUnhealthy)
	s.observed.Unhealthy = ""
	s.setExited(facts.Exit{Known: true})
	s.next()
	s.g.Expect(s.status.LastExit.Reason).To(Equal(v1alpha1.ReasonUnhealthy))
	s.g.Expect(s.status.Failures).To(Equal(int32(1)))
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonUnhealthy)

	never := newFixture(t)
	never.desired.RestartPolicy = v1alpha1.RestartNever
	never.startToReady()
	never.observed.Unhealthy = "hangs"
	never.next()
	never.observed.Unhealthy = ""
	never.setExited(facts.Exit{Known: true})
	never.next()
	never.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
}

// The server has not caused that its folder was away, which can happen often: each git worktree remove and add does it.
func TestUnhealthy_AReplacedFolderIsNoFailure(t *testing.T) {
	s := newFixture(t).startToReady()
	s.observed.Unhealthy, s.observed.UnhealthyReason = "the folder was away", v1alpha1.ReasonFolderReplaced
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonFolderReplaced)
	s.observed.Unhealthy, s.observed.UnhealthyReason = "", ""
	s.setExited(facts.Exit{Known: true})
	s.next()
	s.g.Expect(s.status.LastExit.Reason).To(Equal(v1alpha1.ReasonStopped))
	s.g.Expect(s.status.Failures).To(BeZero())
	s.g.Expect(s.status.NextRestartTime).To(BeNil(), "it does not wait")
	s.g.Expect(s.last.Action).To(Equal(StartProcess))
	s.expectCondition(v1alpha1.ConditionRestarting, v1alpha1.ReasonFolderReplaced)
}

func TestUnknown_StallsWithoutAction(t *testing.T) {
	for _, want := range []DesiredState{DesiredRunning, DesiredStopped, DesiredDeleted} {
		s := newFixture(t).startToReady()
		s.desired.State = want
		s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Unknown, Message: "the shim does not respond"})
		s.next()
		s.g.Expect(s.last.Action).To(Equal(None))
		s.g.Expect(s.last.Released).To(BeFalse())
		s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonUnknown)
		s.expectAtRest()
	}
}

// An incarnation that the backend cannot read has no number. It is taken for the recorded incarnation, not for an older one.
func TestUnknown_WithoutNumberIsCurrentIncarnation(t *testing.T) {
	s := newFixture(t).startToReady()
	s.setIncarnation(facts.Incarnation{Phase: facts.Unknown, Message: "spec.json is damaged", Killable: true})
	s.next()
	s.g.Expect(s.last.Action).To(Equal(None))
	s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonUnknown)
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionStalled).Message).To(ContainSubstring("spec.json is damaged"))
	s.desired.State = DesiredDeleted
	s.next()
	s.g.Expect(s.last.Action).To(Equal(StopProcess))
	s.g.Expect(s.last.Incarnation).To(Equal(int64(1)))
}

func TestUnknown_IsStoppedOnRequestIfKillable(t *testing.T) {
	unreachable := facts.Incarnation{Number: 1, Phase: facts.Unknown, Message: "its Pod runs", Killable: true}
	for name, change := range map[string]func(*Desired){
		"stop":     func(d *Desired) { d.State = DesiredStopped },
		"deletion": func(d *Desired) { d.State = DesiredDeleted },
		"restart":  func(d *Desired) { d.RestartToken = "now" },
		"change":   func(d *Desired) { d.SpecHash = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t).startToReady()
			s.setIncarnation(unreachable)
			s.next()
			s.g.Expect(s.last.Action).To(Equal(None), "the spec does not ask for a stop")
			s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonUnknown)
			change(&s.desired)
			s.desired.Generation++
			s.next()
			s.g.Expect(s.last.Action).To(Equal(StopProcess))
			s.now = s.status.Stopping.KillTime.Time
			s.next()
			s.g.Expect(s.last.Action).To(Equal(KillProcess))
			s.g.Expect(s.last.Released).To(BeFalse(), "the finalizer waits for the exit")
		})
	}
}

func TestUnknown_IsNotStoppedWithoutRequest(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.State = DesiredAsleep
	s.next()
	s.setExited(facts.Exit{Known: true, Code: 143})
	s.next()
	s.setIncarnation(facts.Incarnation{Number: 1, Phase: facts.Unknown, Message: "its Pod runs", Killable: true})
	for _, want := range []DesiredState{DesiredAsleep, DesiredRunning} { // the activity of the process cannot be determined, so both are possible
		s.desired.State = want
		s.next()
		s.g.Expect(s.last.Action).To(Equal(None), "no stop was requested")
	}

	// After a requested stop, the status keeps no trace of the unknown phase.
	s.desired.State = DesiredStopped
	s.g.Expect(s.next().Action).To(Equal(StopProcess))
	s.setExited(facts.Exit{})
	s.next()
	s.g.Expect(s.status.Stopping).To(BeNil())
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	s.expectAtRest()
}

func TestDisappearedProcess_IsUnknownAndRestarts(t *testing.T) {
	s := newFixture(t).startToReady()
	s.observed.Incarnations = nil
	s.next()
	s.g.Expect(s.status.LastExit.Reason).To(Equal(v1alpha1.ReasonUnknown))
	s.g.Expect(s.status.LastExit.ExitCode).To(BeNil())
	s.g.Expect(s.status.LastExit.FinishTime).To(BeNil())
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
}

func TestOlderIncarnation_IsStoppedFirst(t *testing.T) {
	s := newFixture(t).startToReady()
	s.status.Incarnation = 2
	s.status.Process = nil
	step := s.next()
	s.g.Expect(step.Action).To(Equal(StopProcess))
	s.g.Expect(step.Incarnation).To(Equal(int64(1)))
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonSuperseded)
}

// The request to stop an older incarnation ends with that incarnation. Otherwise the status would name a stop in progress while the current incarnation runs.
func TestOlderIncarnation_StopIsForgottenAfterItsExit(t *testing.T) {
	s := newFixture(t).startToReady()
	s.status.Incarnation = 2
	s.status.Process = nil
	s.next()
	s.g.Expect(s.status.Stopping).To(HaveField("Incarnation", int64(1)))
	s.setExited(facts.Exit{Known: true, Signal: "SIGTERM"})
	s.observed.Incarnations[0].Number = 1
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.g.Expect(s.status.Stopping).To(BeNil(), "the start of incarnation 2")
	s.setRunning()
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.expectAtRest()
	s.g.Expect(s.status.Stopping).To(BeNil())
}

func TestOlderIncarnation_StopIsForgottenWhileTheCurrentOneRuns(t *testing.T) {
	s := newFixture(t).startToReady()
	s.status.Stopping = &v1alpha1.StopRequest{Incarnation: 0, Reason: v1alpha1.ReasonSuperseded}
	s.next()
	s.g.Expect(s.status.Stopping).To(BeNil())
	s.g.Expect(FallsAsleep(&s.status)).To(BeFalse())
}

// Conditions that were not evaluated keep their generation, so that clients do not take an outdated value for the value of the new spec.
func TestConditions_KeepTheGenerationForWhichTheyWereEvaluated(t *testing.T) {
	s := newFixture(t).startToReady()
	s.status.Conditions = append(s.status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAwaitingInput, Status: metav1.ConditionTrue, ObservedGeneration: 1})
	s.desired.Generation, s.desired.SpecHash, s.desired.UpdatePolicy = 2, "b", v1alpha1.UpdateOnRestart
	generation := func(conditionType string) int64 {
		return meta.FindStatusCondition(s.status.Conditions, conditionType).ObservedGeneration
	}
	before := s.status.DeepCopy()
	s.status = Next(s.desired, s.status, s.observed, s.now).Status
	s.g.Expect(generation(v1alpha1.ConditionAwaitingInput)).To(Equal(int64(1)), "the kind has not evaluated its condition")
	s.g.Expect(before.ObservedGeneration).To(Equal(int64(1)))
	meta.RemoveStatusCondition(&s.status.Conditions, v1alpha1.ConditionAwaitingInput)
	s.expectCondition(v1alpha1.ConditionDriftDetected, v1alpha1.ReasonDrifted)

	s.desired.Generation, s.desired.SpecHash = 3, "a" // the process runs with this spec again, but nothing can be observed of the process
	s.observed.Incarnations[0].Phase = facts.Unknown
	s.next()
	s.g.Expect(generation(v1alpha1.ConditionDriftDetected)).To(Equal(int64(2)))
	s.g.Expect(generation(v1alpha1.ConditionStalled)).To(Equal(int64(3)))
	s.g.Expect(generation(v1alpha1.ConditionRestarting)).To(Equal(int64(3)))
	s.observed.Incarnations[0].Phase = facts.Running
	s.next()
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionDriftDetected)).To(BeNil())
}

// A start that is not due needs nothing, so what would block it does not hide how the process has exited, and needs no person.
func TestBlocked_DoesNotHideAFinalExit(t *testing.T) {
	for _, tc := range []struct {
		exit              facts.Exit
		condition, reason string
	}{
		{facts.Exit{Known: true}, v1alpha1.ConditionReady, v1alpha1.ReasonCompleted},
		{facts.Exit{Known: true, Code: 3}, v1alpha1.ConditionStalled, v1alpha1.ReasonFailed},
	} {
		s := newFixture(t)
		s.desired.RestartPolicy = v1alpha1.RestartNever
		s.startToReady()
		s.desired.Blocked = &Blocked{Conflict: true, Reason: v1alpha1.ReasonPortInUse, Message: "Another program uses the port."}
		s.setExited(tc.exit)
		s.next()
		s.expectCondition(tc.condition, tc.reason)
		s.expectAtRest()

		s.desired.Generation, s.desired.RestartToken = 2, "again"
		s.next()
		s.expectCondition(v1alpha1.ConditionStalled, v1alpha1.ReasonPortInUse)
	}
}

// DriftDetected and Contained describe a running process, so they end with the process.
func TestStop_EndsTheConditionsOfTheProcess(t *testing.T) {
	s := newFixture(t).startToReady()
	s.observed.Incarnations[0].Containment = v1alpha1.ReasonSubreaper
	s.desired.Generation, s.desired.SpecHash, s.desired.UpdatePolicy = 2, "b", v1alpha1.UpdateOnRestart
	s.next()
	s.expectCondition(v1alpha1.ConditionDriftDetected, v1alpha1.ReasonDrifted)
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionContained)).NotTo(BeNil())
	s.desired.Generation, s.desired.State = 3, DesiredStopped
	s.next()
	s.setExited(facts.Exit{Known: true, Signal: "SIGTERM"})
	s.next()
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	for _, conditionType := range []string{v1alpha1.ConditionDriftDetected, v1alpha1.ConditionContained} {
		s.g.Expect(meta.FindStatusCondition(s.status.Conditions, conditionType)).To(BeNil(), conditionType)
	}
	s.expectAtRest()
}

func TestStaleRecord_IsRecheckedThenRebuilt(t *testing.T) {
	s := newFixture(t).startToReady()
	s.setIncarnation(facts.Incarnation{Number: 5, Phase: facts.Running})
	before := s.status.DeepCopy()
	step := Next(s.desired, s.status, s.observed, s.now)
	s.g.Expect(step.Action).To(Equal(Recheck))
	s.g.Expect(step.Status).To(Equal(*before))

	s.observed.Confirmed = true // the record is current and does not contain the incarnation: part of the record was lost
	s.next()
	s.g.Expect(s.status.Incarnation).To(Equal(int64(5)))
	s.expectCondition(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
}

func TestStart_DuringStopWaitsForExit(t *testing.T) {
	s := newFixture(t).startToReady()
	s.desired.State = DesiredStopped
	s.next()
	s.desired.State = DesiredRunning
	s.observed.Incarnations[0].StopSent = true
	s.next()
	s.expectCondition(v1alpha1.ConditionReconciling, v1alpha1.ReasonStopped)
	s.setExited(facts.Exit{Known: true, Code: 1})
	s.g.Expect(s.next().Action).To(Equal(StartProcess))
	s.g.Expect(s.status.Failures).To(BeZero())
}

func TestBackoff_DelayDoublesWithJitter(t *testing.T) {
	g := NewWithT(t)
	b := Backoff{Initial: time.Second, Max: time.Minute}
	g.Expect(b.delay("u", 1, 0)).To(BeZero())
	g.Expect(Backoff{Max: time.Minute}.delay("u", 1, 3)).To(BeZero())
	for failures, want := range map[int32]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 1000: time.Minute} {
		for incarnation := range int64(50) {
			got := b.delay("u", incarnation, failures)
			g.Expect(got).To(BeNumerically("~", want, want/4+1), "after %d failures", failures)
			g.Expect(got).To(Equal(b.delay("u", incarnation, failures)), "the same state yields the same delay")
		}
	}
	g.Expect(b.delay("u", 1, 7)).NotTo(Equal(b.delay("v", 1, 7)), "the jitter differs between objects")
}
