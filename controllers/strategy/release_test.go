// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// fixture is a strategy with one run of a plan. The run has just succeeded.
type fixture struct {
	Gomega
	t       *testing.T
	api     client.Client
	clock   *clocktesting.FakePassiveClock
	counter *Reconciler
	plan    *v1alpha1.Plan
}

var key = types.NamespacedName{Namespace: "default", Name: "lint"}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{Gomega: NewWithT(t), t: t, clock: clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))}
	scheme := runtime.NewScheme()
	b.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "strategy"}}
	b.plan = &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "release", UID: "plan"}}
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: "one", UID: "one", Finalizers: []string{v1alpha1.FinalizerCount, v1alpha1.FinalizerPlan},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Plan", Name: "release", UID: "plan", Controller: ptr.To(true)}},
	}}
	run.Spec.StrategyRef.Name = key.Name
	run.Status.Incarnation, run.Status.Outcome = 1, v1alpha1.OutcomeSucceeded
	run.Status.FinishTime = ptr.To(metav1.NewMicroTime(b.clock.Now()))
	run.Status.Pinned = &v1alpha1.PinnedStrategy{UID: "strategy"}
	b.api = fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(strategy, b.plan, run).
		WithStatusSubresource(strategy, b.plan, run).WithIndex(run, indexUncounted, uncountedOf).Build()
	b.counter = &Reconciler{Client: b.api, Reader: b.api, Recorder: events.NewFakeRecorder(16), Clock: b.clock}
	return b
}

// reconcile reconciles the strategy, checks its totals and returns the delay of the requeue.
func (b *fixture) reconcile() time.Duration {
	b.t.Helper()
	result, err := b.counter.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: key})
	b.Expect(err).NotTo(HaveOccurred())
	strategy := &v1alpha1.Strategy{}
	b.Expect(b.api.Get(b.t.Context(), key, strategy)).To(Succeed())
	b.Expect(strategy.Status.Totals).To(Equal(v1alpha1.StrategyTotals{Succeeded: 1}), "the run is counted immediately and only once")
	return result.RequeueAfter
}

func (b *fixture) finalizers() []string {
	b.t.Helper()
	run := &v1alpha1.StrategyRun{}
	b.Expect(b.api.Get(b.t.Context(), types.NamespacedName{Namespace: key.Namespace, Name: "one"}, run)).To(Succeed())
	return run.Finalizers
}

// writePlanStatus writes status, which contains the outcome of the run, to the plan.
func (b *fixture) writePlanStatus(status v1alpha1.PlanStatus) {
	b.t.Helper()
	b.plan.Status = status
	b.Expect(b.api.Status().Update(b.t.Context(), b.plan)).To(Succeed())
}

func TestRelease_RemovesBothFinalizersTogether(t *testing.T) {
	for what, status := range map[string]v1alpha1.PlanStatus{
		"during the phase": {Runs: []v1alpha1.PlanRun{{Name: "one", UID: "one", Outcome: v1alpha1.OutcomeSucceeded}}},
		"after the phase":  {Results: []v1alpha1.PlanResult{{Run: "one", Outcome: v1alpha1.OutcomeSucceeded}}},
	} {
		t.Run(what, func(t *testing.T) {
			b := newFixture(t)
			b.Expect(b.reconcile()).To(Equal(planPolling))
			b.Expect(b.finalizers()).To(HaveLen(2), "the plan has not recorded the outcome yet")
			b.writePlanStatus(status)
			b.Expect(b.reconcile()).To(BeZero())
			b.Expect(b.finalizers()).To(BeEmpty())
		})
	}
}

func TestRelease_WaitsOnlyBrieflyForPlan(t *testing.T) {
	for what, do := range map[string]func(b *fixture){
		"the plan records nothing": func(b *fixture) { b.clock.SetTime(b.clock.Now().Add(planPatience)) },
		"the clock was set back":   func(b *fixture) { b.clock.SetTime(b.clock.Now().Add(-time.Hour)) },
		"the plan is deleted":      func(b *fixture) { b.Expect(b.api.Delete(b.t.Context(), b.plan)).To(Succeed()) },
		"the manager crashed a minute ago": func(b *fixture) {
			b.counter = &Reconciler{Client: b.api, Reader: b.api, Recorder: b.counter.Recorder, Clock: b.clock}
			b.clock.SetTime(b.clock.Now().Add(time.Minute))
		},
	} {
		t.Run(what, func(t *testing.T) {
			b := newFixture(t)
			b.Expect(b.reconcile()).To(Equal(planPolling))
			do(b)
			b.Expect(b.reconcile()).To(BeZero())
			b.Expect(b.finalizers()).To(ConsistOf(v1alpha1.FinalizerPlan), "the plan removes its own finalizer")
		})
	}
}

func TestRelease_IgnoresOutcomeOfOtherRun(t *testing.T) {
	b := newFixture(t)
	b.writePlanStatus(v1alpha1.PlanStatus{Runs: []v1alpha1.PlanRun{{Name: "one", UID: "another", Outcome: v1alpha1.OutcomeSucceeded}}})
	b.Expect(b.reconcile()).To(Equal(planPolling))
	b.Expect(b.finalizers()).To(HaveLen(2))
}

// TestReconcile_RemembersCountedRunThatDoesNotDecode checks that a new manager does not forget a counted run which is missing in lists, because it does not
// decode. Otherwise the run would be counted again after its correction.
func TestReconcile_RemembersCountedRunThatDoesNotDecode(t *testing.T) {
	b := newFixture(t)
	b.reconcile()                     // counts the run
	whole := b.api.(client.WithWatch) //nolint:forcetypeassert // a fake client can watch
	refused := errors.New("the run cannot be decoded")
	api := interceptor.NewClient(whole, interceptor.Funcs{
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if runs, typed := list.(*v1alpha1.StrategyRunList); typed {
				runs.Items = nil
				return nil
			}
			return api.List(ctx, list, opts...)
		},
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if _, is := object.(*v1alpha1.StrategyRun); is {
				return refused
			}
			return api.Get(ctx, key, object, opts...)
		},
	})
	b.counter = &Reconciler{Client: api, Reader: api, Recorder: b.counter.Recorder, Clock: b.clock}
	_, err := b.counter.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
	b.Expect(err).To(MatchError(refused))

	b.counter = &Reconciler{Client: b.api, Reader: b.api, Recorder: b.counter.Recorder, Clock: b.clock}
	b.reconcile()
}
