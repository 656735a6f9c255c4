// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategyrun

import (
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// fixture is a strategy and one run of it, with the reconciler of runs.
type fixture struct {
	*WithT
	t     *testing.T
	api   client.Client
	clock *clocktesting.FakePassiveClock
	rt    *fake.Runtime
	r     *process.Reconciler
}

var runKey, strategyKey = types.NamespacedName{Namespace: "default", Name: "one"}, types.NamespacedName{Namespace: "default", Name: "build"}

func newFixture(t *testing.T, change func(*v1alpha1.Strategy, *v1alpha1.StrategyRun)) *fixture {
	t.Helper()
	b := &fixture{WithT: NewWithT(t), t: t, clock: clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))}
	scheme := apiruntime.NewScheme()
	b.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	b.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: strategyKey.Namespace, Name: strategyKey.Name, UID: "strategy", Generation: 1}}
	strategy.Spec.Process.Command = []string{"build"}
	strategy.Status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: runKey.Namespace, Name: runKey.Name, UID: "run", Generation: 1}}
	run.Spec.StrategyRef.Name = strategy.Name
	if change != nil {
		change(strategy, run)
	}
	b.api = fakeclient.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(strategy, run).WithObjects(strategy, run).Build()
	b.rt = fake.New(t.Context(), b.clock)
	b.rt.Unguarded()
	b.newManager()
	t.Cleanup(func() { b.Expect(b.rt.Violations()).To(BeEmpty()) })
	return b
}

// newManager replaces the manager; the new one has no memory.
func (b *fixture) newManager() {
	registry := runtime.NewRegistry(b.rt, logr.Discard())
	b.r = &process.Reconciler{
		Client: b.api, Reader: b.api, Runtimes: registry, Kind: New(b.api, b.api, registry, b.clock), Recorder: events.NewFakeRecorder(64), Clock: b.clock,
	}
}

func (b *fixture) reconcile() *v1alpha1.StrategyRun {
	b.t.Helper()
	_, err := b.r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: runKey})
	b.Expect(err).NotTo(HaveOccurred())
	return b.run()
}

func (b *fixture) run() *v1alpha1.StrategyRun {
	b.t.Helper()
	run := &v1alpha1.StrategyRun{}
	b.Expect(b.api.Get(b.t.Context(), runKey, run)).To(Succeed())
	return run
}

func (b *fixture) setBreaker(breaker v1alpha1.StrategyBreakerStatus) {
	b.t.Helper()
	strategy := &v1alpha1.Strategy{}
	b.Expect(b.api.Get(b.t.Context(), strategyKey, strategy)).To(Succeed())
	strategy.Status.Breaker = &breaker
	strategy.Status.Epoch++ // a reset before the breaker opened
	b.Expect(b.api.Status().Update(b.t.Context(), strategy)).To(Succeed())
}

// recordStart lets a manager record the start of the run and crash before the start.
func (b *fixture) recordStart() {
	b.t.Helper()
	b.rt.Fail("Start", errors.New("the manager crashes"))
	_, err := b.r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: runKey})
	b.Expect(err).To(HaveOccurred())
	run := b.run()
	b.Expect(run.Status.Incarnation).To(BeEquivalentTo(1))
	b.Expect(run.Status.Process).To(BeNil())
	b.newManager()
}

func stalledReason(run *v1alpha1.StrategyRun) string {
	stalled := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionStalled)
	if stalled == nil || stalled.Status != metav1.ConditionTrue {
		return ""
	}
	return stalled.Reason
}

// A reset token that was removed before or after the reset does not delay runs.
func TestAdmit_WaitsForRequestedReset(t *testing.T) {
	for token, want := range map[string]string{"": "", "answered": "", "new": v1alpha1.ReasonPending} {
		b := newFixture(t, func(s *v1alpha1.Strategy, _ *v1alpha1.StrategyRun) {
			s.Spec.ResetToken, s.Status.ObservedResetToken = token, "answered"
		})
		b.Expect(stalledReason(b.reconcile())).To(Equal(want), "token %q", token)
	}
}

