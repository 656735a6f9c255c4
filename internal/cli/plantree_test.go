// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// newPlanRun returns a run of the plan check.
func newPlanRun(name, strategy string, phase v1alpha1.PlanPhase, attempt string, took time.Duration, outcome v1alpha1.RunOutcome) *v1alpha1.StrategyRun {
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, Labels: map[string]string{v1alpha1.LabelPlan: "check"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Plan", Name: "check", UID: "uid-check", Controller: ptr.To(true)}},
	}}
	run.Spec.StrategyRef.Name = strategy
	run.Spec.Arguments = []v1alpha1.RunArgument{{Name: "phase", Value: string(phase)}, {Name: "attempt", Value: attempt}}
	run.Status.Process = &v1alpha1.ProcessReference{StartTime: ptr.To(metav1.NewMicroTime(noon))}
	if run.Status.Outcome = outcome; outcome != "" {
		run.Status.FinishTime = ptr.To(metav1.NewMicroTime(noon.Add(took)))
	}
	return run
}

func historyEntry(phase v1alpha1.PlanPhase, state v1alpha1.PlanState, after time.Duration) v1alpha1.PlanHistoryEntry {
	return v1alpha1.PlanHistoryEntry{Time: metav1.NewMicroTime(noon.Add(after)), Phase: phase, State: state}
}

// erroredPlan returns a plan whose second phase failed in the second attempt.
func erroredPlan() (*v1alpha1.Plan, []v1alpha1.StrategyRun) {
	plan := newPlan(inState(v1alpha1.PhaseExecute, v1alpha1.PlanErrored))
	s := &plan.Status
	s.Attempt, s.Waiting = 2, "for a retry or a revert"
	s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: "PhaseFailed", Message: "Execute failed:\x1b[31m test Failed."}}
	s.History = []v1alpha1.PlanHistoryEntry{
		historyEntry(v1alpha1.PhaseStrategize, v1alpha1.PlanProcessing, 0), historyEntry(v1alpha1.PhaseStrategize, v1alpha1.PlanComplete, 1500*time.Millisecond),
		historyEntry(v1alpha1.PhaseExecute, v1alpha1.PlanProcessing, 2*time.Second), historyEntry(v1alpha1.PhaseExecute, v1alpha1.PlanErrored, 9*time.Second),
		historyEntry(v1alpha1.PhaseExecute, v1alpha1.PlanProcessing, time.Minute), historyEntry(v1alpha1.PhaseExecute, v1alpha1.PlanErrored, 4*time.Minute),
	}
	s.Results = []v1alpha1.PlanResult{
		{Run: "check-1-strategize-0", Strategy: "list", Phase: v1alpha1.PhaseStrategize, Attempt: 1, Outcome: v1alpha1.OutcomeSucceeded},
	}
	s.Runs = []v1alpha1.PlanRun{
		{Name: "check-2-execute-0", Strategy: "search", Outcome: v1alpha1.OutcomeSucceeded},
		{Name: "check-2-execute-1", Strategy: "test", Outcome: v1alpha1.OutcomeFailed, Message: "The run ended with exit code 1."},
	}
	runs := []v1alpha1.StrategyRun{
		// The run of Strategize has been deleted; its duration is unknown.
		*newPlanRun("check-1-execute-0", "search", v1alpha1.PhaseExecute, "1", time.Second, v1alpha1.OutcomeSucceeded),
		*newPlanRun("check-1-execute-1", "test", v1alpha1.PhaseExecute, "1", 7*time.Second, v1alpha1.OutcomeTimedOut),
		*newPlanRun("check-2-execute-0", "search", v1alpha1.PhaseExecute, "2", 1234*time.Millisecond, v1alpha1.OutcomeSucceeded),
		*newPlanRun("check-2-execute-1", "test", v1alpha1.PhaseExecute, "2", 170*time.Second, v1alpha1.OutcomeFailed),
	}
	return plan, runs
}

func TestTree_ShowsPhasesAttemptsAndRuns(t *testing.T) {
	g := NewWithT(t)
	plan, runs := erroredPlan()
	g.Expect("\n" + strings.Join(newTree(plan, runs).lines(noon.Add(time.Hour)), "\n") + "\n").To(Equal(`
plan/check   action check-module: Execute Errored (attempt 2) waiting for a retry or a revert
  PhaseFailed: Execute failed: test Failed.
  to run Execute again: berth plan retry check --attempt 2 --phase execute --uid uid-chec; to start over: berth plan revert check --attempt 2 --phase execute --uid uid-chec
├─ Strategize     Complete    1.5s
│  └─ attempt 1
│     └─ list     Succeeded
├─ Execute        Errored     3m
│  ├─ attempt 1
│  │  ├─ search   Succeeded   1s
│  │  └─ test     TimedOut    7s      berth logs strategyrun/check-1-execute-1
│  └─ attempt 2
│     ├─ search   Succeeded   1.2s
│     └─ test     Failed      2m50s   The run ended with exit code 1: berth logs strategyrun/check-2-execute-1
└─ Apply
   └─ report
`))
}

