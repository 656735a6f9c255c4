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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// historyPace is the delay before surplus runs are deleted. It batches the deletions. Counting does not wait for them.
const historyPace = 2 * time.Second

// history deletes the oldest finished runs of a strategy beyond spec.historyLimit.
type history struct {
	client client.Client
}

// +kubebuilder:rbac:groups=berth.dev,resources=strategyruns,verbs=delete

func setupHistory(mgr ctrl.Manager) error {
	counted := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*v1alpha1.Strategy)
		after, ok2 := e.ObjectNew.(*v1alpha1.Strategy)
		return ok1 && ok2 && (before.Status.Totals != after.Status.Totals || before.Generation != after.Generation)
	}}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("strategyhistory").
		Watches(&v1alpha1.Strategy{}, process.EnqueueAfter(historyPace, itself), builder.WithPredicates(counted)).
		Complete(&history{client: mgr.GetClient()})
	if err != nil {
		return fmt.Errorf("set up the controller for the history of strategies: %w", err)
	}
	return nil
}

// itself returns the key of a strategy.
func itself(object client.Object) (types.NamespacedName, bool) {
	return client.ObjectKeyFromObject(object), true
}

// Reconcile deletes the surplus runs. It deletes each run by its UID, so that a new run with the same name remains. It deletes no run of a Plan, because the Plan
// keeps its runs.
func (h *history) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	strategy := &v1alpha1.Strategy{}
	if err := h.client.Get(ctx, req.NamespacedName, strategy); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	list := &v1alpha1.StrategyRunList{}
	if err := h.client.List(ctx, list, client.InNamespace(req.Namespace), client.MatchingFields{indexCounted: req.Name}); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the finished runs of strategies/%s: %w", req, err)
	}
	runs := slices.DeleteFunc(list.Items, func(run v1alpha1.StrategyRun) bool {
		return !run.DeletionTimestamp.IsZero() || metav1.GetControllerOf(&run) != nil
	})
	extra := len(runs) - int(ptr.Deref(strategy.Spec.HistoryLimit, defaultHistory))
	if extra <= 0 {
		return ctrl.Result{}, nil
	}
	slices.SortFunc(runs, func(a, b v1alpha1.StrategyRun) int {
		return cmp.Or(finishedAt(&a).Compare(finishedAt(&b)), cmp.Compare(a.UID, b.UID))
	})
	for i := range runs[:extra] {
		uid := runs[i].UID
		err := h.client.Delete(ctx, &runs[i], client.Preconditions{UID: &uid})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return ctrl.Result{}, fmt.Errorf("delete run %s, which exceeds the history limit: %w", runs[i].Name, err)
		}
	}
	return ctrl.Result{}, nil
}

func finishedAt(run *v1alpha1.StrategyRun) time.Time {
	if run.Status.FinishTime == nil {
		return run.CreationTimestamp.Time
	}
	return run.Status.FinishTime.Time
}
