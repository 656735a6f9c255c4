// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

var _ = Describe("the result of a StrategyRun", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) {
		namespace = newNamespace(ctx)
		DeferCleanup(func(ctx context.Context) { // delete the plans before newNamespace's cleanup deletes the runs: plans create new runs
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.Plan{}, client.InNamespace(namespace))).To(Succeed())
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.Action{}, client.InNamespace(namespace))).To(Succeed())
		})
	})
	newStrategy := func(ctx context.Context, name string, command ...string) *v1alpha1.Strategy {
		strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		strategy.Spec.Process.Command = command
		Expect(k8s.Create(ctx, strategy)).To(Succeed())
		return strategy
	}
	setCommand := func(ctx context.Context, strategy *v1alpha1.Strategy, command ...string) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(strategy), strategy)).To(Succeed())
			strategy.Spec.Process.Command = command
			g.Expect(k8s.Update(ctx, strategy)).To(Succeed())
		}).Should(Succeed())
	}
	newRun := func(ctx context.Context, strategy string) *v1alpha1.StrategyRun {
		run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-" + strategy}}
		run.Spec.StrategyRef.Name = strategy
		Expect(k8s.Create(ctx, run)).To(Succeed())
		return run
	}
	waitForProcess := func(ctx context.Context, run *v1alpha1.StrategyRun) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			get(ctx, g, run)
			g.Expect(run.Status.Process).NotTo(BeNil())
		}).Should(Succeed())
	}
	waitForOutcome := func(ctx context.Context, run *v1alpha1.StrategyRun, outcome v1alpha1.RunOutcome) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			get(ctx, g, run)
			g.Expect(run.Status.Outcome).To(Equal(outcome))
		}).Should(Succeed())
	}

	It("is written together with the outcome, by reference, and the start time is kept", func(ctx context.Context) {
		newStrategy(ctx, "lint", "lint", "--report", "$(BERTH_ARTIFACTS)/report")
		seen := follow(ctx, &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-lint"}}, &v1alpha1.StrategyRunList{})
		run := newRun(ctx, "lint")
		waitForProcess(ctx, run)
		started := run.Status.StartTime
		Expect(started).To(Equal(run.Status.Process.StartTime))
		process, _ := rt.Process(run.UID)
		place := rt.Place(run.UID)
		Expect(process.Results).To(BeTrue())
		Expect(process.Env).To(ContainElements("BERTH_RESULT_FILE="+place.File, "BERTH_ARTIFACTS="+place.Artifacts))
		Expect(process.Command[2]).To(Equal(place.Artifacts + "/report"))

		rt.Leave(run.UID, runtime.Results{File: true, Size: 12, SHA256: "abc", Head: []byte("2 findings.\n"), Artifacts: true})
		rt.Exit(run.UID, facts.Exit{Known: true})
		waitForOutcome(ctx, run, v1alpha1.OutcomeSucceeded)
		Expect(run.Status.Result).To(Equal(&v1alpha1.RunResult{
			Summary: "2 findings.", File: place.File, Size: 12, SHA256: "abc", Artifacts: place.Artifacts,
		}))
		Expect(run.Status.Process).To(BeNil())
		Expect(run.Status.StartTime).To(Equal(started))
		seen.stop()
		for _, object := range seen.states {
			state := object.(*v1alpha1.StrategyRun)
			Expect(state.Status.Result != nil).To(Equal(state.Status.Outcome != ""), "result and outcome are one write")
		}
		Expect(k8s.Delete(ctx, run)).To(Succeed())
		waitUntilGone(ctx, run)
		Expect(rt.Results(run.UID)).To(Equal(runtime.Results{}))
	})

	It("includes the start time of a program that exited before the first check", func(ctx context.Context) {
		command := "quick-in-" + namespace
		rt.Program(command, fake.Program{Exit: &facts.Exit{Known: true, Code: 1}})
		newStrategy(ctx, "quick", command)
		run := newRun(ctx, "quick")
		waitForOutcome(ctx, run, v1alpha1.OutcomeFailed)
		Expect(run.Status.StartTime).NotTo(BeNil())
		Expect(run.Status.Result).To(BeNil(), "the program left no result")
	})

	It("is passed to the later phases of a plan, whose strategies must match the pinned ones", func(ctx context.Context) {
		newStrategy(ctx, "search", "search")
		publish := newStrategy(ctx, "publish", "publish")
		action := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "release"}}
		action.Spec.Strategize = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "search"}}}
		action.Spec.Apply = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "publish"}}}
		Expect(k8s.Create(ctx, action)).To(Succeed())
		plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "first"}}
		plan.Spec.ActionRef.Name = "release"
		Expect(k8s.Create(ctx, plan)).To(Succeed())
		waitForPlan := func(phase v1alpha1.PlanPhase, state v1alpha1.PlanState) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
				g.Expect(plan.Status.CurrentPhase).To(Equal(phase))
				g.Expect(plan.Status.State).To(Equal(state))
			}).Should(Succeed())
		}
		runOfPhase := func(phase string) *v1alpha1.StrategyRun {
			return &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%.8s-1-%s-0", plan.Name, plan.UID, phase)}}
		}
		search := runOfPhase("strategize")
		waitForProcess(ctx, search)
		rt.Leave(search.UID, runtime.Results{File: true, Size: 7, SHA256: "abc", Head: []byte("3 hits.")})
		rt.Exit(search.UID, facts.Exit{Known: true})
		waitForPlan(v1alpha1.PhaseStrategize, v1alpha1.PlanComplete)
		want := &v1alpha1.RunResult{Summary: "3 hits.", File: rt.Place(search.UID).File, Size: 7, SHA256: "abc"}
		Expect(plan.Status.Runs[0].Result).To(Equal(want))
		Expect(plan.Status.Results).To(HaveLen(1))
		Expect(plan.Status.Results[0].Result).To(Equal(want))

		By("waiting while the program of a strategy differs from the pinned one")
		setCommand(ctx, publish, "publish", "--everywhere")
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			plan.Spec.Approval = &v1alpha1.PlanApproval{Phase: v1alpha1.PhaseExecute, Attempt: 1, ToPhase: v1alpha1.PhaseApply}
			g.Expect(k8s.Update(ctx, plan)).To(Succeed())
		}).Should(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			g.Expect(plan.Status.Waiting).To(Equal("for 1 of 1 runs: publish StrategyChanged"))
		}).Should(Succeed())
		applies := runOfPhase("apply")
		get(ctx, Default, applies)
		Expect(applies.Spec.Inputs).To(Equal(plan.Status.Results))
		stalled := meta.FindStatusCondition(applies.Status.Conditions, v1alpha1.ConditionStalled)
		Expect(stalled.Message).To(ContainSubstring("The program of strategy publish has changed since the plan of this run started"))
		Expect(rt.Count(applies.UID, "Start")).To(BeZero(), "the changed program is not approved")

		By("continuing when the program is restored")
		setCommand(ctx, publish, "publish")
		waitForProcess(ctx, applies)
		process, _ := rt.Process(applies.UID)
		Expect(process.Command).To(Equal([]string{"publish"}))
		Expect(process.Env).To(ContainElement("BERTH_RESULTS_STRATEGIZE=" + rt.Place(applies.UID).Inputs + "/strategize.jsonl"))
		Expect(string(process.Inputs["strategize.jsonl"])).To(ContainSubstring(`"result":{"summary":"3 hits.","file":"` + want.File))
		rt.Exit(applies.UID, facts.Exit{Known: true})
		waitForPlan(v1alpha1.PhaseApply, v1alpha1.PlanApplied)
	})
})