func TestTree_ShowsRunningPhase(t *testing.T) {
	g := NewWithT(t)
	plan := newPlan(inState(v1alpha1.PhaseExecute, v1alpha1.PlanProcessing))
	plan.Status.Waiting = "for 1 of 2 runs"
	plan.Status.History = []v1alpha1.PlanHistoryEntry{historyEntry(v1alpha1.PhaseExecute, v1alpha1.PlanProcessing, 0)}
	plan.Status.Runs = []v1alpha1.PlanRun{{Name: "check-1-execute-0", Strategy: "search", Outcome: v1alpha1.OutcomeSucceeded}, {Name: "check-1-execute-1", Strategy: "test"}}
	ended := newPlanRun("check-1-execute-0", "search", v1alpha1.PhaseExecute, "1", 3*time.Second, v1alpha1.OutcomeSucceeded)
	ended.Status.Process, ended.CreationTimestamp = nil, metav1.NewTime(noon)
	runs := []v1alpha1.StrategyRun{*ended, *newPlanRun("check-1-execute-1", "test", v1alpha1.PhaseExecute, "1", 0, "")}
	g.Expect("\n" + strings.Join(newTree(plan, runs).lines(noon.Add(5*time.Second)), "\n") + "\n").To(Equal(`
plan/check   action check-module: Execute Processing waiting for 1 of 2 runs
├─ Strategize   Complete
│  └─ list
├─ Execute      Processing   5s
│  ├─ search    Succeeded    3s
│  └─ test      Running      5s
└─ Apply
   └─ report
`))
}

// The tree shows the result of a run beside it, on one line, also after the run has been deleted.
func TestTree_ShowsResultsOnOneLine(t *testing.T) {
	g := NewWithT(t)
	plan, runs := erroredPlan()
	s := &plan.Status
	s.Results[0].Result = &v1alpha1.RunResult{Summary: "12 files\x1b[31m."}
	s.Runs[0].Result = &v1alpha1.RunResult{Problem: "The result file is too large."}
	s.Runs[1].Result = &v1alpha1.RunResult{Summary: strings.Repeat("long ", 40)}
	runs[0].Status.Result = &v1alpha1.RunResult{Summary: "3 findings."}
	for i := range runs {
		runs[i].Status.StartTime, runs[i].Status.Process = runs[i].Status.Process.StartTime, nil
	}
	text := strings.Join(newTree(plan, runs).lines(noon.Add(time.Hour)), "\n")
	g.Expect(text).To(MatchRegexp(`list +Succeeded +12 files\.`))
	g.Expect(text).To(MatchRegexp(`search +Succeeded +1s +3 findings\.`))
	g.Expect(text).To(MatchRegexp(`search +Succeeded +1\.2s +The result file is too large\.`))
	g.Expect(text).To(MatchRegexp(`test +Failed +2m50s +The run ended with exit code 1: (long ){15}long…: berth logs strategyrun/check-2-execute-1`))
	g.Expect(text).NotTo(ContainSubstring("\x1b"))
}

func TestTree_QueuedPlanIsOneLine(t *testing.T) {
	g := NewWithT(t)
	plan := newPlan(inState("", v1alpha1.PlanQueued))
	plan.Status.Pinned, plan.Status.Waiting = nil, "for action check-module"
	g.Expect(newTree(plan, nil).lines(noon)).To(Equal([]string{"plan/check   action check-module: Queued waiting for action check-module"}))
}

// The line-by-line output reports each change once.
func TestTree_LineOutputReportsEachChangeOnce(t *testing.T) {
	g := NewWithT(t)
	out := &output{}
	board := newBoard(out, false)
	plan, runs := erroredPlan()
	newTree(plan, runs).tell(board, noon)
	newTree(plan, runs).tell(board, noon.Add(time.Second))
	g.Expect(strings.Count(out.String(), "\n")).To(Equal(6), out.String())
	g.Expect(out.String()).To(ContainSubstring("12:00:00 attempt 2: Execute test Failed (The run ended with exit code 1: berth logs strategyrun/check-2-execute-1)"))
	g.Expect(out.String()).NotTo(ContainSubstring("\x1b"))
}
