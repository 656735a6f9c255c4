// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/plan"
)

// planWorld is a world with one Plan. There is no run controller: the test itself ends runs when the scenario requires it or the plan cancels them.
type planWorld struct {
	*world
	// snapshots are the states of the plan and its runs after each change, oldest first.
	snapshots []snapshot
	// created counts how often each run was created.
	created map[string]int
}

type snapshot struct {
	plan *v1alpha1.Plan // nil if the plan does not exist
	runs []v1alpha1.StrategyRun
}

func newPlanWorld(t *testing.T, f faults) *planWorld {
	t.Helper()
	w := &planWorld{world: &world{WithT: NewWithT(t), t: t, faults: f, lagged: map[int]bool{}}, created: map[string]int{}}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.clock = clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	action := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "release", UID: "release", Generation: 1}}
	action.Spec.MaxParallel, action.Spec.MaxReversions = ptr.To[int32](2), ptr.To[int32](5)
	action.Spec.Strategize = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "search"}, {Name: "test"}, {Name: "search"}}}
	action.Spec.Execute = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "test"}}}
	action.Spec.Apply = &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "test"}}}
	objects := []client.Object{action}
	for _, name := range []string{"search", "test"} {
		objects = append(objects, &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name, UID: types.UID(name)}})
	}
	w.api = fakeclient.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.Plan{}, &v1alpha1.StrategyRun{}).
		WithObjectTracker(clienttesting.NewObjectTracker(scheme, decoder)).WithObjects(objects...).Build()
	w.recordSnapshot(&v1alpha1.Plan{})
	return w
}

// newPlanReconciler returns the plan reconciler of a newly started manager.
func (w *planWorld) newPlanReconciler(number int) *plan.Reconciler {
	return &plan.Reconciler{Client: w.faultyClient(number, true), Reader: w.faultyClient(number, false), Recorder: noEvents{}, Clock: w.clock}
}

// faultyClient returns the client of a manager, with the faults of this run. If cache is true, reads of plans and runs may be stale.
func (w *planWorld) faultyClient(number int, cache bool) client.Client {
	turn := func() {
		if w.faults.turn != nil {
			w.faults.turn(number)
		}
	}
	return interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			turn()
			target, isPlan := o.(*v1alpha1.Plan)
			if !cache || !isPlan {
				return c.Get(ctx, k, o, opts...)
			}
			old := w.cached(number).plan
			if old == nil {
				return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("plans").GroupResource(), k.Name)
			}
			old.DeepCopyInto(target)
			return nil
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			turn()
			runs, isRuns := list.(*v1alpha1.StrategyRunList)
			if !cache || !isRuns {
				return c.List(ctx, list, opts...)
			}
			for _, run := range w.cached(number).runs {
				if controllerutil.ContainsFinalizer(&run, v1alpha1.FinalizerPlan) {
					runs.Items = append(runs.Items, *run.DeepCopy())
				}
			}
			return nil
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			turn()
			return w.writeWithFaults(o, func() error { return w.createRun(ctx, c, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			turn()
			return w.writeWithFaults(o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			turn()
			return w.writeWithFaults(o, func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			turn()
			return w.writeWithFaults(o, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

// createRun creates a run and gives it a UID, as an API server would.
func (w *planWorld) createRun(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
	o.SetUID(types.UID(fmt.Sprintf("%s/%d", o.GetName(), w.created[o.GetName()])))
	err := c.Create(ctx, o, opts...)
	if err == nil {
		w.created[o.GetName()]++
	}
	return err
}

// cached returns the state that a cache read of the manager with this number shows. The state may be stale.
func (w *planWorld) cached(number int) snapshot {
	w.reads++
	lag := 0
	if w.faults.lag != nil {
		lag = w.faults.lag(w.reads)
	}
	w.lagged[number] = w.lagged[number] || lag > 0
	return w.snapshots[max(0, len(w.snapshots)-1-lag)]
}

// writeWithFaults performs one write with the faults of this run, and records the state after the write.
func (w *planWorld) writeWithFaults(changed client.Object, do func() error) error {
	return w.write(do, func() { w.recordSnapshot(changed) })
}

// recordSnapshot records a snapshot for stale cache reads: the current state of changed, and the last recorded state of all other objects.
func (w *planWorld) recordSnapshot(changed client.Object) {
	now := snapshot{}
	if len(w.snapshots) > 0 {
		now = w.latest()
	}
	switch changed.(type) {
	case *v1alpha1.Plan:
		now.plan = w.plan()
	case *v1alpha1.StrategyRun:
		run := &v1alpha1.StrategyRun{}
		err := w.api.Get(w.ctx, client.ObjectKeyFromObject(changed), run)
		now.runs = slices.DeleteFunc(slices.Clone(now.runs), func(r v1alpha1.StrategyRun) bool { return r.Name == changed.GetName() })
		if !apierrors.IsNotFound(err) {
			w.Expect(err).NotTo(HaveOccurred())
			now.runs = append(now.runs, *run)
		}
		slices.SortFunc(now.runs, func(a, b v1alpha1.StrategyRun) int { return strings.Compare(a.Name, b.Name) })
	}
	w.snapshots = append(w.snapshots, now)
}

func (w *planWorld) latest() snapshot { return w.snapshots[len(w.snapshots)-1] }

// plan returns the current plan, or nil.
func (w *planWorld) plan() *v1alpha1.Plan {
	object := &v1alpha1.Plan{}
	err := w.api.Get(w.ctx, key, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.Expect(err).NotTo(HaveOccurred())
	return object
}

// changeSpec changes the spec as a user would.
func (w *planWorld) changeSpec(do func(*v1alpha1.PlanSpec)) {
	object := w.plan()
	do(&object.Spec)
	object.Generation++
	w.Expect(w.api.Update(w.ctx, object)).To(Succeed())
	w.recordSnapshot(object)
}

// endRuns ends the active runs whose names have the suffix.
func (w *planWorld) endRuns(suffix string, outcome v1alpha1.RunOutcome) {
	ended := 0
	for _, run := range w.latest().runs {
		if run.Status.Outcome == "" && strings.HasSuffix(run.Name, suffix) {
			w.endRun(&run, outcome)
			ended++
		}
	}
	w.Expect(ended).To(BeNumerically(">", 0), "no active run %s", suffix)
}

func (w *planWorld) endRun(run *v1alpha1.StrategyRun, outcome v1alpha1.RunOutcome) {
	run.Status.Outcome = outcome
	// A plan waits a moment from the first time that its manager observes the finish time of a run. A new manager for every reconcile would begin this wait
	// again each time. If the finish time is unset, there is no wait.
	if !w.faults.newLeaderPerReconcile {
		run.Status.FinishTime = ptr.To(metav1.NewMicroTime(w.clock.Now()))
	}
	w.Expect(w.api.Status().Update(w.ctx, run)).To(Succeed())
	w.recordSnapshot(run)
}

// endCancelledRuns ends the cancelled runs, as the run controller does, and reports whether there were any.
func (w *planWorld) endCancelledRuns() bool {
	obeyed := false
	for _, run := range w.latest().runs {
		if run.Status.Outcome == "" && run.Spec.State == v1alpha1.RunCancelled {
			w.endRun(&run, v1alpha1.OutcomeCancelled)
			obeyed = true
		}
	}
	return obeyed
}
