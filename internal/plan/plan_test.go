// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/elapsed/elapsedtest"
)

const (
	succeeded = v1alpha1.OutcomeSucceeded
	failed    = v1alpha1.OutcomeFailed
	skipped   = v1alpha1.OutcomeSkipped
)

func TestPhases_AdvanceUpToTarget(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1, 2, 1))
	w.settle().expectState(strategize, processing, 1)
	w.g.Expect(w.liveRuns()).To(ConsistOf(runName(1, strategize, 0)))
	w.finishRun(runName(1, strategize, 0), succeeded).settle().expectState(strategize, complete, 1)
	w.g.Expect(w.condition(v1alpha1.ConditionAwaitingApproval).Status).To(BeEquivalentTo("True"))
	w.g.Expect(w.status.Waiting).To(Equal("for approval of Execute"))
	w.desired.Target = execute
	w.settle().expectState(execute, processing, 1)
	w.g.Expect(w.status.Waiting).To(Equal("for 2 of 2 runs"))
	w.finishRun(runName(1, execute, 1), succeeded).settle().expectState(execute, processing, 1)
	w.g.Expect(w.status.Waiting).To(Equal("for 1 of 2 runs"))
	w.desired.Target = apply // while the plan runs
	w.finishRun(runName(1, execute, 0), succeeded).settle().expectState(apply, processing, 1)
	w.finishRun(runName(1, apply, 0), succeeded).settle().expectState(apply, applied, 1)
	w.g.Expect(w.condition(v1alpha1.ConditionSucceeded).Status).To(BeEquivalentTo("True"))
	w.g.Expect(w.status.Results).To(HaveLen(4))
	w.g.Expect(w.status.FinishTime).NotTo(BeNil())
	w.desired.Target = strategize
	w.settle().expectState(apply, applied, 1)
}

// An approval is for the phase that its user saw in one attempt. It does not approve the same phase of the next attempt.
func TestApproval_CoversOnePhaseOfOneAttempt(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(0, 1, 1))
	w.settle().expectState(strategize, complete, 1)
	w.g.Expect(w.condition(v1alpha1.ConditionAwaitingApproval).Message).To(Equal("To start Execute, set spec.approval to phase Execute and attempt 1."))
	for _, other := range []v1alpha1.PlanApproval{{Phase: execute, Attempt: 2}, {Phase: apply, Attempt: 1}} {
		w.desired.Approval = &other
		w.settle().expectState(strategize, complete, 1)
	}
	w.approveWaiting("").settle().expectState(execute, processing, 1)
	w.finishRun(runName(1, execute, 0), succeeded).settle().expectState(execute, complete, 1)

	w.desired.Approval = &v1alpha1.PlanApproval{Phase: apply, Attempt: 1} // at the same time as a revert
	w.desired.RevertToken = "back"
	w.settle().expectState(strategize, complete, 2)
	w.approveWaiting(apply).settle().expectState(execute, processing, 2)
	w.desired.RetryToken = "again"
	w.settle().finishCancelledRuns().expectState(execute, processing, 3)
	w.finishRun(runName(3, execute, 0), succeeded).settle().expectState(execute, complete, 3)
	w.g.Expect(w.status.Waiting).To(Equal("for approval of Apply"))
	w.approveWaiting("").settle().expectState(apply, processing, 3)
}

func TestApproval_CoversPhasesUpToToPhase(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(0, 1, 1))
	w.settle()
	w.approveWaiting(apply).settle().finishRun(runName(1, execute, 0), succeeded).settle().expectState(apply, processing, 1)
}

func TestPhases_CompleteImmediatelyWithoutStrategies(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(0, 1, 0))
	w.settle().expectState(strategize, complete, 1)
	w.desired.Target = apply
	w.settle().expectState(execute, processing, 1)
	w.finishRun(runName(1, execute, 0), succeeded).settle().expectState(apply, applied, 1)
}

