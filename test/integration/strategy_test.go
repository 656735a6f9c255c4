// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

var _ = Describe("a Strategy", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	newStrategy := func(ctx context.Context, change func(*v1alpha1.StrategySpec)) *v1alpha1.Strategy {
		strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lint"}}
		strategy.Spec.Process = v1alpha1.ProcessTemplate{Command: []string{"lint", "$(ARG_DIR)"}, Env: []v1alpha1.EnvVar{{Name: "MODE", Value: "fast"}}}
		change(&strategy.Spec)
		Expect(k8s.Create(ctx, strategy)).To(Succeed())
		return strategy
	}
	newRun := func(ctx context.Context, name string) *v1alpha1.StrategyRun {
		run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		run.Spec.StrategyRef.Name = "lint"
		run.Spec.Arguments = []v1alpha1.RunArgument{{Name: "dir", Value: "/srv; rm -rf /"}}
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
			g.Expect(run.Finalizers).NotTo(ContainElement(v1alpha1.FinalizerCount), "the run was counted")
		}).Should(Succeed())
	}
	waitForCounts := func(ctx context.Context, strategy *v1alpha1.Strategy, state v1alpha1.BreakerState, failures int, totals v1alpha1.StrategyTotals) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(strategy), strategy)).To(Succeed())
			g.Expect(strategy.Status.Breaker).NotTo(BeNil())
			g.Expect(strategy.Status.Breaker.State).To(Equal(state))
			g.Expect(strategy.Status.Breaker.Failures).To(BeEquivalentTo(failures))
			g.Expect(strategy.Status.Totals).To(Equal(totals))
			g.Expect(strategy.Status.Counted).To(BeEmpty())
		}).Should(Succeed())
	}

	It("runs once, counts the run once, and is not written again", func(ctx context.Context) {
		strategy := newStrategy(ctx, func(*v1alpha1.StrategySpec) {})
		waitForCounts(ctx, strategy, v1alpha1.BreakerClosed, 0, v1alpha1.StrategyTotals{})
		seen := follow(ctx, &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one"}}, &v1alpha1.StrategyRunList{})
		run := newRun(ctx, "one")
		waitForProcess(ctx, run)
		process, _ := rt.Process(run.UID)
		Expect(process.Command).To(Equal([]string{"lint", "/srv; rm -rf /"}), "the value remains one argument")
		Expect(process.Env).To(ContainElements("MODE=fast", "ARG_DIR=/srv; rm -rf /"))
		Expect(run.Status.Pinned.UID).To(Equal(strategy.UID))

		rt.Exit(run.UID, facts.Exit{Known: true})
		waitForOutcome(ctx, run, v1alpha1.OutcomeSucceeded)
		expectKstatus(run, status.CurrentStatus)
		waitForCounts(ctx, strategy, v1alpha1.BreakerClosed, 0, v1alpha1.StrategyTotals{Succeeded: 1})
		expectNoWrites(ctx, run)
		Expect(rt.Count(run.UID, "Start")).To(Equal(1))
		seen.stop()
		hashes := map[string]bool{}
		for _, state := range seen.states {
			hashes[state.GetProcessStatus().SpecHash] = true
		}
		delete(hashes, "")
		Expect(hashes).To(HaveLen(1), "the first start already has the final spec hash")
		Expect(k8s.Delete(ctx, run)).To(Succeed())
		waitUntilGone(ctx, run)
	})

	It("opens its circuit breaker at the threshold, skips runs without a process, and counts from zero after a reset", func(ctx context.Context) {
		strategy := newStrategy(ctx, func(spec *v1alpha1.StrategySpec) { spec.Breaker.FailureThreshold = ptr.To[int32](2) })
		late := newRun(ctx, "late")
		waitForProcess(ctx, late)
		for i := range 2 {
			run := newRun(ctx, fmt.Sprintf("failed-%d", i))
			waitForProcess(ctx, run)
			rt.Exit(run.UID, facts.Exit{Known: true, Code: 1})
			waitForOutcome(ctx, run, v1alpha1.OutcomeFailed)
			expectKstatus(run, status.FailedStatus)
		}
		waitForCounts(ctx, strategy, v1alpha1.BreakerOpen, 2, v1alpha1.StrategyTotals{Failed: 2})

		skipped := newRun(ctx, "skipped")
		waitForOutcome(ctx, skipped, v1alpha1.OutcomeSkipped)
		Expect(rt.Count(skipped.UID, "Start")).To(BeZero())
		expectKstatus(skipped, status.FailedStatus)
		expectNoWrites(ctx, skipped)

		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(strategy), strategy)).To(Succeed())
			strategy.Spec.ResetToken = "again"
			g.Expect(k8s.Update(ctx, strategy)).To(Succeed())
		}).Should(Succeed())
		waitForCounts(ctx, strategy, v1alpha1.BreakerClosed, 0, v1alpha1.StrategyTotals{Failed: 2, SkippedCircuitOpen: 1})
		rt.Exit(late.UID, facts.Exit{Known: true, Code: 1})
		waitForOutcome(ctx, late, v1alpha1.OutcomeFailed)
		waitForCounts(ctx, strategy, v1alpha1.BreakerClosed, 0, v1alpha1.StrategyTotals{Failed: 3, SkippedCircuitOpen: 1})
	})

	It("stops runs that time out, are cancelled or are deleted", func(ctx context.Context) {
		strategy := newStrategy(ctx, func(spec *v1alpha1.StrategySpec) {
			spec.TimeoutSeconds = ptr.To[int32](1)
			spec.Breaker.FailureThreshold = ptr.To[int32](9)
		})
		slow := newRun(ctx, "slow")
		waitForOutcome(ctx, slow, v1alpha1.OutcomeTimedOut)
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(strategy), strategy)).To(Succeed())
			strategy.Spec.TimeoutSeconds = nil
			g.Expect(k8s.Update(ctx, strategy)).To(Succeed())
		}).Should(Succeed())
		cancelled := newRun(ctx, "cancelled")
		waitForProcess(ctx, cancelled)
		update(ctx, cancelled, func() { cancelled.Spec.State = v1alpha1.RunCancelled })
		waitForOutcome(ctx, cancelled, v1alpha1.OutcomeCancelled)
		deleted := newRun(ctx, "deleted")
		waitForProcess(ctx, deleted)
		Expect(k8s.Delete(ctx, deleted)).To(Succeed())
		waitUntilGone(ctx, deleted)
		waitForCounts(ctx, strategy, v1alpha1.BreakerClosed, 1, v1alpha1.StrategyTotals{TimedOut: 1, Cancelled: 2})
	})

	It("tries only a run that can start after the cool-down, and names it", func(ctx context.Context) {
		strategy := newStrategy(ctx, func(spec *v1alpha1.StrategySpec) {
			spec.Breaker.FailureThreshold, spec.Breaker.CoolDownSeconds = ptr.To[int32](1), ptr.To[int32](1)
		})
		failed := newRun(ctx, "failed")
		waitForProcess(ctx, failed)
		rt.Exit(failed.UID, facts.Exit{Known: true, Code: 1})
		waitForCounts(ctx, strategy, v1alpha1.BreakerHalfOpen, 1, v1alpha1.StrategyTotals{Failed: 1})
		expectReason := func(run *v1alpha1.StrategyRun, reason, message string) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				get(ctx, g, run)
				stalled := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionStalled)
				g.Expect(stalled).NotTo(BeNil())
				g.Expect(stalled.Reason).To(Equal(reason))
				g.Expect(stalled.Message).To(ContainSubstring(message))
			}).Should(Succeed())
		}
		never := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "never"}}
		never.Spec.StrategyRef.Name = "lint"
		never.Spec.Arguments = []v1alpha1.RunArgument{{Name: "a-b", Value: "x"}, {Name: "a_b", Value: "y"}}
		Expect(k8s.Create(ctx, never)).To(Succeed())
		expectReason(never, v1alpha1.ReasonInvalidArgument, "both map to")

		trial := newRun(ctx, "trial")
		waitForProcess(ctx, trial)
		Expect(trial.Status.Process.StartTime.Sub(trial.CreationTimestamp.Time)).To(BeNumerically("<", 45*time.Second), "the other run did not hold the breaker for a minute")
		waiting := newRun(ctx, "waiting")
		expectReason(waiting, v1alpha1.ReasonCircuitHalfOpen, "one trial run first: trial.")
		Expect(rt.Count(waiting.UID, "Start")).To(BeZero())
		expectNoWrites(ctx, waiting)
		rt.Exit(trial.UID, facts.Exit{Known: true})
		waitForOutcome(ctx, trial, v1alpha1.OutcomeSucceeded)
		waitForProcess(ctx, waiting)
		waitForCounts(ctx, strategy, v1alpha1.BreakerClosed, 0, v1alpha1.StrategyTotals{Failed: 1, Succeeded: 1})
	})

	It("keeps runs waiting while it is missing or disabled, and lets running ones finish when it is deleted", func(ctx context.Context) {
		run := newRun(ctx, "early")
		Expect(waitForStalled(ctx, run, v1alpha1.ReasonStrategyMissing)).To(ContainSubstring("create it"))
		strategy := newStrategy(ctx, func(spec *v1alpha1.StrategySpec) { spec.State = v1alpha1.StrategyDisabled })
		waitForStalled(ctx, run, v1alpha1.ReasonDisabled)
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(strategy), strategy)).To(Succeed())
			strategy.Spec.State = v1alpha1.StrategyEnabled
			g.Expect(k8s.Update(ctx, strategy)).To(Succeed())
		}).Should(Succeed())
		waitForProcess(ctx, run)
		Expect(k8s.Delete(ctx, strategy)).To(Succeed())
		rt.Exit(run.UID, facts.Exit{Known: true})
		waitForOutcome(ctx, run, v1alpha1.OutcomeSucceeded)
	})

	It("keeps at most as many finished runs as its history limit", func(ctx context.Context) {
		newStrategy(ctx, func(spec *v1alpha1.StrategySpec) { spec.HistoryLimit = ptr.To[int32](1) })
		for i := range 3 {
			run := newRun(ctx, fmt.Sprintf("run-%d", i))
			waitForProcess(ctx, run)
			rt.Exit(run.UID, facts.Exit{Known: true})
			Eventually(func(g Gomega) {
				err := k8s.Get(ctx, client.ObjectKeyFromObject(run), run)
				g.Expect(err != nil || run.Status.Outcome == v1alpha1.OutcomeSucceeded).To(BeTrue())
			}).Should(Succeed())
		}
		Eventually(func(g Gomega) {
			left := &v1alpha1.StrategyRunList{}
			g.Expect(k8s.List(ctx, left, client.InNamespace(namespace))).To(Succeed())
			g.Expect(left.Items).To(HaveLen(1))
			g.Expect(left.Items[0].Name).To(Equal("run-2"))
		}).Should(Succeed())
	})
})
