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

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

var start = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// story is one object and its process. The test sets the desired and the observed state; tick calls Next and keeps the status that it returns.
type story struct {
	t        *testing.T
	g        *WithT
	desired  Desired
	status   v1alpha1.ProcessStatus
	observed Observed
	now      time.Time
	last     Step
}

func newStory(t *testing.T) *story {
	return &story{t: t, g: NewWithT(t), now: start, desired: Desired{
		UID: "uid", Generation: 1, State: DesiredRunning, SpecHash: "a", RestartPolicy: v1alpha1.RestartAlways, UpdatePolicy: v1alpha1.UpdateRecreate,
		Grace:   10 * time.Second,
		Backoff: Backoff{Initial: time.Second, Max: time.Minute, ResetAfter: time.Minute},
		Breaker: Breaker{Threshold: 3, Window: 3 * time.Minute, CoolDown: 10 * time.Minute},
	}}
}

// tick calls Next once and checks the invariants of every step.
func (s *story) tick() Step {
	s.t.Helper()
	s.last = Next(s.desired, s.status, s.observed, s.now)
	s.status = s.last.Status
	s.g.Expect(truths(&s.status)).To(HaveLen(1), "exactly one of Ready, Reconciling and Stalled is True")
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionRestarting} {
		s.g.Expect(meta.FindStatusCondition(s.status.Conditions, conditionType)).NotTo(BeNil(), conditionType)
	}
	for _, condition := range s.status.Conditions {
		s.g.Expect(condition.ObservedGeneration).To(Equal(s.desired.Generation), condition.Type)
	}
	return s.last
}

// rest calls Next again and expects no write and no action.
func (s *story) rest() {
	s.t.Helper()
	before := s.status.DeepCopy()
	step := s.tick()
	s.g.Expect(step.Action).To(Equal(None))
	s.g.Expect(step.Events).To(BeEmpty())
	s.g.Expect(cmp.Diff(before, &s.status)).To(BeEmpty(), "a second call changes nothing")
}

func (s *story) is(incarnation facts.Incarnation) {
	s.observed.Incarnations = []facts.Incarnation{incarnation}
}

func (s *story) runs() {
	s.is(facts.Incarnation{Number: s.status.Incarnation, Phase: facts.Running, Containment: v1alpha1.ReasonCgroup,
		PID: 100 + s.status.Incarnation, StartedAt: s.now})
}

func (s *story) exits(exit facts.Exit) {
	exit.FinishedAt = s.now
	s.is(facts.Incarnation{Number: s.status.Incarnation, Phase: facts.Exited, Exit: &exit})
}

// up brings the object to Ready.
func (s *story) up() *story {
	s.t.Helper()
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
	s.runs()
	s.tick()
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	return s
}

func (s *story) expect(conditionType, reason string) {
	s.t.Helper()
	condition := meta.FindStatusCondition(s.status.Conditions, conditionType)
	s.g.Expect(string(condition.Status)+" "+condition.Reason).To(Equal("True "+reason), condition.Message)
}

func truths(status *v1alpha1.ProcessStatus) (truths []string) {
	for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if meta.IsStatusConditionTrue(status.Conditions, conditionType) {
			truths = append(truths, conditionType)
		}
	}
	return truths
}

func TestFirstStart(t *testing.T) {
	s := newStory(t)
	step := s.tick()
	s.g.Expect(step.Action).To(Equal(StartProcess))
	s.g.Expect(step.Incarnation).To(Equal(int64(1)), "the status of the same step records the intent")
	s.g.Expect(s.status.Incarnation).To(Equal(int64(1)))
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonStarting)
	s.g.Expect(meta.IsStatusConditionFalse(s.status.Conditions, v1alpha1.ConditionRestarting)).To(BeTrue(), "a first start is not a restart")

	again := s.tick()
	s.g.Expect(again.Action).To(Equal(StartProcess), "until the incarnation is observed, the same one is started")
	s.g.Expect(again.Incarnation).To(Equal(int64(1)))

	s.is(facts.Incarnation{Number: 1, Phase: facts.Starting})
	s.tick()
	s.rest()
	s.runs()
	s.tick()
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.g.Expect(s.status.Conditions).To(HaveLen(4), "conditions with their usual status are left out")
	s.g.Expect(s.status.Process.PID).To(Equal(int64(101)))
	s.g.Expect(s.status.RestartCount).To(BeZero())
	s.rest()
}

