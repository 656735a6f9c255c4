// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/plan"
)

// indexPlan is the field index that finds the runs with the finalizer of their plan, by the name of the plan.
const indexPlan = "keptBy"

const planKind = "Plan"

// keptBy is the index function of indexPlan.
func keptBy(object client.Object) []string {
	owner := metav1.GetControllerOf(object)
	if owner == nil || owner.Kind != planKind || !controllerutil.ContainsFinalizer(object, v1alpha1.FinalizerPlan) {
		return nil
	}
	return []string{owner.Name}
}

// listRuns collects the runs of the plan. If a listed run is not in the cache, listRuns reads it from the API server, because only the API server can confirm
// that a run does not exist.
func (r *Reconciler) listRuns(ctx context.Context, v *scope) error {
	kept, err := r.kept(ctx, client.ObjectKeyFromObject(v.plan))
	if err != nil {
		return err
	}
	v.runs = map[string]*v1alpha1.StrategyRun{}
	for _, run := range kept {
		if owner := metav1.GetControllerOf(run); owner.UID == v.plan.UID {
			v.runs[run.Name] = run
		} else if err := r.leave(ctx, v, run); err != nil {
			return err
		}
	}
	for i := range v.plan.Status.Runs {
		listed := &v.plan.Status.Runs[i]
		if _, found := v.runs[listed.Name]; found || listed.Outcome != "" {
			continue
		}
		run := &v1alpha1.StrategyRun{}
		err := r.Reader.Get(ctx, types.NamespacedName{Namespace: v.plan.Namespace, Name: listed.Name}, run)
		switch {
		case err == nil:
			v.runs[listed.Name] = run
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("read run %s: %w", listed.Name, err)
		}
	}
	return nil
}

func (r *Reconciler) kept(ctx context.Context, key types.NamespacedName) ([]*v1alpha1.StrategyRun, error) {
	list := &v1alpha1.StrategyRunList{}
	if err := r.Client.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingFields{indexPlan: key.Name}); err != nil {
		return nil, fmt.Errorf("list the runs: %w", err)
	}
	runs := make([]*v1alpha1.StrategyRun, len(list.Items))
	for i := range list.Items {
		runs[i] = &list.Items[i]
	}
	return runs, nil
}

// leave releases a run of an older plan of the same name. It first confirms that the plan that was read is the current one.
func (r *Reconciler) leave(ctx context.Context, v *scope, run *v1alpha1.StrategyRun) error {
	if err := r.confirm(ctx, v); err != nil {
		return err
	}
	return r.removeFinalizer(ctx, run)
}

// abandon releases the runs of a plan that is deleted or being deleted, because no plan records their outcomes anymore. The runs are deleted with the plan,
// which owns them.
func (r *Reconciler) abandon(ctx context.Context, key types.NamespacedName) error {
	runs, err := r.kept(ctx, key)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if err := r.removeFinalizer(ctx, run); err != nil {
			return err
		}
	}
	return nil
}

// views converts the runs to the input of plan.Next.
func (r *Reconciler) views(object *v1alpha1.Plan, runs map[string]*v1alpha1.StrategyRun, now time.Time) []plan.Run {
	views := make([]plan.Run, 0, len(runs))
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		run := runs[name]
		view := plan.Run{
			Name: name, UID: run.UID, Outcome: run.Status.Outcome, Result: run.Status.Result,
			Cancelling: run.Spec.State == v1alpha1.RunCancelled || !run.DeletionTimestamp.IsZero(),
			Kept:       controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerPlan),
			Taken:      !metav1.IsControlledBy(run, object),
		}
		view.SeenAt, _ = r.seen.At(run, now)
		if succeeded := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionSucceeded); succeeded != nil {
			view.Message = succeeded.Message
		}
		stalled := meta.FindStatusCondition(run.Status.Conditions, v1alpha1.ConditionStalled)
		if view.Outcome == "" && stalled != nil && stalled.Status == metav1.ConditionTrue {
			view.Stuck = stalled.Reason
		}
		if view.Outcome == "" && !run.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerProcess) {
			view.Outcome, view.Message = v1alpha1.OutcomeCancelled, "The run was deleted before it started."
		}
		views = append(views, view)
	}
	return views
}