func TestPhase_StateFollowsRunOutcomes(t *testing.T) {
	for name, tc := range map[string]struct {
		needed   int
		outcomes []v1alpha1.RunOutcome // outcomes of the three runs; runs without an outcome have not ended
		state    v1alpha1.PlanState
		reason   string
	}{
		"all, two of three so far":        {3, []v1alpha1.RunOutcome{succeeded, succeeded}, processing, v1alpha1.ReasonProcessing},
		"all":                             {3, []v1alpha1.RunOutcome{succeeded, succeeded, succeeded}, complete, v1alpha1.ReasonAwaitingApproval},
		"all, one failed":                 {3, []v1alpha1.RunOutcome{failed}, errored, v1alpha1.ReasonPhaseFailed},
		"all, one timed out":              {3, []v1alpha1.RunOutcome{v1alpha1.OutcomeTimedOut}, errored, v1alpha1.ReasonPhaseFailed},
		"all, one cancelled by a user":    {3, []v1alpha1.RunOutcome{v1alpha1.OutcomeCancelled}, errored, v1alpha1.ReasonPhaseFailed},
		"all, one skipped":                {3, []v1alpha1.RunOutcome{skipped}, constrained, v1alpha1.ReasonCircuitOpen},
		"all, one skipped, one failed":    {3, []v1alpha1.RunOutcome{skipped, failed}, errored, v1alpha1.ReasonPhaseFailed},
		"any":                             {1, []v1alpha1.RunOutcome{succeeded}, complete, v1alpha1.ReasonAwaitingApproval},
		"any, two failed so far":          {1, []v1alpha1.RunOutcome{failed, skipped}, processing, v1alpha1.ReasonProcessing},
		"any, the last succeeded":         {1, []v1alpha1.RunOutcome{failed, skipped, succeeded}, complete, v1alpha1.ReasonAwaitingApproval},
		"any, none":                       {1, []v1alpha1.RunOutcome{failed, failed, failed}, errored, v1alpha1.ReasonPhaseFailed},
		"any, two failed and one skipped": {1, []v1alpha1.RunOutcome{failed, failed, skipped}, constrained, v1alpha1.ReasonCircuitOpen},
		"two, one failed so far":          {2, []v1alpha1.RunOutcome{failed, succeeded}, processing, v1alpha1.ReasonProcessing},
		"two, two failed":                 {2, []v1alpha1.RunOutcome{failed, failed}, errored, v1alpha1.ReasonPhaseFailed},
		"two, one failed, one skipped":    {2, []v1alpha1.RunOutcome{failed, skipped}, constrained, v1alpha1.ReasonCircuitOpen},
	} {
		t.Run(name, func(t *testing.T) {
			pinned := pinnedAction(3, 1)
			pinned.Phases[0].Needed = int32(tc.needed)
			w := newWorld(gomega(t), pinned)
			w.settle()
			for i, outcome := range tc.outcomes {
				w.finishRun(nameOfRun("p", w.desired.UID, 1, strategize, i), outcome)
			}
			w.settle().finishCancelledRuns().expectState(strategize, tc.state, 1)
			if tc.state == processing {
				return
			}
			w.g.Expect(w.liveRuns()).To(BeEmpty())
			for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionStalled} {
				w.g.Expect(w.condition(conditionType).Reason).To(Equal(tc.reason))
			}
		})
	}
}

func TestMaxParallel_LimitsLiveRuns(t *testing.T) {
	pinned := pinnedAction(5)
	pinned.MaxParallel = 2
	w := newWorld(gomega(t), pinned)
	w.settle()
	for i := range 5 {
		w.g.Expect(w.liveRuns()).To(HaveLen(min(2, 5-i)))
		w.finishRun(runName(1, strategize, i), succeeded).settle()
	}
	w.expectState(strategize, complete, 1)
}

