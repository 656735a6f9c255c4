// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// lintStrategy returns a strategy with an open breaker in the namespace.
func lintStrategy(namespace, name string) *v1alpha1.Strategy {
	s := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	s.Spec.Process.Command = []string{"lint"}
	s.Status.Totals = v1alpha1.StrategyTotals{Succeeded: 4, Failed: 2, TimedOut: 1, SkippedCircuitOpen: 1}
	s.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCircuitOpen, Message: "3 failures: runs are skipped.",
	}}
	return s
}

// lintRun returns a run of lint with the outcome; a run without an outcome has not ended.
func lintRun(name string, outcome v1alpha1.RunOutcome) *v1alpha1.StrategyRun {
	r := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	r.Spec.StrategyRef.Name = "lint"
	setOutcome(r, outcome)
	return r
}

func setOutcome(r *v1alpha1.StrategyRun, outcome v1alpha1.RunOutcome) {
	if r.Status.Outcome = outcome; outcome == "" {
		return
	}
	now := metav1.NowMicro()
	r.Status.FinishTime = &now
	status := metav1.ConditionFalse
	if outcome == v1alpha1.OutcomeSucceeded {
		status = metav1.ConditionTrue
	}
	r.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: status, Reason: string(outcome), Message: "The run ended with exit code 3.",
	}}
}

func TestStrategyCommands_ExitCodeAndOutput(t *testing.T) {
	for name, test := range map[string]struct {
		args     string
		code     int
		out, err []string
	}{
		"status":                         {args: "status", out: []string{"strategy/lint", "CircuitOpen", "4 succeeded, 3 failed, 1 skipped", "strategyrun/bad", "strategy/lint: 3 failures"}},
		"status of one":                  {args: "status strategies/lint", out: []string{"strategy/lint"}},
		"status, no such strategy":       {args: "status strategies/nope", code: 3, err: []string{"strategy/nope does not exist"}},
		"status of runs":                 {args: "status srun", out: []string{"strategyrun/bad     False     Failed    strategy/lint", "strategyrun/going"}},
		"run":                            {args: "run lint --arg go-version=1.26 --arg x=a=b", out: []string{"strategyrun/lint-", "created"}},
		"run, no such strategy":          {args: "run nope", code: 3, err: []string{"strategy/nope does not exist in namespace \"default\"", "berth status strategies"}},
		"run, not an argument":           {args: "run lint --arg x", code: 1, err: []string{"NAME=VALUE"}},
		"run, an argument twice":         {args: "run lint --arg x=1 --arg x=2", code: 1, err: []string{"set twice"}},
		"run without a strategy":         {args: "run", code: 2, err: []string{"accepts 1 arg", "berth run STRATEGY"}},
		"reset one":                      {args: "reset strategies lint", out: []string{"strategy/lint reset requested"}},
		"reset several":                  {args: "reset strategy nope lint", code: 3, out: []string{"strategy/lint reset requested"}, err: []string{"strategy/nope does not exist"}},
		"reset all":                      {args: "reset strategies --all", out: []string{"strategy/lint reset requested", "strategy/test reset requested"}},
		"reset all of all namespaces":    {args: "reset strategies --all -A", out: []string{"strategy/lint reset requested", "strategy/far reset requested"}},
		"reset all, none found":          {args: "reset strategies --all -n empty", err: []string{"no strategies found"}},
		"reset without a name":           {args: "reset strategies", code: 1, err: []string{"--all"}},
		"reset a name and --all":         {args: "reset strategies lint --all", code: 1, err: []string{"--all"}},
		"reset a kind without a breaker": {args: "reset devservers web", code: 1, err: []string{"berth reset strategies NAME"}},
		"cancel":                         {args: "stop strategyrun/going", out: []string{"strategyrun/going cancellation requested"}},
		"cancel a finished run":          {args: "stop strategyrun/bad", out: []string{"strategyrun/bad has already ended: Failed"}},
		"cancel, no such run":            {args: "stop strategyrun/nope", code: 3, err: []string{"strategyrun/nope does not exist"}},
		"start again":                    {args: "start strategyrun/bad", code: 1, err: []string{"executed once", "berth run STRATEGY"}},
		"restart":                        {args: "restart strategyrun/bad", code: 1, err: []string{"executed once"}},
		"stop a strategy":                {args: "stop strategy/lint", code: 1, err: []string{"unknown kind"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(lintStrategy("default", "lint"), lintStrategy("default", "test"), lintStrategy("other", "far"), lintRun("bad", v1alpha1.OutcomeFailed), lintRun("going", ""))
			g.Expect(f.run(t.Context(), strings.Fields(test.args)...)).To(Equal(test.code), f.err.String())
			for _, text := range test.out {
				g.Expect(f.out.String()).To(ContainSubstring(text))
			}
			for _, text := range test.err {
				g.Expect(f.err.String()).To(ContainSubstring(text))
			}
		})
	}
}