// act carries out the decision, which the status now records.
func (r *Reconciler) act(ctx context.Context, v *scope) error {
	if len(v.step.Create)+len(v.step.Cancel) > 0 {
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
	}
	var errs []error
	for _, request := range v.step.Create {
		errs = append(errs, r.create(ctx, v.plan, request))
	}
	for _, name := range v.step.Cancel {
		errs = append(errs, r.cancel(ctx, v.runs[name]))
	}
	for _, name := range v.step.Release {
		if left := r.countedSoon(v.plan, v.runs[name], v.now); left > 0 {
			v.again(left)
			continue
		}
		errs = append(errs, r.removeFinalizer(ctx, v.runs[name]))
	}
	return errors.Join(errs...)
}

// patience is how long the plan waits for the strategy to count a run. It is measured from the first observation of the end of the run. After counting the run,
// the strategy removes both finalizers, which takes one write instead of two that can conflict.
const patience = 5 * time.Second

// countedSoon returns how long to wait for the strategy to count the run. It returns 0 if the run is not in the status of the plan, ended some time ago, or was
// already counted.
func (r *Reconciler) countedSoon(object *v1alpha1.Plan, run *v1alpha1.StrategyRun, now time.Time) time.Duration {
	onRecord := slices.ContainsFunc(object.Status.Runs, func(r v1alpha1.PlanRun) bool { return r.Name == run.Name }) ||
		slices.ContainsFunc(object.Status.Results, func(r v1alpha1.PlanResult) bool { return r.Run == run.Name })
	at, lately := r.seen.At(run, now)
	if !onRecord || !lately || !controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerCount) {
		return 0
	}
	return patience - now.Sub(at)
}

// create creates a run. If an object with that name exists, create returns ErrStale, and the next reconcile checks the object: if it belongs to this plan, it
// is the run.
func (r *Reconciler) create(ctx context.Context, object *v1alpha1.Plan, request plan.RunRequest) error {
	run := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.Namespace, Name: request.Name,
		Labels: map[string]string{v1alpha1.LabelPlan: object.Name, v1alpha1.LabelStrategy: request.Strategy},
		// The run already has everything that its first reconcile would add, which saves a write.
		Finalizers: []string{v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount, v1alpha1.FinalizerPlan},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: planKind, Name: object.Name, UID: object.UID, Controller: ptr.To(true),
		}},
	}}
	r.Hosts.Label(run)
	run.Spec.StrategyRef.Name = request.Strategy
	run.Spec.State = v1alpha1.RunActive
	run.Spec.Program, run.Spec.Inputs = request.Program, request.Inputs
	run.Spec.Arguments = append(run.Spec.Arguments, object.Spec.Arguments...)
	run.Spec.Arguments = append(run.Spec.Arguments, object.Status.Pinned.Defaults...)
	run.Spec.Arguments = append(run.Spec.Arguments,
		v1alpha1.RunArgument{Name: "plan", Value: object.Name},
		v1alpha1.RunArgument{Name: "phase", Value: string(request.Phase)},
		v1alpha1.RunArgument{Name: "attempt", Value: strconv.Itoa(int(request.Attempt))},
	)
	err := r.Client.Create(ctx, run)
	if apierrors.IsAlreadyExists(err) {
		return consistency.ErrStale
	}
	if err != nil {
		return fmt.Errorf("create run %s: %w", request.Name, err)
	}
	r.ownRuns.Store(run.UID, true)
	return nil
}

// cancel requests the cancellation of a run.
func (r *Reconciler) cancel(ctx context.Context, run *v1alpha1.StrategyRun) error {
	if run.Spec.State == v1alpha1.RunCancelled {
		return nil
	}
	base := run.DeepCopy()
	run.Spec.State = v1alpha1.RunCancelled
	return consistency.Patch(ctx, r.Client, base, run, "cancel run "+run.Name)
}

// removeFinalizer removes the finalizer of the plan from a run.
func (r *Reconciler) removeFinalizer(ctx context.Context, run *v1alpha1.StrategyRun) error {
	if !controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerPlan) {
		return nil
	}
	return consistency.RemoveFinalizers(ctx, r.Client, run, "remove the finalizer of run "+run.Name, v1alpha1.FinalizerPlan)
}