func TestPhaseTimeout_CancelsRunsAndFails(t *testing.T) {
	pinned := pinnedAction(2)
	pinned.Phases[0].TimeoutSeconds = 60
	w := newWorld(gomega(t), pinned)
	w.settle()
	w.g.Expect(w.next().Requeue).To(Equal(time.Minute))
	w.now = w.now.Add(time.Minute)
	w.settle().expectState(strategize, processing, 1)
	w.g.Expect(w.status.Waiting).To(Equal("for runs to end"))
	w.finishCancelledRuns().expectState(strategize, errored, 1)
	w.g.Expect(w.condition(v1alpha1.ConditionStalled).Reason).To(Equal(v1alpha1.ReasonTimedOut))
}

func TestRetry_RerunsPhaseAfterItsRunsEnd(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1, 2))
	w.desired.Target = execute
	w.settle().finishRun(runName(1, strategize, 0), succeeded).settle()
	w.finishRun(runName(1, execute, 0), succeeded)
	w.desired.RetryToken = "a"
	w.settle().expectState(execute, processing, 1)
	w.g.Expect(w.liveRuns()).To(ConsistOf(runName(1, execute, 1)))
	w.desired.RetryToken = "b" // before the first retry has begun: both requests cause one retry
	w.finishCancelledRuns().expectState(execute, processing, 2)
	w.g.Expect(w.liveRuns()).To(ConsistOf(runName(2, execute, 0), runName(2, execute, 1)))
	w.g.Expect(w.events).To(ContainElement(v1alpha1.ReasonResultIgnored))
	w.finishRun(runName(2, execute, 0), failed).settle().finishCancelledRuns().expectState(execute, errored, 2)
	w.desired.RetryToken = "c"
	w.settle().expectState(execute, processing, 3)
	w.finishRun(runName(3, execute, 0), succeeded).finishRun(runName(3, execute, 1), succeeded).settle().expectState(execute, complete, 3)
	w.g.Expect(w.status.Results).To(HaveLen(3), "the results of the last attempt of each phase")
	w.desired.RetryToken = "d"
	w.settle().expectState(execute, complete, 3)
	w.g.Expect(w.events[len(w.events)-1]).To(Equal(v1alpha1.ReasonRequestIgnored))
}

func TestRevert_ReturnsToFirstPhaseWithinLimit(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1, 1, 1))
	w.desired.RevertToken = "given at the beginning"
	w.settle().expectState(strategize, processing, 1)
	w.desired.RevertToken = "too early"
	w.settle().expectState(strategize, processing, 1)
	w.desired.Target = apply
	w.finishRun(runName(1, strategize, 0), succeeded).settle().finishRun(runName(1, execute, 0), succeeded).settle().finishRun(runName(1, apply, 0), succeeded).settle().expectState(apply, applied, 1)
	w.desired.Target, w.desired.RevertToken, w.desired.RevertReason = strategize, "back", "It was wrong."
	w.settle().expectState(strategize, processing, 2)
	w.g.Expect(w.status.Completed).To(BeEmpty())
	w.g.Expect(w.status.FinishTime).To(BeNil())
	w.g.Expect(w.status.History[len(w.status.History)-1].Message).To(ContainSubstring("It was wrong."))
	w.desired.Target = execute
	w.finishRun(runName(2, strategize, 0), succeeded).settle().expectState(execute, processing, 2)
	w.desired.RevertToken = "once too often"
	w.settle().finishCancelledRuns().expectState(execute, constrained, 2)
	w.g.Expect(w.condition(v1alpha1.ConditionStalled).Reason).To(Equal(v1alpha1.ReasonReversionLimit))
	w.desired.RetryToken = "go on"
	w.settle().expectState(execute, processing, 3)
	w.finishRun(runName(3, execute, 0), succeeded).settle().expectState(execute, complete, 3)
	w.desired.RevertToken = "again"
	w.settle().expectState(execute, constrained, 3)
	w.desired.RetryToken = "as it was"
	w.settle().expectState(execute, complete, 3)
}