func TestReadyWaitsForTheProbeOfThisIncarnation(t *testing.T) {
	s := newStory(t)
	s.desired.Probed = true
	s.tick()
	s.runs()
	s.tick()
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonNotReady)
	yes, no := true, false
	s.observed.Ready, s.observed.NotReady = &no, "GET / returned status 503"
	s.tick()
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady).Message).To(Equal("GET / returned status 503"))
	s.observed.Ready = &yes
	s.tick()
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.observed.Ready = nil
	s.tick()
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.desired.RestartToken = "1"
	s.tick()
	s.exits(facts.Exit{Known: true})
	s.tick()
	s.runs()
	s.tick()
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonNotReady)
}

func TestRestartRequested(t *testing.T) {
	s := newStory(t).up()
	s.desired.RestartToken = "1"
	step := s.tick()
	s.g.Expect(step.Action).To(Equal(StopProcess))
	s.g.Expect(s.status.Stopping).NotTo(BeNil(), "the status of the same step records the intent to stop the process")
	s.expect(v1alpha1.ConditionRestarting, v1alpha1.ReasonRequested)

	s.desired.RestartToken = "2" // a request before the new process starts belongs to the same restart
	s.observed.Incarnations[0].StopSent = true
	s.g.Expect(s.tick().Action).To(Equal(None), "the process is not asked to stop twice")
	s.exits(facts.Exit{Known: true, Signal: "SIGTERM"})
	step = s.tick()
	s.g.Expect(step.Action).To(Equal(StartProcess))
	s.g.Expect(s.status.Incarnation).To(Equal(int64(2)))
	s.g.Expect(s.status.ObservedRestartToken).To(Equal("2"))
	s.g.Expect(s.status.LastExit.Reason).To(Equal(v1alpha1.ReasonStopped), "a requested exit is not a crash")
	s.g.Expect(s.status.Failures).To(BeZero())
	s.expect(v1alpha1.ConditionRestarting, v1alpha1.ReasonRequested)
	s.runs()
	s.tick()
	s.g.Expect(s.status.RestartCount).To(Equal(int64(1)))
	s.g.Expect(meta.IsStatusConditionTrue(s.status.Conditions, v1alpha1.ConditionRestarting)).To(BeFalse())
	s.rest()
}

func TestStopIsAskedAgainWhenTheManagerDiedBeforeTheSignal(t *testing.T) {
	s := newStory(t).up()
	s.desired.State = DesiredStopped
	s.g.Expect(s.tick().Action).To(Equal(StopProcess))
	s.g.Expect(s.tick().Action).To(Equal(StopProcess))
}

func TestGraceOnlyShrinksAndKillFollows(t *testing.T) {
	s := newStory(t).up()
	s.desired.State = DesiredStopped
	s.tick()
	s.observed.Incarnations[0].StopSent = true
	s.now = s.now.Add(2 * time.Second)
	s.desired.Grace = time.Hour
	s.tick()
	s.g.Expect(s.status.Stopping.Deadline.Time).To(Equal(start.Add(10 * time.Second)))
	s.desired.Grace = time.Second
	s.tick()
	s.g.Expect(s.status.Stopping.Deadline.Time).To(Equal(s.now.Add(time.Second)))
	s.g.Expect(s.last.Requeue).To(Equal(time.Second))
	s.now = s.now.Add(time.Second)
	step := s.tick()
	s.g.Expect(step.Action).To(Equal(KillProcess))
	s.g.Expect(step.Requeue).To(BeNumerically(">", 0), "SIGKILL is repeated while a process of the tree survives")
}

