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

// mostWrites is more writes than any plan of these rows needs.
const mostWrites = 60

var _ = row("R31", "apply takes effect once per plan and attempt, no matter at which write a manager is killed", func(ctx context.Context) {
	createStrategies(ctx, "effect")
	action := newAction("act", nil, nil, []string{"effect"})
	Expect(k8s.Create(ctx, action)).To(Succeed())
	managers, back := outdoors()
	kills := 0
	for _, before := range []bool{true, false} {
		for at, killed := 0, true; killed; at++ {
			Expect(at).To(BeNumerically("<", mostWrites))
			p := newPlan(action, fmt.Sprintf("killed-%02d-%t", at, before), v1alpha1.PhaseApply)
			managers.die(at, before)
			Expect(k8s.Create(ctx, p)).To(Succeed())
			killed = managers.revive(ctx, p)
			if killed {
				kills++
			}
			last := mustStand(ctx, p, v1alpha1.PhaseApply, v1alpha1.PlanApplied)
			Expect(last.Status.Attempt).To(Equal(int32(1)))
			Expect(executions()).To(HaveKeyWithValue(executed("effect", p, v1alpha1.PhaseApply, 1), 1), "takes effect once per plan and attempt: %s", p.Name)
			counted(ctx)
		}
	}
	Expect(kills).To(BeNumerically(">=", 12), "a plan, its run and its strategy take several writes, and each of them was tried")
	neverTwice()
	clearPlans(ctx)
	back()
})

// revive waits until a plan is applied or the manager was killed. After a kill it starts another manager.
func (o *externalManager) revive(ctx context.Context, p *v1alpha1.Plan) (killed bool) {
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
		runs, err := theirs(ctx, p)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range runs {
			g.Expect(letGo(&runs[i])).To(BeTrue(), "%s is released", runs[i].Name)
		}
	}).Should(Succeed(), "%s is applied, or its manager is killed", p.Name)
	if o.spare() && !killed {
		Eventually(ctx, o.killed).Should(Receive(), "the manager is killed")
		killed = true
	}
	if killed {
		o.start()
	}
	return killed
}

// counted waits until all runs of the row are released, and checks that every finished run was counted once by its strategy.
func counted(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		var runs v1alpha1.StrategyRunList
		var strategies v1alpha1.StrategyList
		g.Expect(k8s.List(ctx, &runs, client.InNamespace(env.namespace))).To(Succeed())
		g.Expect(k8s.List(ctx, &strategies, client.InNamespace(env.namespace))).To(Succeed())
		want := map[string]v1alpha1.StrategyTotals{}
		for i := range runs.Items {
			r := &runs.Items[i]
			g.Expect(letGo(r)).To(BeTrue(), "%s is released", r.Name)
			totals := want[r.Spec.StrategyRef.Name]
			*tally(&totals, r.Status.Outcome)++
			want[r.Spec.StrategyRef.Name] = totals
		}
		for i := range strategies.Items {
			s := &strategies.Items[i]
			g.Expect(s.Status.Totals).To(Equal(want[s.Name]), "every run is counted once: %s", s.Name)
		}
	}).Should(Succeed())
}

// letGo reports whether a run is released: neither its plan nor its strategy needs the run any more.
func letGo(r *v1alpha1.StrategyRun) bool {
	return !controllerutil.ContainsFinalizer(r, v1alpha1.FinalizerCount) && !controllerutil.ContainsFinalizer(r, v1alpha1.FinalizerPlan)
}

