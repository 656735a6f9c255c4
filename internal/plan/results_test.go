// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// finishRunWithResult sets the outcome and the result of a live run.
func (w *world) finishRunWithResult(name string, outcome v1alpha1.RunOutcome, result *v1alpha1.RunResult) *world {
	w.finishRun(name, outcome)
	run := w.runs[name]
	run.Result = result
	w.runs[name] = run
	return w
}

func TestResults_OfEarlierPhasesAreInputs(t *testing.T) {
	pinned := pinnedAction(1, 2, 1)
	pinned.Phases[1].Strategies[1].Program = "fingerprint"
	pinned.Phases[1].Needed = 1
	w := newWorld(gomega(t), pinned)
	w.settle()
	long := &v1alpha1.RunResult{Summary: strings.Repeat("long ", 200), File: "/1/result", SHA256: "abc", Size: 1000, Artifacts: "/1/artifacts"}
	w.finishRunWithResult(runName(1, strategize, 0), succeeded, long).settle().expectState(strategize, complete, 1)
	w.g.Expect(w.status.Results).To(HaveLen(1))
	kept := w.status.Results[0].Result
	w.g.Expect(len(kept.Summary)).To(BeNumerically("<=", 256))
	w.g.Expect(kept.Summary).To(HaveSuffix("…"))
	w.g.Expect(kept.File).To(Equal("/1/result"))
	w.g.Expect(long.Summary).To(HaveLen(1000), "the summary of the run itself is not truncated")

	w.desired.Target = execute
	step := w.next()
	w.g.Expect(step.Create).To(HaveLen(2))
	for _, request := range step.Create {
		w.g.Expect(request.Inputs).To(Equal(w.status.Results))
	}
	w.g.Expect(step.Create[0].Program).To(BeEmpty(), "a plan that was pinned before programs were recorded has none")
	w.g.Expect(step.Create[1].Program).To(Equal("fingerprint"))

	w.settle().finishRunWithResult(runName(1, execute, 0), failed, &v1alpha1.RunResult{Summary: "half of it"}).settle()
	w.finishRun(runName(1, execute, 1), succeeded).settle().expectState(execute, complete, 1)
	w.desired.Target = apply
	step = w.next()
	w.g.Expect(step.Create).To(HaveLen(1))
	inputs := step.Create[0].Inputs
	w.g.Expect(inputs).To(HaveLen(3), "the results of both phases, regardless of the outcomes")
	w.g.Expect(inputs[1].Outcome).To(Equal(failed))
	w.g.Expect(inputs[1].Result.Summary).To(Equal("half of it"))
	w.g.Expect(inputs[2].Result).To(BeNil())
}

func TestResults_AreThoseOfLastAttempt(t *testing.T) {
	w := newWorld(gomega(t), pinnedAction(1, 1))
	w.desired.Target = execute
	w.settle().finishRunWithResult(runName(1, strategize, 0), succeeded, &v1alpha1.RunResult{Summary: "found"}).settle()
	w.finishRunWithResult(runName(1, execute, 0), failed, &v1alpha1.RunResult{Summary: "no"}).settle().expectState(execute, errored, 1)
	w.desired.RetryToken = "again"
	step := w.next()
	w.g.Expect(step.Create).To(HaveLen(1))
	w.g.Expect(step.Create[0].Inputs).To(HaveLen(1), "an earlier result of the same phase is not an input")
	w.g.Expect(step.Create[0].Inputs[0].Result.Summary).To(Equal("found"))
	w.settle().finishRunWithResult(runName(2, execute, 0), failed, &v1alpha1.RunResult{Summary: "still not"}).settle().expectState(execute, errored, 2)
	w.g.Expect(w.status.Results).To(HaveLen(2))
	w.g.Expect(w.status.Results[1].Result.Summary).To(Equal("still not"))
	w.desired.RevertToken = "from the beginning"
	step = w.next()
	w.g.Expect(step.Create[0].Inputs).To(BeEmpty())
}

func TestPin_RecordsPrograms(t *testing.T) {
	g := gomega(t)
	strategy := &v1alpha1.Strategy{}
	strategy.Name, strategy.UID, strategy.Generation = "build", "uid", 3
	strategy.Spec.Process.Command = []string{"make"}
	action := &v1alpha1.Action{Spec: v1alpha1.ActionSpec{Execute: &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "build"}}}}}
	pinned, blocked := Pin(action, map[string]*v1alpha1.Strategy{"build": strategy}, nil)
	g.Expect(blocked).To(BeNil())
	program := Program(strategy)
	g.Expect(program).To(MatchRegexp("^[0-9a-f]{32}$"))
	g.Expect(pinned.Phases[0].Strategies).To(Equal([]v1alpha1.StrategyReference{{Name: "build", UID: "uid", Generation: 3, Program: program}}))
	strategy.Spec.ResetToken, strategy.Generation = "mended", 4
	g.Expect(Program(strategy)).To(Equal(program), "a reset does not change the program")
	strategy.Spec.Process.Command = []string{"make", "all"}
	g.Expect(Program(strategy)).NotTo(Equal(program))
}
