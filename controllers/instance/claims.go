// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/claim"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// IndexPlace is the field index that finds Instances by the session or container that they claim.
const IndexPlace = "berth.dev/place"

// conflictRetry is how soon to look again whether the session is free; its owner's end is an event besides.
const conflictRetry = 2 * time.Second

// settle blocks an Instance whose session or container belongs to another one.
func (k *Kind) settle(ctx context.Context, instance *v1alpha1.Instance, plan *process.Plan) error {
	thing := place(instance)
	if thing == "" || !live(instance) && !wants(instance) {
		return nil // it claims nothing, or no more
	}
	var list v1alpha1.InstanceList
	if err := k.client.List(ctx, &list, client.MatchingFields{IndexPlace: thing}); err != nil {
		return fmt.Errorf("list the instances that claim the same: %w", err)
	}
	claims := []claim.Claim{claim.Of(instance, live(instance))}
	for i := range list.Items {
		if other := &list.Items[i]; other.UID != instance.UID && (live(other) || wants(other)) {
			claims = append(claims, claim.Of(other, live(other)))
		}
	}
	first := k.reserved.Settle(thing, instance.UID, claims)
	if first.UID == instance.UID || plan.Blocked != nil {
		return nil
	}
	plan.Blocked = &lifecycle.Blocked{
		Conflict: true,
		Reason:   v1alpha1.ReasonSessionClaimed,
		Message:  fmt.Sprintf("%s belongs to Instance %s, which claimed it first; stop or delete that one, or name another", named(thing), first.Key),
		Retry:    conflictRetry,
	}
	return nil
}

// check blocks an Instance whose start the backend would refuse: somebody else has a session of that name, or there is nothing to adopt.
func (k *Kind) check(ctx context.Context, instance *v1alpha1.Instance, plan *process.Plan) error {
	checker, checks := k.Runtime(instance).(runtime.Checker)
	if !checks || plan.Blocked != nil || !live(instance) && !wants(instance) {
		return nil
	}
	err := checker.Check(ctx, plan.Process)
	var refused *runtime.StartError
	if errors.As(err, &refused) {
		plan.Blocked = &lifecycle.Blocked{
			Conflict: refused.Reason == v1alpha1.ReasonSessionTaken || refused.Reason == v1alpha1.ReasonSessionClaimed,
			Absent:   refused.Reason == v1alpha1.ReasonNothingToAdopt || refused.Reason == v1alpha1.ReasonContainerMissing,
			Reason:   refused.Reason,
			Message:  refused.Message,
			Retry:    conflictRetry,
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask whether it can be started: %w", err)
	}
	return nil
}

// live says that an incarnation was recorded whose end was not.
func live(instance *v1alpha1.Instance) bool {
	status := &instance.Status
	return status.Process != nil || status.Incarnation > 0 && (status.LastExit == nil || status.LastExit.Incarnation < status.Incarnation)
}

// wants says that the object may start a process: it should run, and has not ended for good.
func wants(instance *v1alpha1.Instance) bool {
	if instance.Spec.State == v1alpha1.StateStopped || !instance.DeletionTimestamp.IsZero() {
		return false
	}
	status := &instance.Status
	settled := status.ObservedGeneration == instance.Generation && status.LastExit != nil && status.NextRestartTime == nil &&
		status.LastExit.Incarnation >= status.Incarnation && status.LastExit.Reason != v1alpha1.ReasonStopped
	return !settled
}

func byPlace(object client.Object) []string {
	instance, ok := object.(*v1alpha1.Instance)
	if !ok || place(instance) == "" {
		return nil
	}
	return []string{place(instance)}
}

// rivals gives the other objects that claim the same.
func (k *Kind) rivals(ctx context.Context, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, thing := range byPlace(object) {
		var list v1alpha1.InstanceList
		if err := k.client.List(ctx, &list, client.MatchingFields{IndexPlace: thing}); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Listing the instances that claim the same", "claim", thing)
			continue // each of them also looks again by itself
		}
		for i := range list.Items {
			if list.Items[i].UID != object.GetUID() {
				requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
	}
	return requests
}

// contentionChanged lets through what may give a session to somebody else. What an object claims never changes: its runtime is immutable.
func contentionChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Instance)
			if !ok {
				return false
			}
			after, ok := e.ObjectNew.(*v1alpha1.Instance)
			return ok && (live(before) != live(after) || wants(before) != wants(after))
		},
	}
}

// named makes words of what is claimed.
func named(thing string) string {
	var socket, name string
	if n, _ := fmt.Sscanf(thing, "docker %s", &name); n == 1 {
		return fmt.Sprintf("container %q", name)
	}
	if n, _ := fmt.Sscanf(thing, "tmux %s", &socket); n == 1 {
		return fmt.Sprintf("session %q of the tmux server %q", thing[len("tmux ")+len(socket)+1:], socket)
	}
	return thing
}
