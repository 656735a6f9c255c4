// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/presence"
	"github.com/berth-dev/berth/internal/runtime"
)

// IndexUID is the field index that finds an object of a process kind by its UID.
const IndexUID = "metadata.uid"

// DefaultConcurrency is how many objects of one kind are reconciled at once. A reconcile never waits for a process, so more buys nothing.
const DefaultConcurrency = 8

// After an error an object is looked at again soon, then ever more rarely. The longest wait is also how long it takes to notice that a disk has
// room again or that the API server is back, so it is short; the default would be a quarter of an hour.
const (
	firstRetry   = 5 * time.Millisecond
	longestRetry = 5 * time.Second
)

// Retries is how soon to look again after an error.
func Retries() workqueue.TypedRateLimiter[ctrl.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](firstRetry, longestRetry)
}

// longestReconcile ends a reconcile that hangs; one that works takes milliseconds.
const longestReconcile = 30 * time.Second

// Dependencies is what a controller of a process kind is made with.
type Dependencies struct {
	// Runtimes are the backends that run processes.
	Runtimes *runtime.Registry
	// Clock gives the time; nil means the real one.
	Clock clock.PassiveClock
	// Dispatcher brings what happens outside to the controllers. Its Wake(uid) may be called by a kind too, when it learned something itself.
	Dispatcher *Dispatcher
	// Hosts knows this host and the others; nil if the manager is alone.
	Hosts *hosts.Hosts
	// Restarts limits restarts after failures over all objects; nil does not.
	Restarts *Restarts
	// Permission is checked before a start on this machine; nil permits all of them.
	Permission *Permission
	// Presence is where it is noted who uses the terminals of objects; nil means nobody ever does.
	Presence *presence.Book
	// Concurrency is how many objects of one kind are reconciled at once; 0 means DefaultConcurrency.
	Concurrency int
}

// WithDefaults gives them with what stands for nil and 0.
func (d Dependencies) WithDefaults() Dependencies {
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Concurrency == 0 {
		d.Concurrency = DefaultConcurrency
	}
	return d
}

// Option changes the controller that Setup builds: a kind adds its own watches with it.
type Option func(*builder.Builder) *builder.Builder

// Setup registers the controller of one process kind with the manager.
func Setup(mgr ctrl.Manager, kind Kind, deps Dependencies, options ...Option) error {
	deps = deps.WithDefaults()
	byUID := func(object client.Object) []string { return []string{string(object.GetUID())} }
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), kind.New(), IndexUID, byUID); err != nil {
		return fmt.Errorf("index %s by UID: %w", kind.Resource(), err)
	}
	reconciler := &Reconciler{
		Client:     mgr.GetClient(),
		Reader:     mgr.GetAPIReader(),
		Runtimes:   deps.Runtimes,
		Kind:       kind,
		Recorder:   mgr.GetEventRecorder("berth-" + kind.Resource()),
		Clock:      deps.Clock,
		Hosts:      deps.Hosts,
		Permission: deps.Permission,
		Restarts:   deps.Restarts,
	}
	b := ctrl.NewControllerManagedBy(mgr).
		Named(kind.Resource()).
		For(kind.New(), builder.WithPredicates(relevant())).
		WatchesRawSource(deps.Dispatcher.source(kind)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: deps.Concurrency,
			RateLimiter:             Retries(),
			ReconciliationTimeout:   longestReconcile,
		})
	if deps.Permission != nil {
		b = deps.Permission.watch(b, mgr.GetClient(), kind)
	}
	for _, option := range options {
		b = option(b)
	}
	if err := b.Complete(reconciler); err != nil {
		return fmt.Errorf("set up the controller of %s: %w", kind.Resource(), err)
	}
	return nil
}

// relevant lets through what people change, and keeps out the status that the controller itself writes.
func relevant() predicate.Predicate {
	return predicate.Or(
		predicate.GenerationChangedPredicate{},
		predicate.AnnotationChangedPredicate{},
		predicate.LabelChangedPredicate{},
		predicate.Funcs{UpdateFunc: deletedOrReleased},
	)
}

// deletedOrReleased lets through an object that began to be deleted, lost our finalizer, which then has to be put back, or whose host was reported as
// unavailable, which its host corrects.
func deletedOrReleased(e event.UpdateEvent) bool {
	if e.ObjectOld == nil || e.ObjectNew == nil {
		return false
	}
	if after, ok := e.ObjectNew.(Object); ok && unavailable(after) {
		return true // another manager has reported this host as unavailable
	}
	deleted := e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero()
	released := controllerutil.ContainsFinalizer(e.ObjectOld, v1alpha1.FinalizerProcess) &&
		!controllerutil.ContainsFinalizer(e.ObjectNew, v1alpha1.FinalizerProcess)
	return deleted || released
}

func unavailable(object Object) bool {
	stalled := meta.FindStatusCondition(object.GetProcessStatus().Conditions, v1alpha1.ConditionStalled)
	return stalled != nil && stalled.Reason == v1alpha1.ReasonHostUnavailable
}