func TestStopAndStart(t *testing.T) {
	s := newStory(t).up()
	s.desired.State = DesiredStopped
	s.tick()
	s.exits(facts.Exit{Known: true, Code: 143})
	s.tick()
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	s.g.Expect(s.last.Events).To(ConsistOf(HaveField("Reason", v1alpha1.ReasonStopped)), "only the exit, without an event about Ready")
	s.g.Expect(s.last.Expires).NotTo(BeZero())
	s.rest()
	s.desired.RestartToken = "while stopped"
	s.rest()
	s.desired.State = DesiredRunning
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
	s.g.Expect(s.status.ObservedRestartToken).To(Equal("while stopped"))
	s.g.Expect(meta.IsStatusConditionTrue(s.status.Conditions, v1alpha1.ConditionRestarting)).To(BeFalse(), "a start after a stop is not a restart")
}

func TestItRestartsAsSoonAsItsProgramHasEnded(t *testing.T) {
	for policy, want := range map[v1alpha1.RestartPolicy]bool{v1alpha1.RestartAlways: true, v1alpha1.RestartNever: false} {
		s := newStory(t).up()
		s.desired.RestartPolicy, s.desired.Probed = policy, true
		notReady := false
		s.observed.Ready, s.observed.Incarnations[0].LeaderExit = &notReady, &facts.Exit{Known: true, Signal: "SIGKILL"}
		s.tick()
		s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonNotReady)
		s.g.Expect(meta.IsStatusConditionTrue(s.status.Conditions, v1alpha1.ConditionRestarting)).To(Equal(want), string(policy))
	}
	s := newStory(t).up()
	notReady := false
	s.desired.Probed, s.observed.Ready = true, &notReady
	s.observed.Incarnations[0].LeaderExit = &facts.Exit{Known: true, Lost: true}
	s.tick()
	s.expect(v1alpha1.ConditionRestarting, v1alpha1.ReasonLost)
}

func TestSleepAndWake(t *testing.T) {
	s := newStory(t).up()
	s.desired.State = DesiredAsleep
	s.g.Expect(s.tick().Action).To(Equal(StopProcess))
	s.g.Expect(s.status.Stopping.Reason).To(Equal(v1alpha1.ReasonIdle))
	s.exits(facts.Exit{Known: true, Code: 143})
	s.tick()
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonIdle)
	s.g.Expect(s.last.Expires).To(BeZero(), "a sleeping object does not expire")
	s.g.Expect(s.last.Events).To(ContainElement(HaveField("Reason", v1alpha1.ReasonIdle)))
	s.rest()
	s.desired.RestartToken = "while asleep"
	s.tick()
	s.rest()
	s.desired.State = DesiredRunning
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
	s.g.Expect(meta.IsStatusConditionTrue(s.status.Conditions, v1alpha1.ConditionRestarting)).To(BeFalse(), "waking is not a restart")
}

func TestAFailureDoesNotSleep(t *testing.T) {
	s := newStory(t).up()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.desired.State = DesiredAsleep
	s.tick()
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
}

func TestWhyItWasUnhealthy(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonHung, v1alpha1.ReasonProtocolError, v1alpha1.ReasonMemoryLimit, v1alpha1.ReasonCanaryFailed} {
		s := newStory(t).up()
		s.observed.Unhealthy, s.observed.UnhealthyReason = "it answers nothing", reason
		s.g.Expect(s.tick().Action).To(Equal(StopProcess))
		s.expect(v1alpha1.ConditionReconciling, reason)
		restarting := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionRestarting)
		s.g.Expect(restarting.Reason).To(Equal(reason))
		s.g.Expect(restarting.Message).To(Equal("it answers nothing"))
		s.observed.Unhealthy = ""
		s.exits(facts.Exit{Known: true, Signal: "SIGKILL"})
		s.tick()
		s.g.Expect(s.status.LastExit.Reason).To(Equal(reason))
		s.g.Expect(s.status.Failures).To(BeEquivalentTo(1), "a restart by a probe counts as a failure, not as a requested stop")
	}
}