func tally(t *v1alpha1.StrategyTotals, outcome v1alpha1.RunOutcome) *int64 {
	switch outcome {
	case v1alpha1.RunSucceeded:
		return &t.Succeeded
	case v1alpha1.RunFailed:
		return &t.Failed
	case v1alpha1.RunTimedOut:
		return &t.TimedOut
	case v1alpha1.RunWasCancelled:
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
	a, b, back := twoLeaders()
	freezes := 0
	for frozen := true; frozen; {
		Expect(freezes).To(BeNumerically("<", mostWrites))
		p := newPlan(action, fmt.Sprintf("frozen-%02d", freezes), v1alpha1.PhaseApply, "fail", "Apply-1")
		b.freeze(0, true)
		a.freeze(freezes, before)
		Expect(k8s.Create(ctx, p)).To(Succeed())
		if frozen = carriedOut(ctx, p, a, b); frozen {
			freezes++
		}
		a.thaw() // the leader continues with a write that is out of date by now
		b.thaw()
		counted(ctx)
		last := mustStand(ctx, p, v1alpha1.PhaseApply, v1alpha1.PlanApplied)
		Expect(last.Status.Attempt).To(Equal(int32(2)))
		orderly(last)
		for attempt := range 2 {
			Expect(executions()).To(HaveKeyWithValue(executed("effect", p, v1alpha1.PhaseApply, attempt+1), 1), "takes effect once per plan and attempt: %s", p.Name)
		}
		runs, err := theirs(ctx, p)
		Expect(err).NotTo(HaveOccurred())
		Expect(runs).To(HaveLen(2), "a retry creates exactly one more run")
		GinkgoWriter.Printf("%s: %s\n", p.Name, story(last))
	}
	Expect(freezes).To(BeNumerically(">=", 10), "a plan with a retry takes many writes, and each of them was tried")
	neverTwice()
	clearPlans(ctx)
	back()
}

// carriedOut retries a plan once, and lets the second leader continue where the first leader freezes. It reports whether the first leader froze.
func carriedOut(ctx context.Context, p *v1alpha1.Plan, a, b *writeBlocker) (frozen bool) {
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
			g.Expect(apply(ctx, p, onceMore)).To(Succeed())
			asked = true
		}
		g.Expect(now.Status.State).To(Equal(v1alpha1.PlanApplied), "%s", tellPlan(now))
		runs, err := theirs(ctx, p)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range runs {
			g.Expect(frozen || letGo(&runs[i])).To(BeTrue(), "the first leader is done")
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
	managers, back := outdoors()
	seen := watchPlans(ctx)
	uses := make([]use, clients*each)
	var working sync.WaitGroup
	errs := make(chan error, clients)
	for c := range clients {
		working.Go(func() {
			for n := range each {
				u := &uses[c*each+n]
				*u = stories[(c+n)%len(stories)]
				err := u.create(ctx, action, fmt.Sprintf("plan-%02d-%d", c, n))
				if err == nil {
					err = u.live(ctx, u)
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
	finished(ctx, uses)
	Expect(seen.mostAtOnce()).To(Equal(parallel), "at most maxParallel runs of one plan at once, and that many if so many are due")
	clearPlans(ctx)
	back()
})

// finished checks the results against the files that the programs wrote.
func finished(ctx context.Context, uses []use) {
	GinkgoHelper()
	counted(ctx)
	neverTwice()
	times := executions()
	for i := range uses {
		u := &uses[i]
		last := mustStand(ctx, u.p, u.phase, u.state)
		Expect(last.Status.Attempt).To(Equal(u.attempt), "%s", tellPlan(last))
		orderly(last)
		for attempt := int32(1); attempt <= u.attempt; attempt++ {
			want := 0
			if u.effects > 0 && attempt >= u.effects {
				want = 1
			}
			Expect(times[executed("effect", u.p, v1alpha1.PhaseApply, int(attempt))]).To(Equal(want), "attempt %d of %s takes effect once, or not at all", attempt, u.p.Name)
		}
	}
	var runs v1alpha1.StrategyRunList
	Expect(k8s.List(ctx, &runs, client.InNamespace(env.namespace))).To(Succeed())
	uids, ran := map[types.UID]bool{}, 0
	for i := range runs.Items {
		uids[runs.Items[i].UID] = true
		if outcome := runs.Items[i].Status.Outcome; outcome == v1alpha1.RunSucceeded || outcome == v1alpha1.RunFailed {
			ran++
		}
	}
	Expect(len(times)).To(BeNumerically(">=", ran), "every run that ended by itself was executed")
	Expect(len(times)).To(BeNumerically("<=", len(uids)), "nothing was executed without a run")
}
