// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

var _ = Describe("a backup", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) {
		namespace = newNamespace(ctx)
		DeferCleanup(func(ctx context.Context) {
			for _, object := range []client.Object{&v1alpha1.Plan{}, &v1alpha1.Action{}} {
				Expect(k8s.DeleteAllOf(ctx, object, client.InNamespace(namespace))).To(Succeed())
			}
		})
	})
	create := func(ctx context.Context, object client.Object) {
		GinkgoHelper()
		object.SetNamespace(namespace)
		Expect(k8s.Create(ctx, object)).To(Succeed())
	}
	newPlan := func(ctx context.Context, name string, target v1alpha1.PlanPhase) {
		plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: name}}
		plan.Spec.ActionRef.Name, plan.Spec.TargetPhase = "release", target
		create(ctx, plan)
	}
	newRun := func(ctx context.Context, name, strategy string, finalizers ...string) {
		run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}
		run.Spec.StrategyRef.Name = strategy
		create(ctx, run)
	}
	all := func(ctx context.Context) (plans map[string]*v1alpha1.Plan, runs map[string]*v1alpha1.StrategyRun) {
		GinkgoHelper()
		plans, runs = map[string]*v1alpha1.Plan{}, map[string]*v1alpha1.StrategyRun{}
		planList, runList := &v1alpha1.PlanList{}, &v1alpha1.StrategyRunList{}
		Expect(k8s.List(ctx, planList, client.InNamespace(namespace))).To(Succeed())
		Expect(k8s.List(ctx, runList, client.InNamespace(namespace))).To(Succeed())
		for i := range planList.Items {
			plans[planList.Items[i].Name] = &planList.Items[i]
		}
		for i := range runList.Items {
			runs[runList.Items[i].Name] = &runList.Items[i]
		}
		return plans, runs
	}

	// fill creates plans and runs, and waits until they are in different states: in progress, waiting and finished.
	fill := func(ctx context.Context) {
		GinkgoHelper()
		for _, name := range []string{"search", "publish"} {
			strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Name: name}}
			strategy.Spec.Process.Command = []string{name}
			create(ctx, strategy)
		}
		action := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Name: "release"}}
		action.Spec.Strategize = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "search"}}}
		action.Spec.Apply = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "publish"}}}
		create(ctx, action)
		newPlan(ctx, "midway", v1alpha1.PhaseApply)
		newPlan(ctx, "waiting", v1alpha1.PhaseStrategize)
		newPlan(ctx, "finished", v1alpha1.PhaseApply)
		newRun(ctx, "run-midway", "search")
		newRun(ctx, "run-finished", "search")
		newRun(ctx, "run-waiting", "absent")
		newRun(ctx, "run-claimed", "search", v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount) // as berth run creates it
		Eventually(func(g Gomega) {
			plans, runs := all(ctx)
			for _, run := range runs {
				owner := metav1.GetControllerOf(run)
				ends := run.Name == "run-finished" || owner != nil && owner.Name != "midway"
				if run.Status.Process != nil && ends {
					rt.Exit(run.UID, facts.Exit{Known: true})
				}
			}
			g.Expect(plans["midway"].Status.State).To(Equal(v1alpha1.PlanProcessing))
			g.Expect(plans["waiting"].Status.State).To(Equal(v1alpha1.PlanComplete))
			g.Expect(plans["finished"].Status.State).To(Equal(v1alpha1.PlanApplied))
			g.Expect(runs["run-midway"].Status.Process).NotTo(BeNil())
			g.Expect(runs["run-claimed"].Status.Process).NotTo(BeNil())
			g.Expect(runs["run-finished"].Status.Outcome).To(Equal(v1alpha1.OutcomeSucceeded))
			g.Expect(meta.IsStatusConditionTrue(runs["run-waiting"].Status.Conditions, v1alpha1.ConditionStalled)).To(BeTrue())
			g.Expect(runs).To(HaveLen(8), "four runs of plans: one each for midway and waiting, two for finished")
		}).Should(Succeed())
	}
	// restore deletes all plans and runs, and creates them again as a backup tool does.
	restore := func(ctx context.Context, withStatus bool) {
		GinkgoHelper()
		plans, runs := all(ctx)
		for _, plan := range plans {
			Expect(k8s.Delete(ctx, plan.DeepCopy())).To(Succeed())
		}
		for _, run := range runs {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, run.DeepCopy()))).To(Succeed())
		}
		Eventually(func(g Gomega) {
			plans, runs := all(ctx)
			g.Expect(plans).To(BeEmpty())
			g.Expect(runs).To(BeEmpty())
		}).Should(Succeed())
		var backup []client.Object
		for _, plan := range plans {
			backup = append(backup, plan)
		}
		for _, run := range runs {
			backup = append(backup, run)
		}
		for _, object := range backup {
			saved := object.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy has the type of its original
			object.SetUID("")
			object.SetResourceVersion("")
			object.SetManagedFields(nil)
			Expect(k8s.Create(ctx, object)).To(Succeed())
			if withStatus {
				Eventually(func(g Gomega) {
					err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object)
					if apierrors.IsNotFound(err) && metav1.GetControllerOf(saved) != nil {
						return // the garbage collector deletes a run whose plan does not exist
					}
					g.Expect(err).NotTo(HaveOccurred())
					saved.SetUID(object.GetUID())
					saved.SetResourceVersion(object.GetResourceVersion())
					saved.SetGeneration(object.GetGeneration())
					g.Expect(k8s.Status().Update(ctx, saved)).To(Succeed())
				}).Should(Succeed())
			}
		}
	}
	stalledReason := func(conditions []metav1.Condition) string {
		if stalled := meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled); stalled != nil && stalled.Status == metav1.ConditionTrue {
			return stalled.Reason
		}
		return ""
	}
	starts := func(ctx context.Context) (n int) {
		_, runs := all(ctx)
		for _, run := range runs {
			n += rt.Count(run.UID, "Start")
		}
		return n
	}

	It("is restored without executing a plan or a run again", func(ctx context.Context) {
		fill(ctx)
		restore(ctx, false)
		Eventually(func(g Gomega) {
			plans, runs := all(ctx)
			g.Expect(plans).To(HaveLen(3))
			for _, plan := range plans {
				g.Expect(stalledReason(plan.Status.Conditions)).To(Equal(v1alpha1.ReasonRestored), plan.Name)
			}
			g.Expect(len(runs)).To(BeNumerically(">=", 4))
			for _, run := range runs {
				g.Expect(stalledReason(run.Status.Conditions)).To(Equal(v1alpha1.ReasonRestored), run.Name)
			}
		}).Should(Succeed())
		Consistently(func() int { return starts(ctx) }).Should(BeZero())
		_, runs := all(ctx)
		expectNoWrites(ctx, runs["run-midway"])

		By("executing a copy on request")
		run, plan := runs["run-midway"], &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "waiting"}}
		for _, object := range []client.Object{run, plan} {
			Expect(k8s.Patch(ctx, object, client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"annotations": {"berth.dev/uid": null}}}`)))).To(Succeed())
		}
		Eventually(func(g Gomega) {
			get(ctx, g, run)
			g.Expect(run.Status.Process).NotTo(BeNil())
			g.Expect(run.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationUID, string(run.UID)))
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan)).To(Succeed())
			g.Expect(plan.Status.State).To(Equal(v1alpha1.PlanProcessing))
			g.Expect(starts(ctx)).To(Equal(2))
		}).WithTimeout(30 * time.Second).Should(Succeed())
	})

	It("is restored with the status without executing a plan or a run again", func(ctx context.Context) {
		fill(ctx)
		restore(ctx, true)
		Eventually(func(g Gomega) {
			plans, runs := all(ctx)
			for _, name := range []string{"midway", "waiting"} {
				g.Expect(stalledReason(plans[name].Status.Conditions)).To(Equal(v1alpha1.ReasonRestored), name)
				g.Expect(meta.IsStatusConditionTrue(plans[name].Status.Conditions, v1alpha1.ConditionAwaitingApproval)).To(BeFalse(), name)
			}
			g.Expect(runs["run-finished"].Status.Outcome).NotTo(BeEmpty())
			g.Expect(stalledReason(runs["run-waiting"].Status.Conditions)).To(Equal(v1alpha1.ReasonRestored))
		}).WithTimeout(30 * time.Second).Should(Succeed())
		Consistently(func() int { return starts(ctx) }).Should(BeZero())

		plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "midway"}}
		Expect(k8s.Patch(ctx, plan, client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"state": "Cancelled", "ttlSecondsAfterFinished": 0}}`)))).To(Succeed())
		Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(plan), plan) }).Should(MatchError(ContainSubstring("not found")), "a copy can be cancelled")
	})

	It("of an Instance is restored, and its process starts", func(ctx context.Context) {
		instance := newInstance(namespace, "agent", "sleep")
		instance.Spec.Breaker.FailureThreshold = ptr.To[int32](5)
		create(ctx, instance)
		waitForReady(ctx, instance)
		old := instance.UID
		Expect(k8s.Delete(ctx, instance)).To(Succeed())
		waitUntilGone(ctx, instance)
		again := newInstance(namespace, "agent", "sleep")
		again.Finalizers, again.Annotations, again.Labels = instance.Finalizers, instance.Annotations, instance.Labels
		create(ctx, again)
		waitForReady(ctx, again)
		Expect(again.UID).NotTo(Equal(old))
		Expect(rt.Live(old)).To(BeEmpty())
		Expect(rt.Live(again.UID)).To(Equal([]int64{1}))
	})
})