func TestStopBeforeTheRecordedStart(t *testing.T) {
	s := newStory(t)
	s.tick()
	s.desired.State = DesiredStopped
	s.g.Expect(s.tick().Action).To(Equal(None))
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	s.desired.State = DesiredRunning
	s.g.Expect(s.tick().Incarnation).To(Equal(int64(2)))
}

func TestDeleteWinsOverRestartAndStop(t *testing.T) {
	s := newStory(t).up()
	s.desired.RestartToken = "1"
	s.tick()
	s.desired.State = DesiredDeleted
	step := s.tick()
	s.g.Expect(step.Released).To(BeFalse())
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonDeleting)
	s.exits(facts.Exit{Known: true})
	step = s.tick()
	s.g.Expect(step.Action).To(Equal(Forget))
	s.g.Expect(step.Released).To(BeTrue())
}

func TestWhatWasAdoptedOutlivesItsObject(t *testing.T) {
	s := newStory(t).up()
	s.desired.State, s.desired.Orphan = DesiredDeleted, true
	step := s.tick()
	s.g.Expect(step.Action).To(Equal(Forget), "there is no process to stop")
	s.g.Expect(step.Released).To(BeTrue())
	s.g.Expect(step.Status.Stopping).To(BeNil())
}

// The loss of a process, for example by an eviction, does not count as a failure of the program, so the breaker stays closed. OnFailure restarts a
// lost process even if its exit code is 0.
func TestWhatIsLostComesBack(t *testing.T) {
	s := newStory(t).up()
	s.desired.RestartPolicy = v1alpha1.RestartOnFailure
	for range s.desired.Breaker.Threshold + 1 {
		s.exits(facts.Exit{Known: true, Lost: true, Message: "the cluster evicted the Pod: EvictionByEvictionAPI: evicting."})
		s.tick()
		s.g.Expect(s.status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonLost), HaveField("ExitCode", HaveValue(BeZero())),
			HaveField("Message", ContainSubstring("EvictionAPI")))))
		s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
		s.expect(v1alpha1.ConditionRestarting, v1alpha1.ReasonLost)
		s.g.Expect(s.last.Events[0]).To(Equal(Event{Warning: true, Reason: v1alpha1.ReasonLost,
			Message: fmt.Sprintf("Incarnation %d was lost: the cluster evicted the Pod: EvictionByEvictionAPI: evicting. Restarts at %s.",
				s.status.Incarnation, clockTime(s.status.NextRestartTime.Time))}))
		s.now = s.status.NextRestartTime.Time
		s.g.Expect(s.tick().Action).To(Equal(StartProcess))
		s.runs()
		s.tick()
		s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	}
	s.g.Expect(s.status.Breaker.Failures).To(BeEmpty())

	s.desired.RestartPolicy = v1alpha1.RestartNever
	s.exits(facts.Exit{Lost: true, Message: "the node terminated the Pod: NodeLost"})
	s.tick()
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonLost)
	s.rest()
}

// A backend cannot distinguish a requested stop from a loss; after a requested stop, the status must not report a loss.
func TestWhatWasAskedForIsNotLost(t *testing.T) {
	for _, exit := range []facts.Exit{{Known: true, Lost: true, Message: "the Pod was deleted"}, {Lost: true, Message: "the Pod was deleted"}} {
		s := newStory(t).up()
		s.desired.State = DesiredStopped
		s.tick()
		s.exits(exit)
		s.tick()
		s.g.Expect(s.status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonStopped), HaveField("Message", BeEmpty()))))
	}
}

func TestMoreThanACodeIsKnownOfAnEnd(t *testing.T) {
	s := newStory(t).up()
	s.exits(facts.Exit{Known: true, Code: 137, Message: "the container exceeded its memory limit"})
	s.tick()
	s.g.Expect(s.status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonFailed), HaveField("Message", "the container exceeded its memory limit"))))
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady).Message).To(
		HavePrefix("Incarnation 1 ended with exit code 137: the container exceeded its memory limit. Restarts at"))
}

