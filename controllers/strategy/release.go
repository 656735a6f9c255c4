// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
)

const (
	// planPatience is how long a counted run waits for its plan to record its outcome, so that one write can remove both finalizers. It is measured from the
	// first observation of the end of the run. It is longer than the constant gathering of internal/plan, by which a plan delays the recording of outcomes, and
	// shorter than the constant patience of controllers/plan.
	planPatience = 2 * time.Second
	// planPolling is how often to check whether the plan has recorded the outcome.
	planPolling = 50 * time.Millisecond
)

// release removes the finalizer from the counted runs, several at a time, because they do not depend on each other. left is how long to wait before the next
// check if some runs wait for their plan; otherwise 0.
func (r *Reconciler) release(ctx context.Context, runs []*v1alpha1.StrategyRun, uids []types.UID, now time.Time) (left time.Duration, err error) {
	wanted := make(map[types.UID]bool, len(uids))
	for _, uid := range uids {
		wanted[uid] = true
	}
	group := &errgroup.Group{}
	group.SetLimit(atOnce)
	for _, run := range runs {
		if !wanted[run.UID] || !controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerCount) {
			continue
		}
		recorded, waits := r.recorded(ctx, run, now)
		if waits {
			left = planPolling
			continue
		}
		group.Go(func() error { return r.letGo(ctx, run, recorded) })
	}
	return left, group.Wait()
}

// recorded reports whether the plan of a run has recorded the outcome of the run. waits reports whether the caller should wait for the plan to do so. The plan
// comes from the cache and may be stale, which is harmless, because an outcome that was recorded once need not be recorded again.
func (r *Reconciler) recorded(ctx context.Context, run *v1alpha1.StrategyRun, now time.Time) (recorded, waits bool) {
	owner := metav1.GetControllerOf(run)
	if owner == nil || !controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerPlan) {
		return false, false
	}
	plan := &v1alpha1.Plan{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: owner.Name}, plan)
	if err != nil || plan.UID != owner.UID || !plan.DeletionTimestamp.IsZero() {
		return false, false // the controller of plans removes the finalizer of the plan
	}
	for _, listed := range plan.Status.Runs {
		recorded = recorded || listed.Name == run.Name && listed.UID == run.UID && listed.Outcome == run.Status.Outcome
	}
	for _, result := range plan.Status.Results {
		recorded = recorded || result.Run == run.Name && result.Outcome == run.Status.Outcome
	}
	if recorded {
		return true, false
	}
	at, lately := r.seen.At(run, now)
	return false, lately && now.Sub(at) < planPatience
}

// letGo removes the finalizer of the strategy from a run, and also that of the plan if forPlan is true.
func (r *Reconciler) letGo(ctx context.Context, run *v1alpha1.StrategyRun, forPlan bool) error {
	finalizers := []string{v1alpha1.FinalizerCount}
	if forPlan {
		finalizers = append(finalizers, v1alpha1.FinalizerPlan)
	}
	if err := consistency.RemoveFinalizers(ctx, r.Client, run, "remove the finalizer of run "+run.Name, finalizers...); err != nil {
		return err
	}
	r.gone.Store(run.UID, true)
	return nil
}
