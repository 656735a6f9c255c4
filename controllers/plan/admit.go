// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/plan"
)

// admit handles a plan that has not begun: it determines what the plan will pin, or why the plan cannot begin. It reads everything from the API server and
// not from the cache, because the plan keeps what it pins. A plan that is a copy may not continue either.
func (r *Reconciler) admit(ctx context.Context, v *scope) (err error) {
	if message := process.RestoredFrom("plan", v.plan); message != "" && !v.desired.Cancelled && v.plan.Status.FinishTime == nil {
		v.desired.Blocked = &plan.Blocked{Reason: v1alpha1.ReasonRestored, Waiting: "for its deletion: it is a copy of an earlier plan", Message: message}
		return nil
	}
	if begun(v.plan) || v.plan.Status.DuplicateOf != nil || v.desired.Cancelled {
		return nil
	}
	for _, ask := range []func(context.Context, *scope) (*plan.Blocked, error){r.own, r.arbitrate, r.pin} {
		if v.desired.Blocked, err = ask(ctx, v); err != nil || v.desired.Blocked != nil {
			return err
		}
	}
	return nil
}

// arbitrate looks for another plan with the same key that takes precedence: one that has begun, otherwise the oldest.
func (r *Reconciler) arbitrate(ctx context.Context, v *scope) (*plan.Blocked, error) {
	if v.plan.Spec.IdempotencyKey == "" {
		return nil, nil //nolint:nilnil // nothing blocks
	}
	list := &v1alpha1.PlanList{}
	err := r.Reader.List(ctx, list, client.InNamespace(v.plan.Namespace), client.MatchingFields{"spec.idempotencyKey": v.plan.Spec.IdempotencyKey})
	if err != nil {
		return nil, fmt.Errorf("list the plans with the same key: %w", err)
	}
	rivals := slices.DeleteFunc(list.Items, func(other v1alpha1.Plan) bool { return other.Status.DuplicateOf != nil })
	if len(rivals) == 0 {
		return nil, consistency.ErrStale // this plan no longer exists
	}
	first := slices.MinFunc(rivals, func(a, b v1alpha1.Plan) int {
		return cmp.Or(
			cmp.Compare(late(&a), late(&b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID),
		)
	})
	if first.UID == v.plan.UID {
		return nil, nil //nolint:nilnil // nothing blocks
	}
	blocked := &plan.Blocked{Reason: v1alpha1.ReasonDuplicate, Waiting: "for plan " + first.Name + ", which has the same key",
		Message: fmt.Sprintf("Plan %s has the same idempotencyKey and takes precedence. This plan starts only if that plan is deleted before it starts.", first.Name)}
	if begun(&first) { // a plan that has not begun may still lose its precedence
		blocked.Duplicate = &v1alpha1.PlanReference{Name: first.Name, UID: first.UID}
	}
	return blocked, nil
}

// late is a sort key: plans that have begun come first.
func late(object *v1alpha1.Plan) int {
	if begun(object) {
		return 0
	}
	return 1
}

// pin resolves the action and its strategies. It returns why the plan may not begin, for example if one of them does not exist.
func (r *Reconciler) pin(ctx context.Context, v *scope) (*plan.Blocked, error) {
	name := v.plan.Spec.ActionRef.Name
	action := &v1alpha1.Action{}
	err := r.Reader.Get(ctx, types.NamespacedName{Namespace: v.plan.Namespace, Name: name}, action)
	if apierrors.IsNotFound(err) || err == nil && !action.DeletionTimestamp.IsZero() {
		return &plan.Blocked{Reason: v1alpha1.ReasonActionMissing, Waiting: "for action " + name,
			Message: fmt.Sprintf("Action %s does not exist in namespace %s; create it, or delete this plan.", name, v.plan.Namespace)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read action %s: %w", name, err)
	}
	strategies := map[string]*v1alpha1.Strategy{}
	for _, name := range plan.Strategies(action) {
		strategy := &v1alpha1.Strategy{}
		err := r.Reader.Get(ctx, types.NamespacedName{Namespace: v.plan.Namespace, Name: name}, strategy)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read strategy %s: %w", name, err)
		}
		if err == nil && strategy.DeletionTimestamp.IsZero() {
			strategies[name] = strategy
		}
	}
	var blocked *plan.Blocked
	v.desired.Pinned, blocked = plan.Pin(action, strategies, v.plan.Spec.Arguments)
	return blocked, nil
}

const instanceKind = "Instance"

// own makes the Instance of spec.instanceRef an owner of the plan, so that the plan is deleted with it.
func (r *Reconciler) own(ctx context.Context, v *scope) (*plan.Blocked, error) {
	if v.plan.Spec.InstanceRef == nil {
		return nil, nil //nolint:nilnil // nothing blocks
	}
	name := v.plan.Spec.InstanceRef.Name
	instance := &v1alpha1.Instance{}
	err := r.Reader.Get(ctx, types.NamespacedName{Namespace: v.plan.Namespace, Name: name}, instance)
	if apierrors.IsNotFound(err) || err == nil && !instance.DeletionTimestamp.IsZero() {
		return instanceMissing(name, "Instance %s does not exist in namespace %s; create it, or recreate this plan without spec.instanceRef.",
			name, v.plan.Namespace), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Instance of spec.instanceRef: %w", err)
	}
	for _, reference := range v.plan.OwnerReferences {
		switch {
		case reference.Kind != instanceKind || reference.Name != name:
		case reference.UID == instance.UID:
			return nil, nil //nolint:nilnil // nothing blocks
		default:
			return instanceMissing(name, "The Instance %s that owned this plan was deleted, and a new one has its name. Recreate this plan.", name), nil
		}
	}
	base := v.plan.DeepCopy()
	v.plan.OwnerReferences = append(v.plan.OwnerReferences, metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: instanceKind, Name: name, UID: instance.UID,
	})
	if err := consistency.Patch(ctx, r.Client, base, v.plan, "set Instance "+name+" as the owner"); err != nil {
		return nil, err
	}
	r.writes.Record(v.plan)
	return nil, nil //nolint:nilnil // nothing blocks
}

func instanceMissing(name, format string, args ...any) *plan.Blocked {
	return &plan.Blocked{Reason: v1alpha1.ReasonInstanceMissing, Waiting: "for instance " + name, Message: fmt.Sprintf(format, args...)}
}