func TestCrashBackOffAndBreaker(t *testing.T) {
	s := newStory(t).up()
	var waits []time.Duration
	for range 2 {
		s.exits(facts.Exit{Known: true, Code: 1})
		s.tick()
		s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
		s.expect(v1alpha1.ConditionRestarting, v1alpha1.ReasonCrashed)
		s.rest()
		waits = append(waits, s.last.Requeue)
		s.now = s.status.NextRestartTime.Time
		s.g.Expect(s.tick().Action).To(Equal(StartProcess))
		s.runs()
		s.tick()
	}
	s.g.Expect(waits[0]).To(BeNumerically("~", time.Second, 250*time.Millisecond))
	s.g.Expect(waits[1]).To(BeNumerically("~", 2*time.Second, 500*time.Millisecond))
	s.exits(facts.Exit{Known: true, Signal: "SIGSEGV"})
	s.tick()
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.expect(v1alpha1.ConditionCircuitOpen, v1alpha1.ReasonCircuitOpen)
	s.g.Expect(s.status.LastExit.Signal).To(Equal("SIGSEGV"))
	s.rest()

	s.now = s.now.Add(10 * time.Minute)
	s.g.Expect(s.tick().Action).To(Equal(StartProcess), "one attempt after the cool-down")
	s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerHalfOpen))
	s.runs()
	s.tick()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.tick()
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
}

func TestWhatClosesTheBreaker(t *testing.T) {
	for name, request := range map[string]func(*story){
		"a reset token":      func(s *story) { s.desired.ResetToken = "1" },
		"a new spec":         func(s *story) { s.desired.SpecHash = "b" },
		"another probe":      func(s *story) { s.desired.Generation++ },
		"a restart token":    func(s *story) { s.desired.RestartToken = "1" },
		"a stop and a start": func(s *story) { s.desired.State = DesiredStopped; s.tick(); s.desired.State = DesiredRunning },
		"the cool-down only": func(s *story) { s.now = s.now.Add(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.desired.Breaker.Threshold = 1
			s.up()
			s.exits(facts.Exit{Known: true, Code: 1})
			s.tick()
			s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
			request(s)
			s.g.Expect(s.tick().Action).To(Equal(StartProcess))
			s.runs()
			s.tick()
			s.now = s.now.Add(time.Hour)
			s.tick()
			s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerClosed))
			s.rest()
		})
	}
}

func TestATrialThatSucceedsClosesTheBreaker(t *testing.T) {
	s := newStory(t)
	s.desired.Breaker.Threshold, s.desired.RestartPolicy = 1, v1alpha1.RestartOnFailure
	s.up()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.tick()
	s.now = s.now.Add(time.Hour)
	s.tick()
	s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerHalfOpen))
	s.runs()
	s.tick()
	s.exits(facts.Exit{Known: true})
	s.tick()
	s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerClosed), "a completed process closes the breaker, because no restart follows")
	s.rest()
}

func TestCoolDownZeroStaysOpen(t *testing.T) {
	s := newStory(t)
	s.desired.Breaker = Breaker{Threshold: 1, Window: time.Minute}
	s.up()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.tick()
	s.now = s.now.Add(1000 * time.Hour)
	s.rest()
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
	s.g.Expect(s.last.Requeue).To(BeZero())

	s.desired.Generation++
	s.g.Expect(s.tick().Action).To(Equal(StartProcess), "any edit of the spec allows one attempt")
	s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerHalfOpen))
	s.runs()
	s.tick()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.tick()
	s.rest()
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonCircuitOpen)
}

func TestFailuresOutsideTheWindowDoNotCount(t *testing.T) {
	s := newStory(t).up()
	for range 6 {
		s.now = s.now.Add(2 * time.Minute)
		s.exits(facts.Exit{Known: true, Code: 1})
		s.tick()
		s.g.Expect(s.status.Breaker.State).To(Equal(v1alpha1.BreakerClosed))
		s.now = s.now.Add(time.Minute)
		s.g.Expect(s.tick().Action).To(Equal(StartProcess))
		s.runs()
		s.tick()
	}
}

