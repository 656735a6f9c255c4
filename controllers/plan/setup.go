// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// indexBlocked is the field index that finds the plans that have not begun and are not duplicates. All of them have the same index value, the constant all.
const indexBlocked = "notBegun"

const all = "all"

// Setup registers the controller of Plans with the manager.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	deps = deps.WithDefaults()
	indexer := mgr.GetFieldIndexer()
	if err := indexer.IndexField(context.Background(), &v1alpha1.StrategyRun{}, indexPlan, keptBy); err != nil {
		return fmt.Errorf("index strategyruns by plan: %w", err)
	}
	if err := indexer.IndexField(context.Background(), &v1alpha1.Plan{}, indexBlocked, notBegun); err != nil {
		return fmt.Errorf("index plans that have not started: %w", err)
	}
	reconciler := &Reconciler{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("berth-plans"), Clock: deps.Clock,
		Hosts: deps.Hosts,
	}
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	blocked := handler.EnqueueRequestsFromMapFunc(reconciler.blocked)
	err := ctrl.NewControllerManagedBy(mgr).
		Named("plans").
		For(&v1alpha1.Plan{}, builder.WithPredicates(relevant())).
		Owns(&v1alpha1.StrategyRun{}, builder.WithPredicates(reconciler.notable())).
		Watches(&v1alpha1.Action{}, blocked, changed).
		Watches(&v1alpha1.Strategy{}, blocked, builder.WithPredicates(created())).
		Watches(&v1alpha1.Instance{}, blocked, builder.WithPredicates(created())).
		WithOptions(controller.Options{MaxConcurrentReconciles: deps.Concurrency, RateLimiter: process.Retries()}).
		Complete(reconciler)
	if err != nil {
		return fmt.Errorf("set up the controller of plans: %w", err)
	}
	return nil
}

// relevant returns a predicate that passes changes by users and drops the status writes of the controller itself.
func relevant() predicate.Predicate {
	return predicate.Or(
		predicate.GenerationChangedPredicate{},
		predicate.LabelChangedPredicate{},
		predicate.AnnotationChangedPredicate{}, // a user has removed the mark of a copy
		process.Overwritten(func(object client.Object) []metav1.Condition {
			return object.(*v1alpha1.Plan).Status.Conditions // only Plans are watched
		}),
	)
}

// notBegun is the index function of indexBlocked.
func notBegun(object client.Object) []string {
	if waiting := object.(*v1alpha1.Plan); begun(waiting) || waiting.Status.DuplicateOf != nil { // only Plans are indexed
		return nil
	}
	return []string{all}
}

// blocked returns requests for the plans of indexBlocked in the namespace of a new or changed object, because they may have waited for that object.
func (r *Reconciler) blocked(ctx context.Context, object client.Object) []reconcile.Request {
	return process.Requests(ctx, r.Client, &v1alpha1.PlanList{}, client.InNamespace(object.GetNamespace()), client.MatchingFields{indexBlocked: all})
}

// created passes creation events only.
func created() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// notable passes the events of runs that concern a plan: another client created the run, or the run has ended, cannot start, is cancelled or is deleted.
func (r *Reconciler) notable() predicate.Predicate {
	unknown := func(e event.CreateEvent) bool { return !r.ownRuns.Has(e.Object.GetUID()) }
	return predicate.Funcs{CreateFunc: unknown, UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*v1alpha1.StrategyRun)
		after, ok2 := e.ObjectNew.(*v1alpha1.StrategyRun)
		return ok1 && ok2 && (before.Status.Outcome != after.Status.Outcome || before.Spec.State != after.Spec.State ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			!equality.Semantic.DeepEqual(before.Finalizers, after.Finalizers) && !after.DeletionTimestamp.IsZero() ||
			stalledReason(before) != stalledReason(after))
	}}
}

func stalledReason(run *v1alpha1.StrategyRun) string {
	stalled := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionStalled)
	if stalled == nil || stalled.Status != metav1.ConditionTrue {
		return ""
	}
	return stalled.Reason
}
