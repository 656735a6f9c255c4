// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

var _ = Describe("a Plan", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) {
		namespace = newNamespace(ctx)
		DeferCleanup(func(ctx context.Context) { // delete the plans before newNamespace's cleanup deletes the runs: plans create new runs
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.Plan{}, client.InNamespace(namespace))).To(Succeed())
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.Action{}, client.InNamespace(namespace))).To(Succeed())
		})
	})

	newStrategies := func(ctx context.Context, names ...string) {
		for _, name := range names {
			strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			strategy.Spec.Process.Command = []string{name}
			strategy.Spec.Breaker.FailureThreshold = ptr.To[int32](2)
			Expect(k8s.Create(ctx, strategy)).To(Succeed())
		}
	}
	newAction := func(ctx context.Context, change func(*v1alpha1.ActionSpec)) *v1alpha1.Action {
		action := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "release"}}
		action.Spec.Arguments = []v1alpha1.ActionArgument{
			{Name: "version", Presence: v1alpha1.PresenceRequired, Pattern: `v[0-9]+`},
			{Name: "dry-run", Type: v1alpha1.ArgumentBoolean, Default: ptr.To("false")},
		}
		action.Spec.Strategize = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "search"}, {Name: "test"}}}
		action.Spec.Execute = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "build"}}}
		action.Spec.Apply = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "publish"}}}
		change(&action.Spec)
		Expect(k8s.Create(ctx, action)).To(Succeed())
		return action
	}
	planOf := func(name string, change func(*v1alpha1.PlanSpec)) *v1alpha1.Plan {
		plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		plan.Spec.ActionRef.Name = "release"
		plan.Spec.Arguments = []v1alpha1.RunArgument{{Name: "version", Value: "v1"}}
		change(&plan.Spec)
		return plan
	}
	newPlan := func(ctx context.Context, name string, change func(*v1alpha1.PlanSpec)) *v1alpha1.Plan {
		GinkgoHelper()
		plan := planOf(name, change)
		Expect(k8s.Create(ctx, plan)).To(Succeed())
		return plan
	}
	waitForPlan := func(ctx context.Context, plan *v1alpha1.Plan, phase v1alpha1.PlanPhase, state v1alpha1.PlanState, attempt int) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			where := fmt.Sprintf("%s %s %d, waiting %s", plan.Status.CurrentPhase, plan.Status.State, plan.Status.Attempt, plan.Status.Waiting)
			g.Expect(plan.Status.ObservedGeneration).To(Equal(plan.Generation))
			g.Expect(plan.Status.CurrentPhase).To(Equal(phase), where)
			g.Expect(plan.Status.State).To(Equal(state), where)
			g.Expect(plan.Status.Attempt).To(BeEquivalentTo(attempt), where)
		}).Should(Succeed())
	}
	updatePlan := func(ctx context.Context, plan *v1alpha1.Plan, change func(*v1alpha1.PlanSpec)) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			change(&plan.Spec)
			g.Expect(k8s.Update(ctx, plan)).To(Succeed())
		}).Should(Succeed())
	}
	// endRun waits for a run of a plan and makes the program of the run exit with the code.
	endRun := func(ctx context.Context, plan *v1alpha1.Plan, attempt int, phase string, index int, code int32) *v1alpha1.StrategyRun {
		GinkgoHelper()
		run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-%.8s-%d-%s-%d", plan.Name, plan.UID, attempt, phase, index),
		}}
		Eventually(func(g Gomega) {
			get(ctx, g, run)
			g.Expect(run.Status.Process).NotTo(BeNil())
		}).Should(Succeed())
		rt.Exit(run.UID, facts.Exit{Known: true, Code: code})
		return run
	}
	runsOf := func(ctx context.Context, plan *v1alpha1.Plan) []v1alpha1.StrategyRun {
		GinkgoHelper()
		list := &v1alpha1.StrategyRunList{}
		Expect(k8s.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelPlan: plan.Name})).To(Succeed())
		return list.Items
	}
	expectPlanAtRest := func(ctx context.Context, plan *v1alpha1.Plan, want status.Status) {
		GinkgoHelper()
		var trueConditions []string
		for _, conditionType := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
			if meta.IsStatusConditionTrue(plan.Status.Conditions, conditionType) {
				trueConditions = append(trueConditions, conditionType)
			}
		}
		Expect(trueConditions).To(HaveLen(1), "exactly one is True")
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(plan)
		Expect(err).NotTo(HaveOccurred())
		result, err := status.Compute(&unstructured.Unstructured{Object: content})
		Expect(err).NotTo(HaveOccurred())
		Expect(result.Status).To(Equal(want), result.Message)
		version := plan.ResourceVersion
		Consistently(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			g.Expect(plan.ResourceVersion).To(Equal(version), "a plan at rest is not written")
		}).Should(Succeed())
	}
	waitForStalledPlan := func(ctx context.Context, plan *v1alpha1.Plan, reason string) string {
		GinkgoHelper()
		message := ""
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			condition := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionStalled)
			g.Expect(condition).NotTo(BeNil())
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue))
			g.Expect(condition.Reason).To(Equal(reason))
			message = condition.Message
		}).Should(Succeed())
		return message
	}

	It("runs its phases up to the allowed one, and keeps the pinned definitions", func(ctx context.Context) {
		newStrategies(ctx, "search", "test", "build", "publish")
		action := newAction(ctx, func(*v1alpha1.ActionSpec) {})
		plan := newPlan(ctx, "first", func(*v1alpha1.PlanSpec) {})
		waitForPlan(ctx, plan, v1alpha1.PhaseStrategize, v1alpha1.PlanProcessing, 1)
		run := endRun(ctx, plan, 1, "strategize", 0, 0)
		process, _ := rt.Process(run.UID)
		Expect(process.Env).To(ContainElements("ARG_VERSION=v1", "ARG_DRY_RUN=false", "ARG_PLAN=first", "ARG_PHASE=Strategize", "ARG_ATTEMPT=1"))
		Expect(metav1.IsControlledBy(run, plan)).To(BeTrue())

		Expect(k8s.Delete(ctx, action)).To(Succeed())
		endRun(ctx, plan, 1, "strategize", 1, 0)
		waitForPlan(ctx, plan, v1alpha1.PhaseStrategize, v1alpha1.PlanComplete, 1)
		Expect(meta.IsStatusConditionTrue(plan.Status.Conditions, v1alpha1.ConditionAwaitingApproval)).To(BeTrue())
		expectPlanAtRest(ctx, plan, status.CurrentStatus)
		Expect(runsOf(ctx, plan)).To(HaveLen(2))

		updatePlan(ctx, plan, func(spec *v1alpha1.PlanSpec) {
			spec.Approval = &v1alpha1.PlanApproval{Phase: v1alpha1.PhaseExecute, Attempt: 1, ToPhase: v1alpha1.PhaseApply}
		})
		endRun(ctx, plan, 1, "execute", 0, 0)
		applied := endRun(ctx, plan, 1, "apply", 0, 0)
		waitForPlan(ctx, plan, v1alpha1.PhaseApply, v1alpha1.PlanApplied, 1)
		expectPlanAtRest(ctx, plan, status.CurrentStatus)
		Expect(rt.Count(applied.UID, "Start")).To(Equal(1))
		Expect(plan.Status.Results).To(HaveLen(4))
		for _, run := range runsOf(ctx, plan) {
			Expect(run.Finalizers).NotTo(ContainElement(v1alpha1.FinalizerPlan), "its outcome is recorded")
		}
	})

	It("is retried in place, reverted, and cancelled", func(ctx context.Context) {
		newStrategies(ctx, "search", "test", "build", "publish")
		newAction(ctx, func(spec *v1alpha1.ActionSpec) { spec.Strategize = nil; spec.MaxReversions = ptr.To[int32](1) })
		plan := newPlan(ctx, "second", func(spec *v1alpha1.PlanSpec) { spec.TargetPhase = v1alpha1.PhaseExecute })
		endRun(ctx, plan, 1, "execute", 0, 1)
		waitForPlan(ctx, plan, v1alpha1.PhaseExecute, v1alpha1.PlanErrored, 1)
		expectPlanAtRest(ctx, plan, status.FailedStatus)
		updatePlan(ctx, plan, retryFrom(plan, "once more"))
		endRun(ctx, plan, 2, "execute", 0, 0)
		waitForPlan(ctx, plan, v1alpha1.PhaseExecute, v1alpha1.PlanComplete, 2)
		updatePlan(ctx, plan, revertFrom(plan, "no"))
		waitForPlan(ctx, plan, v1alpha1.PhaseExecute, v1alpha1.PlanProcessing, 3)
		Expect(plan.Status.Reversions).To(BeEquivalentTo(1))
		updatePlan(ctx, plan, revertFrom(plan, "no, no"))
		waitForPlan(ctx, plan, v1alpha1.PhaseExecute, v1alpha1.PlanConstrained, 3)
		Expect(waitForStalledPlan(ctx, plan, v1alpha1.ReasonReversionLimit)).To(ContainSubstring("reverted 1 times"))
		updatePlan(ctx, plan, retryFrom(plan, "go on"))
		waitForPlan(ctx, plan, v1alpha1.PhaseExecute, v1alpha1.PlanProcessing, 4)
		updatePlan(ctx, plan, func(spec *v1alpha1.PlanSpec) {
			spec.State, spec.TTLSecondsAfterFinished = v1alpha1.PlanCancelRequested, ptr.To[int32](0)
		})
		Eventually(func(g Gomega) {
			err := k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "its time to live has expired")
			for _, run := range runsOf(ctx, plan) {
				g.Expect(run.Status.Outcome).NotTo(BeEmpty())
				g.Expect(run.Finalizers).NotTo(ContainElement(v1alpha1.FinalizerPlan), "no finalizer blocks its deletion with the plan")
			}
		}).Should(Succeed())
	})

	It("is constrained by an open circuit breaker, and continues after a reset and a retry", func(ctx context.Context) {
		newStrategies(ctx, "search", "test", "build", "publish")
		newAction(ctx, func(spec *v1alpha1.ActionSpec) {
			spec.Strategize = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "search"}}}
		})
		plan := newPlan(ctx, "third", func(*v1alpha1.PlanSpec) {})
		for attempt := 1; attempt <= 2; attempt++ {
			endRun(ctx, plan, attempt, "strategize", 0, 1)
			waitForPlan(ctx, plan, v1alpha1.PhaseStrategize, v1alpha1.PlanErrored, attempt)
			if attempt == 2 {
				Eventually(func(g Gomega) {
					strategy := &v1alpha1.Strategy{}
					g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "search"}, strategy)).To(Succeed())
					g.Expect(strategy.Status.Breaker.State).To(Equal(v1alpha1.BreakerOpen))
				}).Should(Succeed())
			}
			updatePlan(ctx, plan, retryFrom(plan, plan.Spec.RetryToken+"x"))
		}
		waitForPlan(ctx, plan, v1alpha1.PhaseStrategize, v1alpha1.PlanConstrained, 3)
		Expect(waitForStalledPlan(ctx, plan, v1alpha1.ReasonCircuitOpen)).To(ContainSubstring("search"))
		expectPlanAtRest(ctx, plan, status.FailedStatus)
		Eventually(func(g Gomega) {
			strategy := &v1alpha1.Strategy{}
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "search"}, strategy)).To(Succeed())
			strategy.Spec.ResetToken = "mended"
			g.Expect(k8s.Update(ctx, strategy)).To(Succeed())
		}).Should(Succeed())
		updatePlan(ctx, plan, retryFrom(plan, plan.Spec.RetryToken+"x"))
		endRun(ctx, plan, 4, "strategize", 0, 0)
		waitForPlan(ctx, plan, v1alpha1.PhaseStrategize, v1alpha1.PlanComplete, 4)
	})

	It("reports what prevents its start, and starts when that is corrected", func(ctx context.Context) {
		plan := newPlan(ctx, "early", func(*v1alpha1.PlanSpec) {})
		Expect(waitForStalledPlan(ctx, plan, v1alpha1.ReasonActionMissing)).To(ContainSubstring("create it"))
		expectPlanAtRest(ctx, plan, status.FailedStatus)
		action := newAction(ctx, func(spec *v1alpha1.ActionSpec) { spec.State = v1alpha1.ActionArchived })
		waitForStalledPlan(ctx, plan, v1alpha1.ReasonActionArchived)
		action.Spec.State = v1alpha1.ActionActive
		Expect(k8s.Update(ctx, action)).To(Succeed())
		Expect(waitForStalledPlan(ctx, plan, v1alpha1.ReasonStrategyMissing)).To(ContainSubstring("search"))
		newStrategies(ctx, "search", "test", "build", "publish")
		waitForPlan(ctx, plan, v1alpha1.PhaseStrategize, v1alpha1.PlanProcessing, 1)

		good := action.DeepCopy().Spec.Arguments
		action.Spec.Arguments[0].Pattern = `(?:.?.?.?.?){1000}`
		Expect(k8s.Update(ctx, action)).To(Succeed())
		large := newPlan(ctx, "large", func(*v1alpha1.PlanSpec) {})
		Expect(waitForStalledPlan(ctx, large, v1alpha1.ReasonInvalidPattern)).To(ContainSubstring("argument " + good[0].Name))
		action.Spec.Arguments = good
		Expect(k8s.Update(ctx, action)).To(Succeed())
		waitForPlan(ctx, large, v1alpha1.PhaseStrategize, v1alpha1.PlanProcessing, 1)

		for name, arguments := range map[string][]v1alpha1.RunArgument{
			"version": {{Name: "version", Value: "1.0"}},
			"dry-run": {{Name: "version", Value: "v1"}, {Name: "dry-run", Value: "yes"}},
			"color":   {{Name: "version", Value: "v1"}, {Name: "color", Value: "red"}},
		} {
			wrong := newPlan(ctx, "wrong-"+name, func(spec *v1alpha1.PlanSpec) { spec.Arguments = arguments })
			Expect(waitForStalledPlan(ctx, wrong, v1alpha1.ReasonInvalidArgument)).To(ContainSubstring("Argument " + name))
		}
		none := newPlan(ctx, "none", func(spec *v1alpha1.PlanSpec) { spec.Arguments = nil })
		Expect(waitForStalledPlan(ctx, none, v1alpha1.ReasonInvalidArgument)).To(ContainSubstring("Argument version is required"))
	})

	It("starts once for all plans with the same idempotency key", func(ctx context.Context) {
		newStrategies(ctx, "search", "test", "build", "publish")
		newAction(ctx, func(*v1alpha1.ActionSpec) {})
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				defer GinkgoRecover()
				Expect(k8s.Create(ctx, planOf(fmt.Sprintf("caller-%d", i), func(spec *v1alpha1.PlanSpec) { spec.IdempotencyKey = "one" }))).To(Succeed())
			})
		}
		callers.Wait()
		list := &v1alpha1.PlanList{}
		Eventually(func(g Gomega) {
			g.Expect(k8s.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{"spec.idempotencyKey": "one"})).To(Succeed())
			begun := slices.DeleteFunc(slices.Clone(list.Items), func(p v1alpha1.Plan) bool { return p.Status.Pinned == nil })
			g.Expect(begun).To(HaveLen(1))
			for i := range list.Items {
				p := &list.Items[i]
				if p.Name == begun[0].Name {
					continue
				}
				g.Expect(p.Status.DuplicateOf).NotTo(BeNil())
				g.Expect(p.Status.DuplicateOf.UID).To(Equal(begun[0].UID))
				g.Expect(meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionConflict)).To(BeTrue())
			}
		}).Should(Succeed())
		runs := &v1alpha1.StrategyRunList{}
		Eventually(func(g Gomega) {
			g.Expect(k8s.List(ctx, runs, client.InNamespace(namespace))).To(Succeed())
			g.Expect(runs.Items).To(HaveLen(2))
		}).Should(Succeed())
		Expect(strings.HasPrefix(runs.Items[0].Name, runs.Items[0].Labels[v1alpha1.LabelPlan]+"-")).To(BeTrue())
	})

	It("is owned by its Instance", func(ctx context.Context) {
		newStrategies(ctx, "search", "test", "build", "publish")
		newAction(ctx, func(*v1alpha1.ActionSpec) {})
		plan := newPlan(ctx, "owned", func(spec *v1alpha1.PlanSpec) { spec.InstanceRef = &v1alpha1.LocalReference{Name: "session"} })
		Expect(waitForStalledPlan(ctx, plan, v1alpha1.ReasonInstanceMissing)).To(ContainSubstring("session"))
		instance := newInstance(namespace, "session", "sh")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForPlan(ctx, plan, v1alpha1.PhaseStrategize, v1alpha1.PlanProcessing, 1)
		Expect(plan.OwnerReferences).To(ConsistOf(HaveField("UID", instance.UID)))
	})
})

// positionOf returns the phase and the attempt of a plan that a request names.
func positionOf(plan *v1alpha1.Plan) *v1alpha1.PlanPosition {
	return &v1alpha1.PlanPosition{Phase: plan.Status.CurrentPhase, Attempt: plan.Status.Attempt}
}

func retryFrom(plan *v1alpha1.Plan, token string) func(*v1alpha1.PlanSpec) {
	return func(spec *v1alpha1.PlanSpec) { spec.RetryToken, spec.RetryFrom = token, positionOf(plan) }
}

func revertFrom(plan *v1alpha1.Plan, token string) func(*v1alpha1.PlanSpec) {
	return func(spec *v1alpha1.PlanSpec) {
		spec.Revert = &v1alpha1.PlanRevert{Token: token, Reason: "It is wrong.", From: positionOf(plan)}
	}
}