func TestGoodRunForgetsFailures(t *testing.T) {
	s := newStory(t).up()
	s.exits(facts.Exit{Known: true, Code: 1})
	s.tick()
	s.now = s.status.NextRestartTime.Time
	s.tick()
	s.runs()
	s.tick()
	s.g.Expect(s.last.Requeue).To(Equal(time.Minute), "requeued for when the run counts as good")
	s.now = s.now.Add(time.Minute)
	s.tick()
	s.g.Expect(s.status.Failures).To(BeZero())
	s.g.Expect(s.status.Breaker.Failures).To(BeEmpty())
	s.rest()

	s.exits(facts.Exit{Known: true, Code: 1})
	s.g.Expect(s.tick().Action).To(Equal(StartProcess), "the first crash after a good run restarts immediately")
}

func TestRestartPolicies(t *testing.T) {
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
			s := newStory(t)
			s.desired.RestartPolicy = c.policy
			s.up()
			s.exits(c.exit)
			s.tick()
			s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionReady).Reason).To(Equal(c.want))
			s.rest()
			if !c.exit.Known {
				s.g.Expect(s.status.LastExit.ExitCode).To(BeNil(), "an exit code is never invented")
			}
		})
	}
}

func TestFinishedRunsAgainOnRequest(t *testing.T) {
	for name, request := range map[string]func(*story){
		"restart token": func(s *story) { s.desired.RestartToken = "1" },
		"new spec":      func(s *story) { s.desired.SpecHash = "b" },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.desired.RestartPolicy = v1alpha1.RestartNever
			s.up()
			s.exits(facts.Exit{Known: true})
			s.tick()
			s.desired.ResetToken = "1"
			s.g.Expect(s.tick().Action).To(Equal(None), "a reset does not rerun a completed process")
			request(s)
			s.g.Expect(s.tick().Action).To(Equal(StartProcess))
		})
	}
}

func TestStartErrorsWaitForSomebody(t *testing.T) {
	for _, reason := range []string{v1alpha1.ReasonCommandNotFound, v1alpha1.ReasonPermissionDenied, v1alpha1.ReasonWorkingDirMissing} {
		t.Run(reason, func(t *testing.T) {
			s := newStory(t)
			s.tick()
			s.is(facts.Incarnation{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{Reason: reason, Message: "no program foo in PATH."}})
			s.tick()
			s.expect(v1alpha1.ConditionStalled, reason)
			s.g.Expect(s.last.Requeue).To(BeZero(), "no crash loop")
			s.now = s.now.Add(time.Hour)
			s.rest()
			s.desired.ResetToken = "1"
			s.g.Expect(s.tick().Action).To(Equal(StartProcess))
			s.g.Expect(s.status.Incarnation).To(Equal(int64(2)))
		})
	}
	s := newStory(t)
	s.tick()
	s.is(facts.Incarnation{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{Message: "no more processes"}})
	s.tick()
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
}

func TestBlocked(t *testing.T) {
	s := newStory(t)
	s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonPortClaimed, Message: "port 80 is that of default/web", Conflict: true, Retry: time.Second}
	s.tick()
	s.g.Expect(s.last.Action).To(Equal(None))
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonPortClaimed)
	s.expect(v1alpha1.ConditionConflict, v1alpha1.ReasonPortClaimed)
	s.g.Expect(s.last.Requeue).To(Equal(time.Second))
	s.now = s.now.Add(time.Minute)
	s.rest()
	s.desired.Blocked = nil
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionConflict)).To(BeNil())
	s.runs()
	s.tick()

	s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonInvalidEnvironment, Message: "no Secret s"}
	s.desired.SpecHash = "b"
	s.tick()
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.expect(v1alpha1.ConditionDriftDetected, v1alpha1.ReasonInvalidEnvironment)
	s.rest()
}

