// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// runsPerPlan is how many runs a plan creates, all in parallel.
const runsPerPlan = 5

// TestPlans_RunRate measures plans whose runs each start a real process and are counted. It compares the rate of runs with the rate of clients that only make
// the necessary writes for such plans and runs (minimumPlanRate). For comparison it also reports the rate of the four bare writes of
// TestRuns_RateOfCountedRuns.
func TestPlans_RunRate(t *testing.T) {
	var lean, least, ratios, runWrites, planWrites []float64
	for range rounds {
		lean = append(lean, bareRunRate(t))
		leastRate := minimumPlanRate(t, runsPerPlan)
		rate, each, plans := planRunRate(t, runsPerPlan)
		least, ratios = append(least, leastRate), append(ratios, rate/leastRate)
		runWrites, planWrites = append(runWrites, each), append(planWrites, plans)
	}
	addFigure("plans: four bare writes, almost empty", "%.0f/s", median(lean))
	addFigure("plans: the necessary writes of plans and runs, with their content", "%.0f/s", median(least))
	addFigure("plans: runs through plan → run → process → counted, 5 per plan", "%.0f/s", median(ratios)*median(least))
	addFigure("plans: writes to a run, including its creation", "%.2f", median(runWrites))
	addFigure("plans: writes to a plan of 5 runs, including its creation", "%.2f", median(planWrites))
	addFigure("plans: writes per run, including its share of its plan", "%.2f", median(runWrites)+median(planWrites)/runsPerPlan)
	// The limit applies to the inverse, because expectAtMost checks upper bounds.
	expectAtMost(t, "plans: necessary writes alone / plan → run → process → counted", 1/median(ratios), 1/0.6, 3, "×")
}

// newAction returns an Action with one phase, Apply, of size parallel runs of the same strategy.
func newAction(namespace string, size int) *v1alpha1.Action {
	a := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "act"}}
	a.Spec.MaxParallel = ptr.To(int32(size)) //nolint:gosec // size is small
	a.Spec.Apply = &v1alpha1.PhaseSpec{Strategies: slices.Repeat([]v1alpha1.PhaseStrategy{{Name: "true"}}, size)}
	return a
}

func newPlan(namespace string, i int) *v1alpha1.Plan {
	p := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("plan-%04d", i)}}
	p.Spec.ActionRef.Name, p.Spec.TargetPhase = "act", v1alpha1.PhaseApply
	return p
}

// planRunRate is like realRunRate, but plans create the runs. The parameter size is the number of parallel runs of a plan. In addition to the results of
// realRunRate, planRunRate returns the mean number of writes per plan.
func planRunRate(t *testing.T, size int) (rate, writes, plans float64) {
	t.Helper()
	var action sync.Once
	var mu sync.Mutex
	var namespace string
	versions := map[string]bool{}
	rate, writes = realRunRate(t, func(t *testing.T, in string, i int) (err error) {
		t.Helper()
		action.Do(func() {
			namespace = in
			watchAll(t, namespace, &v1alpha1.PlanList{}, func(object client.Object) {
				mu.Lock()
				defer mu.Unlock()
				versions[object.GetResourceVersion()] = true
			})
			err = k8s.Create(t.Context(), newAction(namespace, size))
		})
		if i%size > 0 || err != nil {
			return err
		}
		return k8s.Create(t.Context(), newPlan(namespace, i))
	})
	g := NewWithT(t)
	list := &v1alpha1.PlanList{}
	g.Expect(k8s.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
	g.Expect(list.Items).To(HaveLen(runCount / size))
	for i := range list.Items {
		g.Expect(list.Items[i].Status.State).To(Equal(v1alpha1.PlanApplied), list.Items[i].Name)
	}
	mu.Lock()
	plans = float64(len(versions)) * float64(size) / runCount
	mu.Unlock()
	for _, object := range []client.Object{&v1alpha1.Plan{}, &v1alpha1.Action{}} {
		g.Expect(k8s.DeleteAllOf(t.Context(), object, client.InNamespace(namespace))).To(Succeed())
	}
	return rate, writes, plans
}