// The owner of the spec, such as a GitOps tool, removes the tokens that others have set in it.
func TestToken_RemovedIsNoRequest(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(0, 1, 1))
	w.settle().approveWaiting("").settle().expectState(execute, processing, 1)
	w.desired.RetryToken = "again"
	w.settle().finishCancelledRuns().expectState(execute, processing, 2)
	w.finishRun(runName(2, execute, 0), succeeded).settle().expectState(execute, complete, 2)
	w.desired.RevertToken, w.desired.RetryToken = "back", ""
	w.settle().expectState(strategize, complete, 3)
	w.approveWaiting("").settle().expectState(execute, processing, 3)
	for _, tokens := range [][2]string{{"", ""}, {"again", "back"}} { // removed, and set once more
		w.desired.RetryToken, w.desired.RevertToken = tokens[0], tokens[1]
		w.settle().finishCancelledRuns().expectState(execute, processing, 3)
	}
}

func TestCancel_ReportsRunsOfPlanWithoutStatus(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1)).settle()
	w.g.Expect(w.liveRuns()).NotTo(BeEmpty())
	w.status, w.desired.Cancelled = v1alpha1.PlanStatus{}, true
	w.status = w.next().Status
	w.g.Expect(w.status.Waiting).To(Equal("for runs to end"))
	w.g.Expect(w.condition(v1alpha1.ConditionReconciling)).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonEnding)))
}

func TestCancel_EndsPlanInEveryState(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*world)
		want   v1alpha1.PlanState
	}{
		"before it starts": {func(w *world) {
			w.desired.Pinned, w.desired.Blocked = nil, &Blocked{Reason: "X", Message: "Blocked."}
			w.settle()
		}, cancelled},
		"at its first step":   {func(*world) {}, cancelled},
		"while it runs":       {func(w *world) { w.settle() }, cancelled},
		"before a run exists": {func(w *world) { w.step(false) }, cancelled},
		"awaiting approval":   {func(w *world) { w.settle().finishRun(runName(1, strategize, 0), succeeded).settle() }, cancelled},
		"after a failure":     {func(w *world) { w.settle().finishRun(runName(1, strategize, 0), failed).settle() }, cancelled},
		"after a skip":        {func(w *world) { w.settle().finishRun(runName(1, strategize, 0), skipped).settle() }, cancelled},
		"during a retry":      {func(w *world) { w.settle(); w.desired.RetryToken = "a"; w.settle() }, cancelled},
		"after it is applied": {func(w *world) {
			w.desired.Target = apply
			w.settle().finishRun(runName(1, strategize, 0), succeeded).settle()
		}, applied},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(gomega(t), pinnedAction(1))
			tc.before(w)
			w.desired.Cancelled = true
			w.settle().finishCancelledRuns()
			w.g.Expect(w.status.State).To(Equal(tc.want))
			w.g.Expect(w.liveRuns()).To(BeEmpty())
			w.g.Expect(w.status.FinishTime).NotTo(BeNil())
			w.desired.RetryToken, w.desired.RevertToken, w.desired.Target = "x", "x", apply
			w.settle()
			w.g.Expect(w.status.State).To(Equal(tc.want), "the state is final")
		})
	}
}

func TestOlderAttempt_RunIsCancelledAndIgnored(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1))
	w.settle().finishRun(runName(1, strategize, 0), failed).settle()
	w.desired.RetryToken = "a"
	w.settle().expectState(strategize, processing, 2)
	late := runName(1, strategize, 7) // created by a manager whose stale copy of the plan had only the first attempt
	w.runs[late] = Run{Name: late, UID: "late", Kept: true}
	step := w.next()
	w.g.Expect(step.Cancel).To(ConsistOf(late))
	w.act(&step)
	w.finishRun(late, succeeded)
	step = w.next()
	w.g.Expect(step.Release).To(ConsistOf(late))
	w.g.Expect(step.Events).To(ConsistOf(HaveField("Reason", v1alpha1.ReasonResultIgnored)))
	w.act(&step)
	w.settle().expectState(strategize, processing, 2)
}