func TestNothingToStandForCountsAsStopped(t *testing.T) {
	s := newStory(t)
	s.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonNothingToAdopt, Message: "no session", Retry: time.Second}
	s.tick()
	s.g.Expect(s.last.Expires).To(BeZero(), "a blocked object does not expire")
	s.desired.Blocked.Absent = true
	s.tick()
	since := s.last.Expires
	s.g.Expect(since).To(BeTemporally("~", s.now, time.Second))
	s.now = s.now.Add(time.Minute)
	s.rest()
	s.g.Expect(s.last.Expires).To(Equal(since))
	s.desired.Blocked = nil
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
	s.g.Expect(s.last.Expires).To(BeZero())
}

func TestUpdatePolicy(t *testing.T) {
	s := newStory(t).up()
	s.desired.UpdatePolicy = v1alpha1.UpdateOnRestart
	s.desired.SpecHash = "b"
	s.tick()
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	s.expect(v1alpha1.ConditionDriftDetected, v1alpha1.ReasonDrifted)
	s.rest()
	s.desired.UpdatePolicy = v1alpha1.UpdateRecreate
	s.g.Expect(s.tick().Action).To(Equal(StopProcess))
	s.expect(v1alpha1.ConditionRestarting, v1alpha1.ReasonSpecChanged)
	s.exits(facts.Exit{Known: true})
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
	s.g.Expect(s.status.SpecHash).To(Equal("b"))

	done := newStory(t)
	done.desired.RestartPolicy, done.desired.UpdatePolicy = v1alpha1.RestartNever, v1alpha1.UpdateOnRestart
	done.up()
	done.exits(facts.Exit{Known: true})
	done.tick()
	done.desired.SpecHash = "b"
	s.g.Expect(done.tick().Action).To(Equal(None), "OnRestart does not rerun a completed process")
}

func TestUnhealthyCountsAsAFailure(t *testing.T) {
	s := newStory(t).up()
	s.observed.Unhealthy = "GET /healthz: no answer in 2 s"
	s.g.Expect(s.tick().Action).To(Equal(StopProcess))
	s.expect(v1alpha1.ConditionRestarting, v1alpha1.ReasonUnhealthy)
	s.observed.Unhealthy = ""
	s.exits(facts.Exit{Known: true})
	s.tick()
	s.g.Expect(s.status.LastExit.Reason).To(Equal(v1alpha1.ReasonUnhealthy))
	s.g.Expect(s.status.Failures).To(Equal(int32(1)))
	s.expect(v1alpha1.ConditionRestarting, v1alpha1.ReasonUnhealthy)

	never := newStory(t)
	never.desired.RestartPolicy = v1alpha1.RestartNever
	never.up()
	never.observed.Unhealthy = "hangs"
	never.tick()
	never.observed.Unhealthy = ""
	never.exits(facts.Exit{Known: true})
	never.tick()
	never.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
}

func TestUnknownIsLeftAlone(t *testing.T) {
	for _, want := range []DesiredState{DesiredRunning, DesiredStopped, DesiredDeleted} {
		s := newStory(t).up()
		s.desired.State = want
		s.is(facts.Incarnation{Number: 1, Phase: facts.Unknown, Message: "the shim does not respond"})
		s.tick()
		s.g.Expect(s.last.Action).To(Equal(None))
		s.g.Expect(s.last.Released).To(BeFalse())
		s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonUnknown)
		s.rest()
	}
}

// An incarnation that the backend cannot read has no number. It stands for the recorded incarnation, not for an orphan of an older one.
func TestUnknownWithoutANumberIsTheCurrentOne(t *testing.T) {
	s := newStory(t).up()
	s.is(facts.Incarnation{Phase: facts.Unknown, Message: "spec.json is damaged", Killable: true})
	s.tick()
	s.g.Expect(s.last.Action).To(Equal(None))
	s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonUnknown)
	s.g.Expect(meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionStalled).Message).To(ContainSubstring("spec.json is damaged"))
	s.desired.State = DesiredDeleted
	s.tick()
	s.g.Expect(s.last.Action).To(Equal(StopProcess))
	s.g.Expect(s.last.Incarnation).To(Equal(int64(1)))
}

