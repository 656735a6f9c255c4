// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package strategyrun implements what is specific to StrategyRuns. A run copies its process spec from its Strategy, waits for the breaker of the Strategy, and
// has an outcome.
package strategyrun

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/perobject"
	"github.com/berth-dev/berth/internal/runtime"
)

// indexWaiting is the field index that finds the runs that have not started, by their strategy.
const indexWaiting = "waitsFor"

// defaultTimeout is the default of the API in seconds, for strategies that were stored before the API had this default.
const defaultTimeout = 3600

// Kind implements process.Kind for StrategyRuns.
type Kind struct {
	// client reads from the cache, reader from the API server.
	client   client.Reader
	reader   client.Reader
	clock    clock.PassiveClock
	runtimes *runtime.Registry

	// found holds the strategy of each run that has not started, as read at the beginning of the current reconcile; nil if there is none.
	found perobject.Map[*v1alpha1.Strategy]
}

var (
	_ process.Kind          = &Kind{}
	_ process.SpecResolver  = &Kind{}
	_ process.StatusDeriver = &Kind{}
)

// +kubebuilder:rbac:groups=berth.dev,resources=strategyruns,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=strategyruns/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=strategyruns/finalizers,verbs=update
// +kubebuilder:rbac:groups=berth.dev,resources=strategies;plans,verbs=get;list;watch

// New returns the kind. cache reads from a cache with the index indexWaiting, reader from the API server. runtimes are the backends that execute runs.
func New(cache, reader client.Reader, runtimes *runtime.Registry, now clock.PassiveClock) *Kind {
	if now == nil {
		now = clock.RealClock{}
	}
	return &Kind{client: cache, reader: reader, runtimes: runtimes, clock: now}
}

// Setup registers the controller of StrategyRuns with the manager.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.StrategyRun{}, indexWaiting, waitsFor); err != nil {
		return fmt.Errorf("index waiting strategyruns: %w", err)
	}
	kind := New(mgr.GetClient(), mgr.GetAPIReader(), deps.Runtimes, deps.Clock)
	return process.Setup(mgr, kind, deps, func(b *builder.Builder) *builder.Builder {
		changed := predicate.ResourceVersionChangedPredicate{}
		return b.Watches(&v1alpha1.Strategy{}, handler.EnqueueRequestsFromMapFunc(kind.waiting), builder.WithPredicates(changed))
	})
}

// waitsFor is the index function of indexWaiting.
func waitsFor(object client.Object) []string {
	run := object.(*v1alpha1.StrategyRun) // only StrategyRuns are indexed
	if run.Status.Outcome != "" || run.Status.Incarnation > 0 && !held(run) {
		return nil
	}
	return []string{run.Spec.StrategyRef.Name}
}

// held reports whether the start of a run is recorded, but was not admitted when it was about to happen.
func held(run *v1alpha1.StrategyRun) bool {
	return run.Status.Process == nil && run.Status.LastExit == nil && meta.IsStatusConditionTrue(run.Status.Conditions, v1alpha1.ConditionStalled)
}

// waiting returns requests for the runs of a strategy that have not started, because they may have waited for a change of the strategy.
func (k *Kind) waiting(ctx context.Context, object client.Object) []reconcile.Request {
	in, waiting := client.InNamespace(object.GetNamespace()), client.MatchingFields{indexWaiting: object.GetName()}
	return process.Requests(ctx, k.client, &v1alpha1.StrategyRunList{}, in, waiting)
}

// Resource implements process.Kind.
func (*Kind) Resource() string { return "strategyruns" }

// New returns an empty StrategyRun.
func (*Kind) New() process.Object { return &v1alpha1.StrategyRun{} }

// NewList returns an empty list of StrategyRuns.
func (*Kind) NewList() client.ObjectList { return &v1alpha1.StrategyRunList{} }

// Runtime returns the backend of the run. Before the run starts, this is the backend that the strategy names now; afterwards, it is the one that the strategy
// named at the start.
func (k *Kind) Runtime(object process.Object) runtime.Runtime {
	return k.runtimes.For(podspec.Type(k.runtimeOf(runOf(object))))
}

// Traits implements process.Kind. A finalizer keeps a run until its strategy has counted it. A run with an outcome does not get the finalizer, because it may
// have been counted already.
func (k *Kind) Traits(object process.Object) process.Traits {
	run := runOf(object)
	spec := k.runtimeOf(run)
	traits := process.Traits{
		Runtime:  podspec.Type(spec),
		Template: podspec.Template(spec),
		Once:     &lifecycle.Once{Outcome: run.Status.Outcome},
	}
	if run.Status.FinishTime != nil {
		traits.Once.FinishTime = run.Status.FinishTime.Time
	}
	if run.Status.Outcome == "" {
		traits.Finalizers = []string{v1alpha1.FinalizerCount}
		traits.Marked = planOf(run) == nil
	}
	return traits
}

