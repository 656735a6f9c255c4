// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/plan"
)

// minimumPlanRate is like minimumRunRate, but its runs belong to plans: they have an owner, labels, arguments and a third finalizer. Each plan is written three
// times: its creation, its start with the pinned action and the names of its runs, and the results of the runs. Package plan computes the content of
// the last two writes.
func minimumPlanRate(t *testing.T, size int) float64 {
	t.Helper()
	namespace := newNamespace(t)
	watchAll(t, "", &v1alpha1.PlanList{}, func(client.Object) {})
	watchAll(t, namespace, &v1alpha1.PlanList{}, func(client.Object) {})
	pinned, blocked := plan.Pin(newAction(namespace, size), map[string]*v1alpha1.Strategy{"true": {}}, nil)
	NewWithT(t).Expect(blocked).To(BeNil())
	rate := runRate(t, namespace, runCount/size, func(i int) error { return writePlan(t, newPlan(namespace, i), pinned) })
	NewWithT(t).Expect(k8s.DeleteAllOf(t.Context(), &v1alpha1.Plan{}, client.InNamespace(namespace))).To(Succeed())
	return rate
}

// writePlan writes a plan and its runs with the minimum number of writes.
func writePlan(t *testing.T, p *v1alpha1.Plan, pinned *v1alpha1.PinnedAction) error {
	if err := k8s.Create(t.Context(), p); err != nil {
		return fmt.Errorf("create a plan: %w", err)
	}
	desired := plan.Desired{Name: p.Name, UID: p.UID, Generation: p.Generation, Target: p.Spec.TargetPhase, Pinned: pinned}
	step := plan.Next(desired, p.Status, nil, time.Now())
	if err := writePlanStatus(t, p, step.Status); err != nil {
		return err
	}
	var ended []plan.Run
	for _, request := range step.Create {
		run := newPlannedRun(p, request)
		if err := writeRun(t, run); err != nil {
			return err
		}
		ended = append(ended, plan.Run{Name: run.Name, UID: run.UID, Outcome: run.Status.Outcome, Message: "The run ended with exit code 0."})
	}
	return writePlanStatus(t, p, plan.Next(desired, p.Status, ended, time.Now()).Status)
}

func writePlanStatus(t *testing.T, p *v1alpha1.Plan, status v1alpha1.PlanStatus) error {
	before := p.DeepCopy()
	p.Status = status
	err := k8s.Status().Patch(t.Context(), p, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("write the status of a plan: %w", err)
	}
	return nil
}

// newPlannedRun returns a run as the plan controller creates it.
func newPlannedRun(p *v1alpha1.Plan, request plan.RunRequest) *v1alpha1.StrategyRun {
	run := newRun(p.Namespace, 0)
	run.Name = request.Name
	run.Labels = map[string]string{v1alpha1.LabelPlan: p.Name, v1alpha1.LabelStrategy: request.Strategy}
	run.Finalizers = []string{v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount, v1alpha1.FinalizerPlan}
	run.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Plan", Name: p.Name, UID: p.UID, Controller: ptr.To(true),
	}}
	run.Spec.Arguments = []v1alpha1.RunArgument{
		{Name: "plan", Value: p.Name}, {Name: "phase", Value: string(request.Phase)}, {Name: "attempt", Value: "1"},
	}
	return run
}
