// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	core "github.com/berth-dev/berth/internal/strategy"
)

const (
	// indexUncounted is the field index that finds runs that still have the finalizer, by their strategy. The cost of a lookup does not depend on the number of
	// counted runs.
	indexUncounted = "uncountedOf"
	// indexCounted is the field index that finds finished runs that were counted, by their strategy.
	indexCounted = "countedOf"
)

// most is the maximum number of finished runs that one reconcile reads from the API server. The next reconcile continues with the rest.
const most = 256

func uncountedOf(object client.Object) []string {
	run := object.(*v1alpha1.StrategyRun) // only StrategyRuns are indexed
	if !controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerCount) {
		return nil
	}
	return []string{run.Spec.StrategyRef.Name}
}

func countedOf(object client.Object) []string {
	run := object.(*v1alpha1.StrategyRun) // only StrategyRuns are indexed
	if run.Status.Outcome == "" || controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerCount) {
		return nil
	}
	return []string{run.Spec.StrategyRef.Name}
}

// runs returns the runs that have the finalizer. For finished runs that are not counted yet, it reads from the API server, because the cache may be stale. It
// also checks the runs in status.counted that the cache shows without the finalizer.
func (r *Reconciler) runs(ctx context.Context, key types.NamespacedName, strategy *v1alpha1.Strategy) ([]*v1alpha1.StrategyRun, error) {
	list := &v1alpha1.StrategyRunList{}
	err := r.Client.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingFields{indexUncounted: key.Name})
	if err != nil {
		return nil, fmt.Errorf("list the runs of strategies/%s: %w", key, err)
	}
	var counted []types.UID
	if strategy != nil {
		counted = strategy.Status.Counted
	}
	runs := make([]*v1alpha1.StrategyRun, 0, len(list.Items))
	var finished []*v1alpha1.StrategyRun
	for i := range list.Items {
		run := &list.Items[i]
		switch {
		case r.gone.Has(run.UID): // the cache is stale
		case (run.Status.Outcome == "") != slices.Contains(counted, run.UID):
			runs = append(runs, run) // not finished, or counted already
		case len(finished) < most:
			finished = append(finished, run)
		}
	}
	confirmed, err := r.confirmAll(ctx, finished)
	if err != nil {
		return nil, err
	}
	runs = append(runs, confirmed...)
	return r.addCounted(ctx, key, runs, counted)
}

// confirmAll reads the runs from the API server and returns those that still have the finalizer, in the same order.
func (r *Reconciler) confirmAll(ctx context.Context, cached []*v1alpha1.StrategyRun) ([]*v1alpha1.StrategyRun, error) {
	live := make([]*v1alpha1.StrategyRun, len(cached))
	group := &errgroup.Group{}
	group.SetLimit(atOnce)
	for i, run := range cached {
		group.Go(func() (err error) {
			live[i], err = r.confirm(ctx, run)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(live, func(run *v1alpha1.StrategyRun) bool { return run == nil }), nil
}

// confirm reads a run from the API server. It returns nil if the run is deleted or released.
func (r *Reconciler) confirm(ctx context.Context, cached *v1alpha1.StrategyRun) (*v1alpha1.StrategyRun, error) {
	live := &v1alpha1.StrategyRun{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(cached), live)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // gone
	}
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", cached.Name, err)
	}
	if live.UID != cached.UID || !controllerutil.ContainsFinalizer(live, v1alpha1.FinalizerCount) {
		return nil, nil //nolint:nilnil // another object of the same name, or released
	}
	return live, nil
}

// addCounted adds the runs in status.counted that still have the finalizer on the API server but are missing from runs. Only a manager that has just started
// needs this read; afterwards it remembers which runs it has released.
func (r *Reconciler) addCounted(
	ctx context.Context, key types.NamespacedName, runs []*v1alpha1.StrategyRun, counted []types.UID,
) ([]*v1alpha1.StrategyRun, error) {
	missing := map[types.UID]bool{}
	for _, uid := range counted {
		known := slices.ContainsFunc(runs, func(run *v1alpha1.StrategyRun) bool { return run.UID == uid })
		if !known && !r.gone.Has(uid) {
			missing[uid] = true
		}
	}
	if len(missing) == 0 {
		return runs, nil
	}
	// A list of metadata also contains a run that does not decode. Such a run must not count as gone, because it would be counted again after its correction.
	live := &metav1.PartialObjectMetadataList{}
	live.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("StrategyRunList"))
	if err := r.Reader.List(ctx, live, client.InNamespace(key.Namespace)); err != nil {
		return nil, fmt.Errorf("list the runs of strategies/%s from the API server: %w", key, err)
	}
	var found []*v1alpha1.StrategyRun
	for i := range live.Items {
		if run := &live.Items[i]; missing[run.UID] && controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerCount) {
			found = append(found, &v1alpha1.StrategyRun{ObjectMeta: run.ObjectMeta})
		}
	}
	confirmed, err := r.confirmAll(ctx, found)
	if err != nil {
		return nil, err
	}
	runs = append(runs, confirmed...)
	for uid := range missing {
		if !slices.ContainsFunc(runs, func(run *v1alpha1.StrategyRun) bool { return run.UID == uid }) {
			r.gone.Store(uid, true)
		}
	}
	return runs, nil
}

