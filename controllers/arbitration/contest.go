// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package arbitration

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// Live reports whether the status records an incarnation but not its exit.
func Live(object process.Object) bool {
	status := object.GetProcessStatus()
	return status.Process != nil || status.Incarnation > 0 && (status.LastExit == nil || status.LastExit.Incarnation < status.Incarnation)
}

// Wants reports whether the object may start a process. It returns false if the spec requests none, if the last process has exited and is not restarted, or if
// the object is being deleted.
func Wants(object process.Object) bool {
	if object.GetProcessSpec().State == v1alpha1.StateStopped || !object.GetDeletionTimestamp().IsZero() {
		return false
	}
	status := object.GetProcessStatus()
	settled := status.ObservedGeneration == object.GetGeneration() && status.LastExit != nil && status.NextRestartTime == nil &&
		status.LastExit.Incarnation >= status.Incarnation && status.LastExit.Reason != v1alpha1.ReasonStopped
	return !settled
}

// Competes reports whether an object takes part in the contests for the things that it names: its process runs, or the object may start one, and nothing but a
// contest prevents the start. Otherwise an object that can never start, such as one whose namespace does not permit the runtime, would keep a thing from objects
// that could use it.
func Competes(object process.Object) bool {
	return Live(object) || Wants(object) && !blocked(object)
}

// blocked reports whether the status shows that something other than a contest prevents the start of the process. An open breaker does not count: the process has
// used the thing, and starts again after the cool-down.
func blocked(object process.Object) bool {
	conditions := object.GetProcessStatus().Conditions
	stalled := meta.FindStatusCondition(conditions, v1alpha1.ConditionStalled)
	if stalled == nil || stalled.Status != metav1.ConditionTrue || stalled.ObservedGeneration != object.GetGeneration() {
		return false
	}
	switch stalled.Reason {
	case v1alpha1.ReasonCircuitOpen, v1alpha1.ReasonUnknown, v1alpha1.ReasonHostUnavailable:
		return false
	}
	return !meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionConflict)
}

// Contest describes what the objects of one kind compete for.
type Contest struct {
	// Index is the field index that finds objects by the things that they name.
	Index string
	// Things returns the things that an object names: the values of the index.
	Things client.IndexerFunc
	// NewList returns an empty list of the kind.
	NewList func() client.ObjectList
}

// Watch makes the controller reconcile the competing objects when one of them may have released a thing. The reader must have the index.
func (c Contest) Watch(b *builder.Builder, reader client.Reader, kind client.Object) *builder.Builder {
	rivals := func(ctx context.Context, object client.Object) []reconcile.Request {
		return c.Rivals(ctx, reader, object)
	}
	return b.Watches(kind, handler.EnqueueRequestsFromMapFunc(rivals), builder.WithPredicates(c.Changed()))
}

// Rivals returns a reconcile request for every other object that names at least one of the same things as object.
func (c Contest) Rivals(ctx context.Context, reader client.Reader, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, thing := range c.Things(object) {
		list := c.NewList()
		err := reader.List(ctx, list, client.MatchingFields{c.Index: thing})
		if err == nil {
			err = meta.EachListItem(list, func(item kruntime.Object) error {
				other, ok := item.(client.Object)
				if !ok {
					return fmt.Errorf("%T is not an API object", item)
				}
				if other.GetUID() != object.GetUID() {
					requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(other)})
				}
				return nil
			})
		}
		if err != nil { // not fatal: a blocked object also retries at intervals
			ctrl.LoggerFrom(ctx).Error(err, "Cannot list the objects that claim a session, container or port", "index", c.Index, "thing", thing)
		}
	}
	return requests
}

// Changed returns a predicate that passes deletions, and updates that change whether or what an object claims.
func (c Contest) Changed() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		DeleteFunc:  func(event.DeleteEvent) bool { return true },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(process.Object)
			if !ok {
				return false
			}
			after, ok := e.ObjectNew.(process.Object)
			return ok && (Live(before) != Live(after) || Competes(before) != Competes(after) || Wants(before) != Wants(after) || !slices.Equal(c.Things(before), c.Things(after)))
		},
	}
}