// Asleep implements process.Kind. It returns false, because a run never sleeps.
func (*Kind) Asleep(context.Context, process.Object, time.Time) bool { return false }

// runtimeOf returns the runtime that the run copied from its strategy when it started, or would copy now.
func (k *Kind) runtimeOf(run *v1alpha1.StrategyRun) *v1alpha1.RuntimeSpec {
	if started(run) || run.Status.Outcome != "" {
		if run.Status.Pinned == nil {
			return nil
		}
		return run.Status.Pinned.Runtime
	}
	if found := k.found.Get(run.UID); found != nil && *found != nil {
		return (*found).Spec.Runtime
	}
	return nil
}

// keeper returns the store for the results of the run. It returns nil if the backend has none.
func (k *Kind) keeper(run *v1alpha1.StrategyRun) runtime.ResultStore {
	return k.Runtime(run).Capabilities().Results
}

// ResolveSpec returns the process spec of the run: the one that was copied from the strategy when the run started, otherwise the current one of the strategy.
func (k *Kind) ResolveSpec(ctx context.Context, object process.Object) (*v1alpha1.ProcessSpec, error) {
	run := runOf(object)
	pinned := run.Status.Pinned
	if !started(run) && run.Status.Outcome == "" && run.DeletionTimestamp.IsZero() {
		strategy, err := k.strategy(ctx, run)
		if err != nil {
			return nil, err
		}
		*k.found.Keep(run.UID) = strategy
		pinned = pin(strategy)
	}
	spec := &v1alpha1.ProcessSpec{State: v1alpha1.StateRunning, RestartPolicy: v1alpha1.RestartNever, UpdatePolicy: v1alpha1.UpdateOnRestart}
	if pinned != nil {
		spec.TTLSecondsAfterStopped = pinned.TTLSecondsAfterFinished
		if pinned.Process != nil {
			spec.Process = *pinned.Process.DeepCopy()
		}
	}
	if run.Spec.State == v1alpha1.RunCancelled || run.Status.Outcome != "" {
		spec.State = v1alpha1.StateStopped
	}
	return spec, nil
}

// strategy reads the strategy from the API server and not from the cache, so that every run respects a breaker that opened or was reset a moment ago.
func (k *Kind) strategy(ctx context.Context, run *v1alpha1.StrategyRun) (*v1alpha1.Strategy, error) {
	strategy := &v1alpha1.Strategy{}
	err := k.reader.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: run.Spec.StrategyRef.Name}, strategy)
	if apierrors.IsNotFound(err) {
		strategy, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the strategy of the run: %w", err)
	}
	return strategy, nil
}

func (k *Kind) take(uid types.UID) *v1alpha1.Strategy {
	found := k.found.Get(uid)
	k.found.Forget(uid)
	if found == nil {
		return nil
	}
	return *found
}

func pin(strategy *v1alpha1.Strategy) *v1alpha1.PinnedStrategy {
	if strategy == nil {
		return nil
	}
	return &v1alpha1.PinnedStrategy{
		UID: strategy.UID, Generation: strategy.Generation, Epoch: strategy.Status.Epoch, Process: &strategy.Spec.Process,
		Runtime:                 strategy.Spec.Runtime,
		TimeoutSeconds:          ptr.Deref(strategy.Spec.TimeoutSeconds, defaultTimeout),
		TTLSecondsAfterFinished: strategy.Spec.TTLSecondsAfterFinished,
	}
}

// ObserveRunning implements process.Kind: it stops a run that exceeds its timeout.
func (k *Kind) ObserveRunning(_ context.Context, object process.Object, current facts.Incarnation, observed *lifecycle.Observed) (time.Duration, error) {
	run := runOf(object)
	pinned := run.Status.Pinned
	if pinned == nil || current.StartedAt.IsZero() {
		return 0, nil
	}
	left := time.Duration(pinned.TimeoutSeconds)*time.Second - k.clock.Since(current.StartedAt)
	if left > 0 {
		return left, nil
	}
	observed.Unhealthy = fmt.Sprintf("The run exceeded the timeout of %d seconds that its strategy sets.", pinned.TimeoutSeconds)
	observed.UnhealthyReason = v1alpha1.ReasonTimedOut
	return 0, nil
}

// ObserveStopped implements process.Kind. It does nothing.
func (*Kind) ObserveStopped(context.Context, process.Object) time.Duration { return 0 }

// Forget implements process.Kind.
func (k *Kind) Forget(uid types.UID) { k.take(uid) }

// started reports whether an incarnation is on record. From then on the run keeps what it copied from the strategy.
func started(run *v1alpha1.StrategyRun) bool { return run.Status.Incarnation > 0 }

func runOf(object process.Object) *v1alpha1.StrategyRun {
	return object.(*v1alpha1.StrategyRun) // New returns nothing else
}
