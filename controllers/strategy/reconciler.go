// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package strategy counts the runs of strategies and operates their breakers. internal/strategy makes the decisions.
package strategy

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/lifecycle"
	core "github.com/berth-dev/berth/internal/strategy"
)

// defaultThreshold and defaultHistory are the defaults of the API, for objects that were stored before the API had them.
const (
	defaultThreshold = 3
	defaultHistory   = 100
)

// Reconciler counts the finished runs of Strategies.
type Reconciler struct {
	// Client reads from a cache with the indexes of this package, and writes. Reader reads from the API server.
	Client   client.Client
	Reader   client.Reader
	Recorder process.Recorder
	Clock    clock.PassiveClock

	// Correctness does not depend on these caches. gone contains the most recently released runs; seen records when the end of a run was first observed.
	writes consistency.Writes
	gone   process.Recent[bool]
	seen   process.FirstObserved
}

// atOnce is the maximum number of runs of one strategy that are read or released concurrently.
const atOnce = 16

// +kubebuilder:rbac:groups=berth.dev,resources=strategies/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=strategies,verbs=get;list;watch

// Reconcile counts newly finished runs: it reads, decides, writes the status, and only then releases the counted runs.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	strategy, err := consistency.Read[v1alpha1.Strategy](ctx, r.Client, r.Reader, &r.writes, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read strategies/%s: %w", req.NamespacedName, err)
	}
	runs, err := r.runs(ctx, req.NamespacedName, strategy)
	if err != nil {
		return ctrl.Result{}, err
	}
	if strategy == nil {
		left, err := r.release(ctx, runs, all(runs), r.Clock.Now())
		return ctrl.Result{RequeueAfter: left}, err
	}
	if !strategy.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	seen := views(runs, strategy)
	if err := r.confirmForeign(ctx, strategy, seen); err != nil {
		return consistency.Result("strategies/"+req.String(), err)
	}
	now, timeline := elapsed.Read(r.Clock)
	now = now.Truncate(time.Microsecond)
	want := desired(strategy)
	want.Timeline = timeline
	step := core.Next(want, strategy.Status, seen, now)
	var left time.Duration
	err = r.write(ctx, strategy, &step, now)
	if err == nil {
		left, err = r.release(ctx, runs, step.Release, now)
	}
	if err != nil {
		return consistency.Result("strategies/"+req.String(), err)
	}
	if step.More {
		return ctrl.Result{RequeueAfter: time.Millisecond}, nil
	}
	if left > 0 && (step.Again == 0 || left < step.Again) {
		step.Again = left
	}
	return ctrl.Result{RequeueAfter: step.Again}, nil
}

func desired(strategy *v1alpha1.Strategy) core.Desired {
	breaker := strategy.Spec.Breaker
	return core.Desired{ResetToken: strategy.Spec.ResetToken, Breaker: lifecycle.Breaker{
		Threshold: int(ptr.Deref(breaker.FailureThreshold, defaultThreshold)),
		CoolDown:  time.Duration(ptr.Deref(breaker.CoolDownSeconds, 0)) * time.Second,
	}}
}

// write writes the status in one patch, which fails if the object has changed in the meantime, and then emits events.
func (r *Reconciler) write(ctx context.Context, strategy *v1alpha1.Strategy, step *core.Step, now time.Time) error {
	base := strategy.DeepCopy()
	strategy.Status = step.Status
	strategy.Status.ObservedGeneration = strategy.Generation
	concludeConditions(strategy, now)
	decided := strategy.DeepCopy()
	if written, err := consistency.WriteStatus(ctx, r.Client, base, strategy); !written {
		return err
	}
	r.writes.Record(strategy)
	r.tell(base, decided)
	return nil
}

// tell emits an event when the breaker opens, admits a trial run, or closes.
func (r *Reconciler) tell(before, after *v1alpha1.Strategy) {
	was, is := v1alpha1.BreakerClosed, after.Status.Breaker.State
	if before.Status.Breaker != nil {
		was = before.Status.Breaker.State
	}
	if was == is {
		return
	}
	switch is {
	case v1alpha1.BreakerOpen:
		r.Recorder.Eventf(after, nil, corev1.EventTypeWarning, v1alpha1.ReasonCircuitOpen, "Reconcile", "%s", openMessage(after))
	case v1alpha1.BreakerHalfOpen:
		r.Recorder.Eventf(after, nil, corev1.EventTypeNormal, v1alpha1.ReasonCircuitHalfOpen, "Reconcile", "%s", halfOpenMessage(after))
	default:
		r.Recorder.Eventf(after, nil, corev1.EventTypeNormal, v1alpha1.ReasonCircuitClosed, "Reconcile", "The breaker is closed; the strategy accepts runs.")
	}
}