func TestDuplicate_NeverStarts(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1))
	w.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonDuplicate, Duplicate: &v1alpha1.PlanReference{Name: "first", UID: "first"}}
	w.settle()
	w.g.Expect(w.condition(v1alpha1.ConditionConflict).Status).To(BeEquivalentTo("True"))
	w.desired.Blocked = nil
	w.settle()
	w.g.Expect(w.status.State).To(Equal(queued))
	w.g.Expect(w.runs).To(BeEmpty())
	w.g.Expect(w.condition(v1alpha1.ConditionStalled).Reason).To(Equal(v1alpha1.ReasonDuplicate))
}

func TestDuplicate_WaitsForOlderPlan(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1))
	w.desired.Blocked = &Blocked{Reason: v1alpha1.ReasonDuplicate, Message: "There is an older one."}
	w.settle()
	w.g.Expect(w.condition(v1alpha1.ConditionConflict).Status).To(BeEquivalentTo("True"))
	w.desired.Blocked = nil // the older plan no longer exists
	w.settle().expectState(strategize, processing, 1)
	w.g.Expect(w.condition(v1alpha1.ConditionConflict).Status).To(BeEquivalentTo("False"))
}

func TestRunName_TakenByOtherObjectIsConflict(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1))
	w.step(false)
	w.runs[runName(1, strategize, 0)] = Run{Name: runName(1, strategize, 0), Taken: true, Outcome: succeeded}
	w.settle().expectState(strategize, errored, 1)
	w.g.Expect(w.condition(v1alpha1.ConditionConflict).Status).To(BeEquivalentTo("True"))
	w.desired.RetryToken = "a"
	w.settle().expectState(strategize, processing, 2)
	w.g.Expect(w.condition(v1alpha1.ConditionConflict).Status).To(BeEquivalentTo("False"))
}

func TestExpires_AfterTTLOfFinishedPlan(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1))
	ttl := time.Hour
	w.desired.TTL = &ttl
	w.g.Expect(w.settle().next().Expires).To(BeZero())
	w.desired.Cancelled = true
	w.settle().finishCancelledRuns()
	w.now = w.now.Add(time.Minute)
	w.g.Expect(w.next().Expires).To(Equal(start.Add(time.Hour)))
}

// TestTable_RowsAreUnambiguous checks that each state, phase and signal matches at most one row, and that each row can be reached.
func TestTable_RowsAreUnambiguous(t *testing.T) {
	g := gomega(t)
	signals := []signal{begin, approve, succeed, fail, expire, skip, retry, resume, revert, refuse, cancel}
	for _, state := range []v1alpha1.PlanState{queued, processing, complete, applied, errored, constrained, cancelled} {
		for _, phase := range order {
			for _, on := range signals {
				matching := 0
				for _, r := range table {
					if r.on == on && slices.Contains(r.states, state) && (len(r.phases) == 0 || slices.Contains(r.phases, phase)) {
						matching++
					}
				}
				g.Expect(matching).To(BeNumerically("<=", 1), "%s %s on %s", state, phase, on)
				if state == cancelled {
					g.Expect(matching).To(BeZero(), "no row leaves Cancelled")
				}
			}
		}
	}
}

func TestPhaseTimeout_DoesNotChangeWithClock(t *testing.T) {
	for _, step := range elapsedtest.Steps {
		pinned := pinnedAction(1)
		pinned.Phases[0].TimeoutSeconds = 600
		w := newWorld(gomega(t), pinned)
		w.settle().expectState(strategize, processing, 1)
		wall := elapsedtest.New(w.now)
		clock := elapsed.New(wall)
		advance := func(d time.Duration) {
			wall.Step(d)
			w.now, w.desired.Timeline = clock.Read()
		}
		advance(5 * time.Minute)
		w.settle()
		wall.Set(step)
		advance(5*time.Minute - time.Millisecond)
		w.settle().expectState(strategize, processing, 1)
		w.g.Expect(w.next().Requeue).To(Equal(time.Millisecond), "step %s", step)
		advance(2 * time.Millisecond)
		w.settle().finishCancelledRuns()
		w.settle().expectState(strategize, errored, 1)
	}
}
