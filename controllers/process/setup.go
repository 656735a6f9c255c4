// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime"
)

// IndexUID is the field index that finds objects of a process kind by UID.
const IndexUID = "metadata.uid"

// DefaultConcurrency is how many objects of one kind are reconciled concurrently. A reconcile never waits for a process, so a higher value has no
// benefit.
const DefaultConcurrency = 8

// firstRetry and longestRetry bound the exponential back-off of reconciles that fail. After a full disk or a failure of the API server, reconciles resume
// only when the back-off has passed. Therefore longestRetry is short (the default of controller-runtime is 1000 seconds).
const (
	firstRetry   = 5 * time.Millisecond
	longestRetry = 5 * time.Second
)

// Retries returns the rate limiter for reconciles that failed.
func Retries() workqueue.TypedRateLimiter[ctrl.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](firstRetry, longestRetry)
}

// longestReconcile is the timeout of a reconcile. A normal one takes milliseconds.
const longestReconcile = 30 * time.Second

// Dependencies are what a controller of a process kind needs.
type Dependencies struct {
	// Runtimes are the backends that run processes.
	Runtimes *runtime.Registry
	// Clock returns the time; nil means the system clock.
	Clock clock.PassiveClock
	// Dispatcher forwards events of the backends to the controllers. A kind may also call its Wake(uid) when it detects a change itself.
	Dispatcher *Dispatcher
	// Hosts holds what the manager knows about its own host and the other hosts; nil if there is only this manager.
	Hosts *hosts.Hosts
	// Restarts limits restarts after failures across all objects; nil means no limit.
	Restarts *Restarts
	// Permission is checked before each start on this machine; nil permits every start.
	Permission *Permission
	// Presence records who uses the terminals of objects.
	Presence *activity.Tracker
	// Reports has what the hooks of coding agents report, at HookSocket; nil if the manager receives no reports.
	Reports    *hook.Tracker
	HookSocket string
	// Concurrency is how many objects of one kind are reconciled concurrently; 0 means DefaultConcurrency.
	Concurrency int
}

// WithDefaults returns a copy in which a nil Clock and a Concurrency of 0 are replaced by their defaults.
func (d Dependencies) WithDefaults() Dependencies {
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Concurrency == 0 {
		d.Concurrency = DefaultConcurrency
	}
	return d
}

// Option changes the controller that Setup builds, for example to add watches of the kind.
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
		OnVanished: deps.Dispatcher.stranger,
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
		return fmt.Errorf("set up the controller for %s: %w", kind.Resource(), err)
	}
	return nil
}

// relevant returns a predicate that passes changes by users and drops the status writes of the controller itself.
func relevant() predicate.Predicate {
	return predicate.Or(
		predicate.GenerationChangedPredicate{},
		predicate.AnnotationChangedPredicate{},
		predicate.LabelChangedPredicate{},
		predicate.Funcs{UpdateFunc: deletedOrReleased},
		Overwritten(func(object client.Object) []metav1.Condition {
			return object.(Object).GetProcessStatus().Conditions // only objects of process kinds are watched
		}),
	)
}

// deletedOrReleased reports whether an update needs a reconcile for one of three reasons: the deletion of the object has begun; the object has lost the process
// finalizer, which must be restored; or another manager has reported the host of the object as unavailable, which the manager of that host must correct.
func deletedOrReleased(e event.UpdateEvent) bool {
	if e.ObjectOld == nil || e.ObjectNew == nil {
		return false
	}
	if after, ok := e.ObjectNew.(Object); ok && unavailable(after) {
		return true
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