// A manager that was killed between the record of a start and the start must not start the run after the breaker has opened.
func TestRecordedStart_IsAdmittedAgain(t *testing.T) {
	open := v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerOpen, Failures: 3}
	other := v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerHalfOpen, Trial: "other", TrialName: "two"}

	t.Run("the breaker has opened", func(t *testing.T) {
		b := newFixture(t, nil)
		b.recordStart()
		b.setBreaker(open)
		run := b.reconcile()
		b.Expect(run.Status.Outcome).To(Equal(v1alpha1.OutcomeSkipped))
		b.Expect(run.Status.FinishTime).NotTo(BeNil())
		b.Expect(run.Status.Pinned.Process).To(BeNil())
		b.Expect(run.Status.LastExit.Message).To(Equal("The incarnation was recorded but never started."))
		b.Expect(stalledReason(run)).To(Equal(v1alpha1.ReasonSkippedCircuitOpen))
		b.Expect(b.reconcile().ResourceVersion).To(Equal(run.ResourceVersion), "a second reconcile writes nothing")
		b.Expect(b.rt.Count(run.UID, "Start")).To(BeZero())
	})
	t.Run("another run is the trial run", func(t *testing.T) {
		b := newFixture(t, nil)
		b.recordStart()
		b.setBreaker(other)
		run := b.reconcile()
		b.Expect(stalledReason(run)).To(Equal(v1alpha1.ReasonCircuitHalfOpen))
		b.Expect(waitsFor(run)).To(ConsistOf("build"), "a change of the strategy wakes the run")
		b.setBreaker(v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerHalfOpen, Trial: run.UID, TrialName: run.Name})
		b.reconcile()
		b.Expect(b.rt.Count(run.UID, "Start")).To(Equal(1))
	})
	t.Run("the breaker is closed", func(t *testing.T) {
		b := newFixture(t, nil)
		b.recordStart()
		b.Expect(waitsFor(b.run())).To(BeEmpty())
		b.reconcile()
		b.Expect(b.rt.Count("run", "Start")).To(Equal(1))
	})
	t.Run("the process runs or has ended", func(t *testing.T) {
		for name, after := range map[string]func(*fixture){
			"runs":      func(*fixture) {},
			"has ended": func(b *fixture) { b.rt.Exit("run", facts.Exit{Known: true}) },
		} {
			t.Run(name, func(t *testing.T) {
				b := newFixture(t, nil)
				b.reconcile()
				b.Expect(b.run().Status.Process).To(BeNil(), "the process is not recorded yet")
				after(b)
				b.newManager()
				b.setBreaker(open)
				run := b.reconcile()
				b.Expect(run.Status.Outcome).NotTo(Equal(v1alpha1.OutcomeSkipped))
				b.Expect(run.Status.Pinned.Process).NotTo(BeNil())
				b.Expect(run.Status.Pinned.Epoch).To(BeZero(), "the run started before the reset")
				b.Expect(b.rt.Count(run.UID, "Stop")).To(BeZero())
			})
		}
	})
}

// The strategy takes a run with the reason CircuitHalfOpen for one that can start.
func TestHalfOpen_IsReportedOnlyByARunThatCanStart(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*v1alpha1.Strategy, *v1alpha1.StrategyRun)
		reason string
	}{
		"nothing else blocks it": {func(*v1alpha1.Strategy, *v1alpha1.StrategyRun) {}, v1alpha1.ReasonCircuitHalfOpen},
		"two arguments map to one variable": {func(_ *v1alpha1.Strategy, run *v1alpha1.StrategyRun) {
			run.Spec.Arguments = []v1alpha1.RunArgument{{Name: "a-b", Value: "x"}, {Name: "a_b", Value: "y"}}
		}, v1alpha1.ReasonInvalidArgument},
		"the program has changed": {func(_ *v1alpha1.Strategy, run *v1alpha1.StrategyRun) { run.Spec.Program = "other" }, v1alpha1.ReasonStrategyChanged},
		"the strategy is disabled": {func(strategy *v1alpha1.Strategy, _ *v1alpha1.StrategyRun) {
			strategy.Spec.State = v1alpha1.StrategyDisabled
		}, v1alpha1.ReasonDisabled},
		"a Secret is missing": {func(strategy *v1alpha1.Strategy, _ *v1alpha1.StrategyRun) {
			strategy.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "A", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: "no", Key: "key"}}}}
		}, v1alpha1.ReasonInvalidEnvironment},
		"the command contains a zero byte": {func(strategy *v1alpha1.Strategy, run *v1alpha1.StrategyRun) {
			strategy.Spec.Process.Command = []string{"build", "$(ARG_A)"}
			run.Spec.Arguments = []v1alpha1.RunArgument{{Name: "a", Value: "\x00"}}
		}, v1alpha1.ReasonInvalidEnvironment},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, row.change)
			b.setBreaker(v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerHalfOpen, Trial: "other", TrialName: "two"})
			run := b.reconcile()
			b.Expect(stalledReason(run)).To(Equal(row.reason))
			if row.reason == v1alpha1.ReasonCircuitHalfOpen {
				b.Expect(meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionStalled).Message).To(
					Equal("The breaker of strategy build allows one trial run first: two."))
			}
		})
	}
}
