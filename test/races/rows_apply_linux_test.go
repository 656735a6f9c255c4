// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// maxPlanWrites is more writes than any plan of these rows needs.
const maxPlanWrites = 60

var _ = row("R31", "apply takes effect once per plan and attempt, no matter at which write a manager is killed", func(ctx context.Context) {
	createStrategies(ctx, "effect")
	action := newAction("act", nil, nil, []string{"effect"})
	Expect(k8s.Create(ctx, action)).To(Succeed())
	managers, restore := startExternalManager()
	kills := 0
	for _, before := range []bool{true, false} {
		for at, killed := 0, true; killed; at++ {
			Expect(at).To(BeNumerically("<", maxPlanWrites))
			p := newPlan(action, fmt.Sprintf("killed-%02d-%t", at, before), v1alpha1.PhaseApply)
			managers.killAt(at, before)
			Expect(k8s.Create(ctx, p)).To(Succeed())
			killed = managers.waitForAppliedOrRestart(ctx, p)
			if killed {
				kills++
			}
			last := expectPlan(ctx, p, v1alpha1.PhaseApply, v1alpha1.PlanApplied)
			Expect(last.Status.Attempt).To(Equal(int32(1)))
			Expect(executions()).To(HaveKeyWithValue(executionKey("effect", p, v1alpha1.PhaseApply, 1), 1), "takes effect once per plan and attempt: %s", p.Name)
			expectRunsCounted(ctx)
		}
	}
	Expect(kills).To(BeNumerically(">=", 12), "a plan, its run and its strategy take several writes, and each of them was tried")
	expectNoRepeatedExecution()
	clearPlans(ctx)
	restore()
})

// waitForAppliedOrRestart waits until a plan is applied or the manager was killed. After a kill it starts another manager.
func (o *externalManager) waitForAppliedOrRestart(ctx context.Context, p *v1alpha1.Plan) (killed bool) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		select {
		case <-o.killed:
			killed = true
			return
		default:
		}
		now, err := planNow(ctx, p)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(now.Status.State).To(Equal(v1alpha1.PlanApplied))
		// The manager may still be killed at one of the writes that release the runs.
		runs, err := runsOfPlan(ctx, p)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range runs {
			g.Expect(isReleased(&runs[i])).To(BeTrue(), "%s is released", runs[i].Name)
		}
	}).Should(Succeed(), "%s is applied, or its manager is killed", p.Name)
	if o.cancelKill() && !killed {
		Eventually(ctx, o.killed).Should(Receive(), "the manager is killed")
		killed = true
	}
	if killed {
		o.start()
	}
	return killed
}

// expectRunsCounted waits until all runs of the row are released, and checks that every finished run was counted once by its strategy.
func expectRunsCounted(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		var runs v1alpha1.StrategyRunList
		var strategies v1alpha1.StrategyList
		g.Expect(k8s.List(ctx, &runs, client.InNamespace(env.namespace))).To(Succeed())
		g.Expect(k8s.List(ctx, &strategies, client.InNamespace(env.namespace))).To(Succeed())
		want := map[string]v1alpha1.StrategyTotals{}
		for i := range runs.Items {
			r := &runs.Items[i]
			g.Expect(isReleased(r)).To(BeTrue(), "%s is released", r.Name)
			totals := want[r.Spec.StrategyRef.Name]
			*totalFor(&totals, r.Status.Outcome)++
			want[r.Spec.StrategyRef.Name] = totals
		}
		for i := range strategies.Items {
			s := &strategies.Items[i]
			g.Expect(s.Status.Totals).To(Equal(want[s.Name]), "every run is counted once: %s", s.Name)
		}
	}).Should(Succeed())
}

// isReleased reports whether a run is released: neither its plan nor its strategy needs the run any more.
func isReleased(r *v1alpha1.StrategyRun) bool {
	return !controllerutil.ContainsFinalizer(r, v1alpha1.FinalizerCount) && !controllerutil.ContainsFinalizer(r, v1alpha1.FinalizerPlan)
}

func totalFor(t *v1alpha1.StrategyTotals, outcome v1alpha1.RunOutcome) *int64 {
	switch outcome {
	case v1alpha1.OutcomeSucceeded:
		return &t.Succeeded
	case v1alpha1.OutcomeFailed:
		return &t.Failed
	case v1alpha1.OutcomeTimedOut:
		return &t.TimedOut
	case v1alpha1.OutcomeCancelled:
		return &t.Cancelled
	default:
		return &t.SkippedCircuitOpen
	}
}

var _ = row("R31-late", "apply takes effect once per plan and attempt, no matter which write of one of two leaders is late", func(ctx context.Context) {
	freezeAtEveryWrite(ctx, true)
})

var _ = row("R31-unaware", "apply takes effect once per plan and attempt, no matter which response one of two leaders receives late", func(ctx context.Context) {
	freezeAtEveryWrite(ctx, false)
})