func TestUnknownIsEndedWhereItsEndWillBeKnown(t *testing.T) {
	unreachable := facts.Incarnation{Number: 1, Phase: facts.Unknown, Message: "its Pod runs", Killable: true}
	for name, change := range map[string]func(*Desired){
		"stop":     func(d *Desired) { d.State = DesiredStopped },
		"deletion": func(d *Desired) { d.State = DesiredDeleted },
		"restart":  func(d *Desired) { d.RestartToken = "now" },
		"change":   func(d *Desired) { d.SpecHash = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t).up()
			s.is(unreachable)
			s.tick()
			s.g.Expect(s.last.Action).To(Equal(None), "the spec does not ask for a stop")
			s.expect(v1alpha1.ConditionStalled, v1alpha1.ReasonUnknown)
			change(&s.desired)
			s.desired.Generation++
			s.tick()
			s.g.Expect(s.last.Action).To(Equal(StopProcess))
			s.now = s.status.Stopping.Deadline.Time
			s.tick()
			s.g.Expect(s.last.Action).To(Equal(KillProcess))
			s.g.Expect(s.last.Released).To(BeFalse(), "the finalizer waits for the exit")
		})
	}
}

func TestUnknownSleepsOn(t *testing.T) {
	s := newStory(t).up()
	s.desired.State = DesiredAsleep
	s.tick()
	s.exits(facts.Exit{Known: true, Code: 143})
	s.tick()
	s.is(facts.Incarnation{Number: 1, Phase: facts.Unknown, Message: "its Pod runs", Killable: true})
	for _, want := range []DesiredState{DesiredAsleep, DesiredRunning} { // also the activity of an unknown process cannot be determined
		s.desired.State = want
		s.tick()
		s.g.Expect(s.last.Action).To(Equal(None), "no stop was requested")
	}

	// After a requested stop, the status keeps no trace of the unknown phase.
	s.desired.State = DesiredStopped
	s.g.Expect(s.tick().Action).To(Equal(StopProcess))
	s.exits(facts.Exit{})
	s.tick()
	s.g.Expect(s.status.Stopping).To(BeNil())
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	s.rest()
}

func TestGoneUnseenIsUnknownAndReplaced(t *testing.T) {
	s := newStory(t).up()
	s.observed.Incarnations = nil
	s.tick()
	s.g.Expect(s.status.LastExit.Reason).To(Equal(v1alpha1.ReasonUnknown))
	s.g.Expect(s.status.LastExit.ExitCode).To(BeNil())
	s.g.Expect(s.status.LastExit.FinishedAt).To(BeNil())
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonBackOff)
}

func TestOlderIncarnationIsEndedFirst(t *testing.T) {
	s := newStory(t).up()
	s.status.Incarnation = 2
	s.status.Process = nil
	step := s.tick()
	s.g.Expect(step.Action).To(Equal(StopProcess))
	s.g.Expect(step.Incarnation).To(Equal(int64(1)))
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonSuperseded)
}

func TestOldRecordIsLeftAlone(t *testing.T) {
	s := newStory(t).up()
	s.is(facts.Incarnation{Number: 5, Phase: facts.Running})
	before := s.status.DeepCopy()
	step := Next(s.desired, s.status, s.observed, s.now)
	s.g.Expect(step.Action).To(Equal(Recheck))
	s.g.Expect(step.Status).To(Equal(*before))

	s.observed.Confirmed = true // the record is current and does not contain the incarnation: part of the record was lost
	s.tick()
	s.g.Expect(s.status.Incarnation).To(Equal(int64(5)))
	s.expect(v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
}

func TestBackToRunningWhileBeingStopped(t *testing.T) {
	s := newStory(t).up()
	s.desired.State = DesiredStopped
	s.tick()
	s.desired.State = DesiredRunning
	s.observed.Incarnations[0].StopSent = true
	s.tick()
	s.expect(v1alpha1.ConditionReconciling, v1alpha1.ReasonStopped)
	s.exits(facts.Exit{Known: true, Code: 1})
	s.g.Expect(s.tick().Action).To(Equal(StartProcess))
	s.g.Expect(s.status.Failures).To(BeZero())
}

func TestDelay(t *testing.T) {
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
