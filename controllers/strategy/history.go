// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// historyPace is the delay before surplus runs are deleted. It batches the deletions. Counting does not wait for them.
const historyPace = 2 * time.Second

// history deletes the oldest finished runs of a strategy beyond spec.historyLimit.
type history struct {
	client client.Client
}

// +kubebuilder:rbac:groups=berth.dev,resources=strategyruns,verbs=delete

func setupHistory(mgr ctrl.Manager, now clock.PassiveClock) error {
	counted := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*v1alpha1.Strategy)
		after, ok2 := e.ObjectNew.(*v1alpha1.Strategy)
		return ok1 && ok2 && (before.Status.Totals != after.Status.Totals || before.Generation != after.Generation)
	}}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("strategyhistory").
		For(&v1alpha1.Strategy{}, builder.WithPredicates(counted)).
		Complete(&pacedHistory{history: history{client: mgr.GetClient()}, clock: now})
	if err != nil {
		return fmt.Errorf("set up the controller for the history of strategies: %w", err)
	}
	return nil
}

// pacedHistory deletes surplus runs once for all events within historyPace.
type pacedHistory struct {
	history
	clock  clock.PassiveClock
	memory dueTimes
}

// Reconcile postpones the first request by historyPace, and deletes surplus runs when that time is over.
func (p *pacedHistory) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if left := p.memory.due(req.NamespacedName, p.clock.Now(), historyPace); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	return ctrl.Result{}, p.shorten(ctx, req)
}

// shorten deletes the surplus runs. It deletes each run by its UID, so that a new run with the same name remains. It deletes no run of a Plan, because the Plan
// keeps its runs.
func (h *history) shorten(ctx context.Context, req ctrl.Request) error {
	strategy := &v1alpha1.Strategy{}
	if err := h.client.Get(ctx, req.NamespacedName, strategy); err != nil {
		return client.IgnoreNotFound(err)
	}
	list := &v1alpha1.StrategyRunList{}
	if err := h.client.List(ctx, list, client.InNamespace(req.Namespace), client.MatchingFields{indexCounted: req.Name}); err != nil {
		return fmt.Errorf("list the finished runs of strategies/%s: %w", req, err)
	}
	runs := slices.DeleteFunc(list.Items, func(run v1alpha1.StrategyRun) bool {
		return !run.DeletionTimestamp.IsZero() || metav1.GetControllerOf(&run) != nil
	})
	extra := len(runs) - int(ptr.Deref(strategy.Spec.HistoryLimit, defaultHistory))
	if extra <= 0 {
		return nil
	}
	slices.SortFunc(runs, func(a, b v1alpha1.StrategyRun) int {
		return cmp.Or(finishedAt(&a).Compare(finishedAt(&b)), cmp.Compare(a.UID, b.UID))
	})
	for i := range runs[:extra] {
		uid := runs[i].UID
		err := h.client.Delete(ctx, &runs[i], client.Preconditions{UID: &uid})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete run %s, which exceeds the history limit: %w", runs[i].Name, err)
		}
	}
	return nil
}

func finishedAt(run *v1alpha1.StrategyRun) time.Time {
	if run.Status.FinishTime == nil {
		return run.CreationTimestamp.Time
	}
	return run.Status.FinishTime.Time
}
