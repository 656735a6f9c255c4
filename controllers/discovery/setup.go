// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// gather is the delay between a change of an Instance and the next run of its discovery, so that two hundred adoptions in a short time cause one search.
const gather = time.Second

// longestReconcile bounds a reconcile that hangs. A search takes at most lookTimeout, and the remaining work takes milliseconds per object.
const longestReconcile = time.Minute

// Setup registers the controller of InstanceDiscoveries with the manager. It uses the indexes of the controller of Instances.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	deps = deps.WithDefaults()
	reconciler := &Reconciler{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Runtimes: deps.Runtimes, Recorder: mgr.GetEventRecorder("berth-discoveries"), Clock: deps.Clock,
		Hosts: deps.Hosts, Permission: deps.Permission,
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("instancediscoveries").
		For(&v1alpha1.InstanceDiscovery{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&v1alpha1.Instance{}, process.EnqueueAfter(gather, discoveryOf), builder.WithPredicates(telling())).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: deps.Concurrency, RateLimiter: process.Retries(), ReconciliationTimeout: longestReconcile,
		}).
		Complete(reconciler)
	if err != nil {
		return fmt.Errorf("set up the controller of instancediscoveries: %w", err)
	}
	return nil
}

// discoveryOf returns the key of the discovery that created an Instance.
func discoveryOf(object client.Object) (types.NamespacedName, bool) {
	name := object.GetLabels()[v1alpha1.LabelDiscoveredBy]
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: name}, name != ""
}

// telling returns a predicate that passes the events that may change the status of a discovery: an Instance has adopted or released its session or container,
// or was deleted.
func telling() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*v1alpha1.Instance)
			after, ok2 := e.ObjectNew.(*v1alpha1.Instance)
			return ok1 && ok2 && adopted(before) != adopted(after)
		},
	}
}

func adopted(object *v1alpha1.Instance) bool {
	return meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionAdopted)
}
