// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package strategy counts the runs of strategies and drives their breakers; internal/tally decides.
package strategy

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/tally"
)

// The defaults of the API, for objects that were stored before a default was there.
const (
	defaultThreshold = 3
	defaultHistory   = 100
)

// Reconciler counts the finished runs of one Strategy at a time.
type Reconciler struct {
	// Client reads from a cache with the indexes of this package and writes; Reader reads past the cache.
	Client   client.Client
	Reader   client.Reader
	Recorder process.Recorder
	Clock    clock.PassiveClock

	memory memory
}

// atOnce bounds how many runs of one strategy are looked at, or let go, at the same time.
const atOnce = 16

// +kubebuilder:rbac:groups=berth.dev,resources=strategies/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=strategies,verbs=get;list;watch

// Reconcile counts what has finished since: it reads, decides, writes the status, and only then lets the counted runs go.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	strategy, err := r.read(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
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
	if err := r.confirmForeign(ctx, strategy, seen); errors.Is(err, consistency.ErrStale) {
		return ctrl.Result{RequeueAfter: consistency.RetryAfter}, nil
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("strategies/%s: %w", req, err)
	}
	now := r.Clock.Now().Truncate(time.Microsecond)
	step := tally.Next(desired(strategy), strategy.Status, seen, now)
	var left time.Duration
	err = r.write(ctx, strategy, &step, now)
	if err == nil {
		left, err = r.release(ctx, runs, step.Release, now)
	}
	if errors.Is(err, consistency.ErrStale) {
		return ctrl.Result{RequeueAfter: consistency.RetryAfter}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("strategies/%s: %w", req, err)
	}
	if step.More {
		return ctrl.Result{RequeueAfter: time.Millisecond}, nil
	}
	if left > 0 && (step.Again == 0 || left < step.Again) {
		step.Again = left
	}
	return ctrl.Result{RequeueAfter: step.Again}, nil
}

// read gives the strategy, or nil when there is none. The cache is passed by while it has not seen our own last write.
func (r *Reconciler) read(ctx context.Context, key types.NamespacedName) (*v1alpha1.Strategy, error) {
	strategy := &v1alpha1.Strategy{}
	err := r.Client.Get(ctx, key, strategy)
	if err == nil && r.memory.writes.Behind(strategy) || apierrors.IsNotFound(err) {
		strategy = &v1alpha1.Strategy{}
		err = r.Reader.Get(ctx, key, strategy)
	}
	if apierrors.IsNotFound(err) {
		r.memory.writes.Forget(key)
		return nil, nil //nolint:nilnil // nothing there is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read strategies/%s: %w", key, err)
	}
	return strategy, nil
}

func desired(strategy *v1alpha1.Strategy) tally.Desired {
	breaker := strategy.Spec.Breaker
	return tally.Desired{ResetToken: strategy.Spec.ResetToken, Breaker: lifecycle.Breaker{
		Threshold: int(ptr.Deref(breaker.FailureThreshold, defaultThreshold)),
		CoolDown:  time.Duration(ptr.Deref(breaker.CoolDownSeconds, 0)) * time.Second,
	}}
}

// write makes the status true in one patch that fails if the object has changed meanwhile, and tells events after it.
func (r *Reconciler) write(ctx context.Context, strategy *v1alpha1.Strategy, step *tally.Step, now time.Time) error {
	base := strategy.DeepCopy()
	strategy.Status = step.Status
	strategy.Status.ObservedGeneration = strategy.Generation
	concludeConditions(strategy, now)
	if equality.Semantic.DeepEqual(base.Status, strategy.Status) {
		return nil
	}
	decided := strategy.DeepCopy()
	err := r.Client.Status().Patch(ctx, strategy, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return consistency.StaleOr(err, "write the status")
	}
	r.memory.writes.Record(strategy)
	r.tell(base, decided)
	return nil
}

// tell says what a user may notice: the breaker opened, tries a run, or closed.
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
		r.Recorder.Eventf(after, nil, corev1.EventTypeNormal, v1alpha1.ReasonCircuitHalfOpen, "Reconcile", "One run is tried after the cool-down.")
	default:
		r.Recorder.Eventf(after, nil, corev1.EventTypeNormal, v1alpha1.ReasonCircuitClosed, "Reconcile", "The breaker is closed; runs are started.")
	}
}