// views converts the runs to the input of internal/strategy.
func views(runs []*v1alpha1.StrategyRun, strategy *v1alpha1.Strategy) []core.Run {
	views := make([]core.Run, 0, len(runs))
	for _, run := range runs {
		view := core.Run{
			UID: run.UID, Name: run.Name, Outcome: run.Status.Outcome, Kept: true, CreatedAt: run.CreationTimestamp.Time,
			Waits:   stalledBy(run) == v1alpha1.ReasonCircuitHalfOpen,
			Started: run.Status.Process != nil && stalledBy(run) != v1alpha1.ReasonHostUnavailable,
			Ending:  run.Spec.State == v1alpha1.RunCancelled || !run.DeletionTimestamp.IsZero(),
		}
		if run.Status.FinishTime != nil {
			view.FinishedAt = run.Status.FinishTime.Time
		}
		if pinned := run.Status.Pinned; pinned != nil && run.Status.Incarnation > 0 {
			view.Epoch, view.Foreign = pinned.Epoch, pinned.UID != strategy.UID
		} else {
			view.Epoch = strategy.Status.Epoch
		}
		views = append(views, view)
	}
	return views
}

// stalledBy returns the reason why the run is stalled; empty if it is not. The reason is CircuitHalfOpen only if nothing but the breaker prevents the start.
func stalledBy(run *v1alpha1.StrategyRun) string {
	stalled := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionStalled)
	if stalled == nil || stalled.Status != metav1.ConditionTrue || stalled.ObservedGeneration != run.Generation {
		return ""
	}
	return stalled.Reason
}

// confirmForeign protects runs from being released uncounted. If some runs seem to belong to a deleted strategy of the same name, it reads the strategy from
// the API server, and returns ErrStale if the cached strategy is the deleted one.
func (r *Reconciler) confirmForeign(ctx context.Context, strategy *v1alpha1.Strategy, seen []core.Run) error {
	if !slices.ContainsFunc(seen, func(run core.Run) bool { return run.Foreign }) {
		return nil
	}
	live := &v1alpha1.Strategy{}
	err := r.Reader.Get(ctx, client.ObjectKeyFromObject(strategy), live)
	if err == nil && live.UID != strategy.UID || apierrors.IsNotFound(err) {
		return consistency.ErrStale
	}
	if err != nil {
		return fmt.Errorf("confirm that the strategy exists: %w", err)
	}
	return nil
}

func all(runs []*v1alpha1.StrategyRun) []types.UID {
	var uids []types.UID
	for _, run := range runs {
		if run.Status.Outcome != "" || !run.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerProcess) {
			uids = append(uids, run.UID)
		}
	}
	return uids
}
