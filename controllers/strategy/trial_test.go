// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// stalledRun returns a run that is stalled for a reason; created orders the runs.
func stalledRun(b *fixture, name, reason string, created int) *v1alpha1.StrategyRun {
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: name, UID: types.UID(name), Generation: 1, Finalizers: []string{v1alpha1.FinalizerCount},
		CreationTimestamp: metav1.NewTime(b.clock.Now().Add(time.Duration(created) * time.Second)),
	}}
	run.Spec.StrategyRef.Name = key.Name
	run.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: reason, ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(b.clock.Now()),
	}}
	return run
}

// halfOpen sets the breaker to half-open and returns the strategy.
func (b *fixture) halfOpen(trial types.UID) {
	b.t.Helper()
	strategy := b.strategy()
	strategy.Status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerHalfOpen, Failures: 3, Trial: trial}
	if trial != "" {
		strategy.Status.Breaker.TrialName, strategy.Status.Breaker.TrialTime = string(trial), ptr.To(metav1.NewMicroTime(b.clock.Now().Add(-time.Hour)))
	}
	b.Expect(b.api.Status().Update(b.t.Context(), strategy)).To(Succeed())
}

func (b *fixture) strategy() *v1alpha1.Strategy {
	b.t.Helper()
	strategy := &v1alpha1.Strategy{}
	b.Expect(b.api.Get(b.t.Context(), key, strategy)).To(Succeed())
	return strategy
}

func (b *fixture) message() string {
	b.t.Helper()
	return meta.FindStatusCondition(b.strategy().Status.Conditions, v1alpha1.ConditionReconciling).Message
}

// A run that can never start must not hold a half-open breaker, whether it has become the trial run or not.
func TestTrial_IsNotHeldByARunThatNeverStarts(t *testing.T) {
	for name, row := range map[string]struct {
		reason string
		change func(*fixture, *v1alpha1.StrategyRun)
	}{
		"invalid argument":             {reason: v1alpha1.ReasonInvalidArgument},
		"changed strategy":             {reason: v1alpha1.ReasonStrategyChanged},
		"missing Secret":               {reason: v1alpha1.ReasonInvalidEnvironment},
		"silent host before the start": {reason: v1alpha1.ReasonHostUnavailable},
		"silent host after the start": {v1alpha1.ReasonHostUnavailable, func(_ *fixture, run *v1alpha1.StrategyRun) {
			run.Status.Incarnation, run.Status.Process = 1, &v1alpha1.ProcessReference{Incarnation: 1}
			run.Status.Pinned = &v1alpha1.PinnedStrategy{UID: "strategy"}
		}},
		"cancelled on a silent host": {v1alpha1.ReasonCircuitHalfOpen, func(_ *fixture, run *v1alpha1.StrategyRun) { run.Spec.State = v1alpha1.RunCancelled }},
		"deleted on a silent host": {v1alpha1.ReasonCircuitHalfOpen, func(b *fixture, run *v1alpha1.StrategyRun) {
			run.DeletionTimestamp = ptr.To(metav1.NewTime(b.clock.Now()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, trial := range []types.UID{"", "never"} {
				b := newFixture(t)
				never := stalledRun(b, "never", row.reason, 0)
				if row.change != nil {
					row.change(b, never)
				}
				b.create(never)
				b.halfOpen(trial)
				b.reconcile()
				if trial == "" {
					b.Expect(b.strategy().Status.Breaker.Trial).To(BeEmpty())
					b.Expect(b.message()).To(Equal("The cool-down is over; the next run that can start is the trial run."))
				}
				good := stalledRun(b, "good", v1alpha1.ReasonCircuitHalfOpen, 1)
				b.Expect(countable().Update(event.UpdateEvent{ObjectOld: stalledRun(b, "good", "", 1), ObjectNew: good})).To(BeTrue(), "the wait is an event")
				b.create(good)
				b.reconcile()
				b.Expect(b.strategy().Status.Breaker.Trial).To(BeEquivalentTo("good"))
				b.Expect(b.message()).To(Equal("The cool-down is over; the trial run is good."))
				before := b.strategy().ResourceVersion
				b.reconcile()
				b.Expect(b.strategy().ResourceVersion).To(Equal(before), "a second reconcile writes nothing")
			}
		})
	}
}

// create stores a run with its status, and deletes it if it has a deletion timestamp.
func (b *fixture) create(run *v1alpha1.StrategyRun) {
	b.t.Helper()
	stored := run.DeepCopy()
	stored.DeletionTimestamp = nil
	b.Expect(b.api.Create(b.t.Context(), stored)).To(Succeed())
	stored.Status = run.Status
	b.Expect(b.api.Status().Update(b.t.Context(), stored)).To(Succeed())
	if run.DeletionTimestamp != nil {
		b.Expect(b.api.Delete(b.t.Context(), stored)).To(Succeed())
	}
}

// The event at the end of a cool-down must not report a trial run that does not exist.
func TestHalfOpenEvent_ReportsNoTrialWithoutRuns(t *testing.T) {
	b := newFixture(t)
	strategy := b.strategy()
	strategy.Spec.Breaker.CoolDownSeconds = ptr.To[int32](1)
	b.Expect(b.api.Update(b.t.Context(), strategy)).To(Succeed())
	strategy.Status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerOpen, Failures: 3, OpenTime: ptr.To(metav1.NewMicroTime(b.clock.Now().Add(-time.Hour)))}
	b.Expect(b.api.Status().Update(b.t.Context(), strategy)).To(Succeed())
	recorder := events.NewFakeRecorder(16)
	b.counter.Recorder = recorder
	b.reconcile()
	b.Expect(recorder.Events).To(Receive(Equal("Normal CircuitHalfOpen The cool-down is over; the next run that can start is the trial run.")))
}
