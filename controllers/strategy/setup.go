// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
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

// Setup registers the controllers of Strategies with the manager: one counts runs, the other limits the history.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	deps = deps.WithDefaults()
	indexer := mgr.GetFieldIndexer()
	for name, function := range map[string]client.IndexerFunc{indexUncounted: uncountedOf, indexCounted: countedOf} {
		if err := indexer.IndexField(context.Background(), &v1alpha1.StrategyRun{}, name, function); err != nil {
			return fmt.Errorf("index strategyruns by %s: %w", name, err)
		}
	}
	counter := &Reconciler{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("berth-strategies"), Clock: deps.Clock,
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("strategies").
		For(&v1alpha1.Strategy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.StrategyRun{}, handler.EnqueueRequestsFromMapFunc(strategyOf), builder.WithPredicates(countable())).
		WithOptions(controller.Options{MaxConcurrentReconciles: deps.Concurrency, RateLimiter: process.Retries()}).
		Complete(counter)
	if err != nil {
		return fmt.Errorf("set up the controller of strategies: %w", err)
	}
	return setupHistory(mgr)
}

// strategyOf returns the strategy that a run belongs to.
func strategyOf(_ context.Context, object client.Object) []reconcile.Request {
	run := object.(*v1alpha1.StrategyRun) // only StrategyRuns are watched
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: run.Namespace, Name: run.Spec.StrategyRef.Name}}}
}

// countable passes the events that the count and the choice of the trial run depend on: a run was created, was cancelled, has ended, was released, is being
// deleted, waits for the breaker, or its host no longer reports.
func countable() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*v1alpha1.StrategyRun)
		after, ok2 := e.ObjectNew.(*v1alpha1.StrategyRun)
		return ok1 && ok2 && (before.Status.Outcome != after.Status.Outcome || len(before.Finalizers) != len(after.Finalizers) ||
			before.Spec.State != after.Spec.State || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			concernsTrial(stalledBy(before)) != concernsTrial(stalledBy(after)))
	}}
}

// concernsTrial returns the reason of a stalled run if the choice of the trial run depends on it; otherwise it returns an empty string.
func concernsTrial(reason string) string {
	if reason == v1alpha1.ReasonCircuitHalfOpen || reason == v1alpha1.ReasonHostUnavailable {
		return reason
	}
	return ""
}
