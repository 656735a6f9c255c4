// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/controllers/strategy"
	"github.com/berth-dev/berth/controllers/strategyrun"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// strategyWorld is a world with one Strategy and any number of its runs. It counts calls and applies faults as world does, and records a history of each
// object.
type strategyWorld struct {
	*world
	// history has the recorded states of each object by its name, oldest first; a nil state means that the object did not exist.
	history map[string][]client.Object
	// names are the names of the runs, in the order of their creation.
	names []string
	// pendingExitRun is the name of the run whose process exits with the code pendingExitCode as soon as the status of the run shows the process.
	pendingExitRun  string
	pendingExitCode int32
}

const strategyName = "lint"

func newStrategyWorld(t *testing.T, f faults) *strategyWorld {
	t.Helper()
	w := &strategyWorld{
		world:   &world{WithT: NewWithT(t), t: t, faults: f, lagged: map[int]bool{}},
		history: map[string][]client.Object{},
	}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.clock = clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	w.rt = fake.New(w.ctx, w.clock)
	w.rt.Unguarded()
	w.api = fakeclient.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.Strategy{}, &v1alpha1.StrategyRun{}).
		WithObjectTracker(clienttesting.NewObjectTracker(scheme, decoder)).Build()
	return w
}

// strategyManager is a manager with the controllers of strategies and runs.
type strategyManager struct {
	runs    *process.Reconciler
	counter *strategy.Reconciler
}

// newStrategyManager returns a newly started manager.
func (w *strategyWorld) newStrategyManager(number int) *strategyManager {
	cached, live := w.faultyStrategyClient(number, true), w.faultyStrategyClient(number, false)
	backend := runtime.NewRegistry(&faultyRuntime{Runtime: w.rt, world: w.world}, logr.Discard())
	return &strategyManager{
		runs: &process.Reconciler{
			Client: cached, Reader: live, Runtimes: backend, Recorder: noEvents{}, Clock: w.clock,
			Kind: strategyrun.New(cached, live, backend, w.clock),
		},
		counter: &strategy.Reconciler{Client: cached, Reader: live, Recorder: noEvents{}, Clock: w.clock},
	}
}

// reconcile reconciles the object with the name, which is the strategy or a run.
func (m *strategyManager) reconcile(ctx context.Context, name string) (ctrl.Result, error) {
	request := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: key.Namespace, Name: name}}
	if name == strategyName {
		return m.counter.Reconcile(ctx, request)
	}
	return m.runs.Reconcile(ctx, request)
}

// faultyStrategyClient returns the client of a manager, with the faults of this run. If cache is true, reads of the strategy and its runs may be stale.
func (w *strategyWorld) faultyStrategyClient(number int, cache bool) client.Client {
	turn := func() {
		if w.faults.turn != nil {
			w.faults.turn(number)
		}
	}
	return interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			turn()
			if lag, disturbed := w.lag(number, cache); disturbed {
				return w.readOldObject(k.Name, lag, o)
			}
			return c.Get(ctx, k, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			turn()
			uncounted := (&client.ListOptions{}).ApplyOptions(opts)
			if uncounted.FieldSelector == nil {
				return c.List(ctx, list, opts...)
			}
			lag, _ := w.lag(number, cache)
			w.listUncounted(lag, list.(*v1alpha1.StrategyRunList))
			return nil
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			turn()
			return w.writeWithFaults(o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			turn()
			return w.writeWithFaults(o, func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			turn()
			return w.writeWithFaults(o, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

// lag returns the age of the state that the next cache read shows, in writes to the object. If disturbed is false, the read is current.
func (w *strategyWorld) lag(number int, cache bool) (lag int, disturbed bool) {
	if !cache || w.faults.lag == nil {
		return 0, false
	}
	w.reads++
	lag = w.faults.lag(w.reads)
	w.lagged[number] = w.lagged[number] || lag > 0
	return lag, true
}

// readOldObject reads an object as it was lag writes ago.
func (w *strategyWorld) readOldObject(name string, lag int, target client.Object) error {
	past := w.history[name]
	if len(past) == 0 || past[max(0, len(past)-1-lag)] == nil {
		return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("objects").GroupResource(), name)
	}
	was := past[max(0, len(past)-1-lag)].DeepCopyObject()
	reflect.ValueOf(target).Elem().Set(reflect.ValueOf(was).Elem())
	return nil
}

// listUncounted lists the runs that still have the count finalizer. It replaces the index of the manager's cache.
func (w *strategyWorld) listUncounted(lag int, list *v1alpha1.StrategyRunList) {
	for _, name := range w.names {
		run := &v1alpha1.StrategyRun{}
		if err := w.readOldObject(name, lag, run); err == nil && controllerutil.ContainsFinalizer(run, v1alpha1.FinalizerCount) {
			list.Items = append(list.Items, *run)
		}
	}
}

// writeWithFaults performs a write to one object with the faults of this run, and records the state after the write.
func (w *strategyWorld) writeWithFaults(object client.Object, do func() error) error {
	name := object.GetName()
	return w.write(do, func() { w.recordObject(name) }) // recordObject reads the object from the API server
}

// recordObject records the current state of an object for later stale reads.
func (w *strategyWorld) recordObject(name string) {
	object := w.current(name)
	past := w.history[name]
	if last := len(past) - 1; last >= 0 && object != nil && past[last] != nil && past[last].GetResourceVersion() == object.GetResourceVersion() {
		return
	}
	w.history[name] = append(past, object)
}

// current returns the current object, or nil.
func (w *strategyWorld) current(name string) client.Object {
	var object client.Object = &v1alpha1.StrategyRun{}
	if name == strategyName {
		object = &v1alpha1.Strategy{}
	}
	if err := w.api.Get(w.ctx, types.NamespacedName{Namespace: key.Namespace, Name: name}, object); err != nil {
		w.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
		return nil
	}
	return object
}

func (w *strategyWorld) strategyNow() *v1alpha1.Strategy {
	s, _ := w.current(strategyName).(*v1alpha1.Strategy)
	return s
}

func (w *strategyWorld) runNow(name string) *v1alpha1.StrategyRun {
	run, _ := w.current(name).(*v1alpha1.StrategyRun)
	return run
}

// allNames returns the names of all objects.
func (w *strategyWorld) allNames() []string { return append(slices.Clone(w.names), strategyName) }

// activeNames returns the names of the objects that may still change. Reconciling only these saves most of the time; expectNoStrategyWrites checks that the
// other objects do not change.
func (w *strategyWorld) activeNames() []string {
	return slices.DeleteFunc(w.allNames(), func(name string) bool {
		past := w.history[name]
		last := past[len(past)-1]
		if last == nil {
			return true
		}
		r, isRun := last.(*v1alpha1.StrategyRun)
		return isRun && r.Status.Outcome != "" && len(r.Finalizers) == 1 && r.DeletionTimestamp.IsZero() &&
			(r.Status.Pinned == nil || r.Status.Pinned.TTLSecondsAfterFinished == nil)
	})
}