func TestRun_CreatesRunWithArguments(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(lintStrategy("default", "lint"))
	g.Expect(f.run(t.Context(), "run", "lint", "--arg", "dir=/a b; rm", "--arg", "x=")).To(BeZero())
	run := onlyRun(g, f)
	g.Expect(run.Spec.StrategyRef.Name).To(Equal("lint"))
	g.Expect(run.Spec.Arguments).To(Equal([]v1alpha1.RunArgument{{Name: "dir", Value: "/a b; rm"}, {Name: "x"}}))
	g.Expect(run.Finalizers).To(ConsistOf(v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount))

	f = newFixture(lintStrategy("default", "lint"))
	g.Expect(f.run(t.Context(), "run", "lint", "-o", "jsonpath={.kind}/{.metadata.name}")).To(BeZero())
	g.Expect(f.out.String()).To(Equal("StrategyRun/" + onlyRun(g, f).Name))
}

func TestRun_WaitReportsOutcome(t *testing.T) {
	for outcome, test := range map[v1alpha1.RunOutcome]struct {
		code int
		says string
	}{
		v1alpha1.OutcomeSucceeded: {says: "succeeded"},
		v1alpha1.OutcomeFailed:    {code: 1, says: "Failed: The run ended with exit code 3. To see its output, run: berth logs strategyrun/"},
	} {
		t.Run(string(outcome), func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(lintStrategy("default", "lint"))
			code := make(chan int, 1)
			go func() { code <- f.run(t.Context(), "run", "lint", "--wait") }()
			g.Eventually(f.out.String, timeout).Should(ContainSubstring("created"))
			run := onlyRun(g, f)
			setOutcome(run, outcome)
			g.Expect(f.api.Status().Update(t.Context(), run)).To(Succeed())
			g.Eventually(code, timeout).Should(Receive(Equal(test.code)))
			g.Expect(f.out.String() + f.err.String()).To(ContainSubstring(test.says))
		})
	}
}

func TestRun_WaitTimesOut(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(lintStrategy("default", "lint"))
	g.Expect(f.run(t.Context(), "run", "lint", "--wait", "--timeout=300ms")).To(Equal(exitTimeout))
	g.Expect(f.err.String()).To(ContainSubstring("has not ended after 300ms and continues to run"))
}

func TestReset_EachRequestSetsNewToken(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(lintStrategy("default", "lint"))
	tokens := map[string]bool{}
	for range 3 {
		g.Expect(f.run(t.Context(), "reset", "strategies", "--all")).To(BeZero())
		s := &v1alpha1.Strategy{}
		g.Expect(f.api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "lint"}, s)).To(Succeed())
		tokens[s.Spec.ResetToken] = true
	}
	g.Expect(tokens).To(HaveLen(3))
}

func TestStatus_ListsOldRunsOnlyOnRequest(t *testing.T) {
	g := NewWithT(t)
	objects := []client.Object{lintRun("going", "")}
	for i := range 3 * recentRuns {
		r := lintRun(fmt.Sprintf("run-%02d", i), v1alpha1.OutcomeSucceeded)
		finished := metav1.NewMicroTime(time.Unix(int64(1_700_000_000+i), 0))
		r.Status.FinishTime = &finished
		objects = append(objects, r)
	}
	f := newFixture(objects...)
	g.Expect(f.run(t.Context(), "status")).To(BeZero())
	g.Expect(strings.Count(f.out.String(), "strategyrun/")).To(Equal(1 + recentRuns))
	g.Expect(f.out.String()).To(And(ContainSubstring("strategyrun/going"), ContainSubstring("run-29"), Not(ContainSubstring("run-19"))))
	f = newFixture(objects...)
	g.Expect(f.run(t.Context(), "status", "strategyruns")).To(BeZero())
	g.Expect(strings.Count(f.out.String(), "strategyrun/")).To(Equal(1 + 3*recentRuns))
}

func onlyRun(g Gomega, f *fixture) *v1alpha1.StrategyRun {
	list := &v1alpha1.StrategyRunList{}
	g.Expect(f.api.List(context.Background(), list)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	return &list.Items[0]
}