// freezeAtEveryWrite freezes one leader at its first write for one plan, at its second write for the next plan, and so on, while a second leader
// completes the plan.
func freezeAtEveryWrite(ctx context.Context, before bool) {
	GinkgoHelper()
	createStrategies(ctx, "effect")
	action := newAction("act", nil, nil, []string{"effect"})
	Expect(k8s.Create(ctx, action)).To(Succeed())
	a, b, restore := startTwoLeaders()
	freezes := 0
	for frozen := true; frozen; {
		Expect(freezes).To(BeNumerically("<", maxPlanWrites))
		p := newPlan(action, fmt.Sprintf("frozen-%02d", freezes), v1alpha1.PhaseApply, "fail", "Apply-1")
		b.freeze(0, true)
		a.freeze(freezes, before)
		Expect(k8s.Create(ctx, p)).To(Succeed())
		if frozen = retryWithSecondLeader(ctx, p, a, b); frozen {
			freezes++
		}
		a.thaw() // the leader continues with a write that is out of date by now
		b.thaw()
		expectRunsCounted(ctx)
		last := expectPlan(ctx, p, v1alpha1.PhaseApply, v1alpha1.PlanApplied)
		Expect(last.Status.Attempt).To(Equal(int32(2)))
		expectLegalHistory(last)
		for attempt := range 2 {
			Expect(executions()).To(HaveKeyWithValue(executionKey("effect", p, v1alpha1.PhaseApply, attempt+1), 1), "takes effect once per plan and attempt: %s", p.Name)
		}
		runs, err := runsOfPlan(ctx, p)
		Expect(err).NotTo(HaveOccurred())
		Expect(runs).To(HaveLen(2), "a retry creates exactly one more run")
		GinkgoWriter.Printf("%s: %s\n", p.Name, planHistory(last))
	}
	Expect(freezes).To(BeNumerically(">=", 10), "a plan with a retry takes many writes, and each of them was tried")
	expectNoRepeatedExecution()
	clearPlans(ctx)
	restore()
}

// retryWithSecondLeader retries a plan once, and lets the second leader continue where the first leader freezes. It reports whether the first leader froze.
func retryWithSecondLeader(ctx context.Context, p *v1alpha1.Plan, a, b *writeBlocker) (frozen bool) {
	GinkgoHelper()
	asked := false
	Eventually(ctx, func(g Gomega) {
		if !frozen && a.frozen() {
			frozen = true
			b.thaw()
		}
		now, err := planNow(ctx, p)
		g.Expect(err).NotTo(HaveOccurred())
		if now.Status.State == v1alpha1.PlanErrored && !asked {
			g.Expect(patchObject(ctx, p, retryApplyPatch)).To(Succeed())
			asked = true
		}
		g.Expect(now.Status.State).To(Equal(v1alpha1.PlanApplied), "%s", describePlan(now))
		runs, err := runsOfPlan(ctx, p)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range runs {
			g.Expect(frozen || isReleased(&runs[i])).To(BeTrue(), "the first leader is done")
		}
	}).Should(Succeed(), "%s is applied", p.Name)
	return frozen
}

var _ = row("R31-many", "200 plans of 20 clients, some cancelled, reverted and retried, and a manager that is killed three times: every plan ends as requested and takes effect once", func(ctx context.Context) {
	const clients, each, parallel = 20, 10, 1
	createStrategies(ctx, "work-0", "work-1", "effect")
	action := newAction("act", nil, []string{"work-0", "work-1"}, []string{"effect"})
	action.Spec.MaxParallel = ptr.To[int32](parallel)
	Expect(k8s.Create(ctx, action)).To(Succeed())
	managers, restore := startExternalManager()
	seen := watchPlans(ctx)
	scenarios := make([]planScenario, clients*each)
	var working sync.WaitGroup
	errs := make(chan error, clients)
	for c := range clients {
		working.Go(func() {
			for n := range each {
				scenario := &scenarios[c*each+n]
				*scenario = planScenarios[(c+n)%len(planScenarios)]
				err := scenario.create(ctx, action, fmt.Sprintf("plan-%02d-%d", c, n))
				if err == nil {
					err = scenario.run(ctx, scenario)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for _, after := range []int{100, 250, 400} {
		Eventually(ctx, func() int {
			Expect(seen.mostAtOnce()).To(BeNumerically("<=", parallel), "at most maxParallel runs of one plan at once")
			return len(notes("starts", "")) + len(errs)*after
		}).
			WithTimeout(specTime).WithPolling(10*interval).Should(BeNumerically(">=", after), "runs keep starting")
		managers.kill()
		managers.start()
	}
	working.Wait()
	close(errs)
	for err := range errs {
		Expect(err).NotTo(HaveOccurred())
	}
	expectResults(ctx, scenarios)
	Expect(seen.mostAtOnce()).To(Equal(parallel), "at most maxParallel runs of one plan at once, and exactly maxParallel while enough runs are due")
	clearPlans(ctx)
	restore()
})

// expectResults checks the results against the files that the programs wrote.
func expectResults(ctx context.Context, scenarios []planScenario) {
	GinkgoHelper()
	expectRunsCounted(ctx)
	expectNoRepeatedExecution()
	times := executions()
	for i := range scenarios {
		scenario := &scenarios[i]
		last := expectPlan(ctx, scenario.plan, scenario.phase, scenario.state)
		Expect(last.Status.Attempt).To(Equal(scenario.attempt), "%s", describePlan(last))
		expectLegalHistory(last)
		for attempt := int32(1); attempt <= scenario.attempt; attempt++ {
			want := 0
			if scenario.effects > 0 && attempt >= scenario.effects {
				want = 1
			}
			Expect(times[executionKey("effect", scenario.plan, v1alpha1.PhaseApply, int(attempt))]).To(Equal(want), "attempt %d of %s takes effect once, or not at all", attempt, scenario.plan.Name)
		}
	}
	var runs v1alpha1.StrategyRunList
	Expect(k8s.List(ctx, &runs, client.InNamespace(env.namespace))).To(Succeed())
	uids, ran := map[types.UID]bool{}, 0
	for i := range runs.Items {
		uids[runs.Items[i].UID] = true
		if outcome := runs.Items[i].Status.Outcome; outcome == v1alpha1.OutcomeSucceeded || outcome == v1alpha1.OutcomeFailed {
			ran++
		}
	}
	Expect(len(times)).To(BeNumerically(">=", ran), "every run that ended by itself was executed")
	Expect(len(times)).To(BeNumerically("<=", len(uids)), "nothing was executed without a run")
}
