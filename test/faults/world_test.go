// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// errFault is the error that a call returns at a fault. Most tests then replace the manager, as after a crash.
var errFault = errors.New("simulated crash of the manager")

var key = types.NamespacedName{Namespace: "default", Name: "one"}

const uid = types.UID("11111111-2222-3333-4444-555555555555")

// faults are the faults of one run. Each kind of call is numbered separately, from 1 over the whole run. A nil function has no effect.
type faults struct {
	// write is called before and after a write reaches the API.
	write func(n int, applied bool) error
	// act is called before and after a call that changes the runtime.
	act func(n int, done bool) error
	// lag returns the age of the state that the nth cache read shows, in writes.
	lag func(n int) int
	// newLeaderPerReconcile means that a new leader is started for each reconcile.
	newLeaderPerReconcile bool
	// turn is called with the number of the leader before every API call.
	turn func(leader int)
}

// world consists of an API server, a runtime and a clock. It counts the calls of the managers and applies the faults.
type world struct {
	*WithT
	t      *testing.T
	kind   kindUnderTest
	faults faults
	ctx    context.Context
	clock  *clocktesting.FakeClock
	rt     *fake.Runtime
	api    client.WithWatch
	woken  chan struct{}
	// slowStart means that starts are never reserved, as with Pods.
	slowStart bool
	// testHosts are the hosts if the world has several hosts. If testHosts is empty, all leaders share rt.
	testHosts []*testHost

	writes, acts, reads int
	// faultOccurred means that the only fault of this run has occurred.
	faultOccurred bool
	// lagged records, by leader number, whether a recent cache read of that leader was stale.
	lagged map[int]bool
	// pastStates are the recorded states of the object, oldest first; a nil state means that the object did not exist.
	pastStates []process.Object
}

// scheme has only the necessary types, because the fake client iterates over all types of its scheme at every patch.
var scheme = func() *apiruntime.Scheme {
	scheme := apiruntime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(coordinationv1.AddToScheme(scheme))
	return scheme
}()

// decoder is for an object tracker that does not track managed fields. Tracking them would take most of the time of these tests.
var decoder = serializer.NewCodecFactory(scheme).UniversalDecoder()

func newWorld(t *testing.T, s kindUnderTest, f faults) *world {
	t.Helper()
	w := &world{WithT: NewWithT(t), t: t, kind: s, faults: f, woken: make(chan struct{}, 1), lagged: map[int]bool{}}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.clock = clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
	w.rt = fake.New(w.ctx, w.clock)
	w.api = fakeclient.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(s.object()).
		WithObjectTracker(clienttesting.NewObjectTracker(scheme, decoder)).Build()
	return w
}

// noEvents discards events.
type noEvents struct{}

func (noEvents) Eventf(_, _ apiruntime.Object, _, _, _, _ string, _ ...any) {}

// newReconciler returns the reconciler of a newly started manager. number is the number of the leader.
func (w *world) newReconciler(number int) *process.Reconciler {
	cached, live := w.client(number, true), w.client(number, false)
	backend, known := w.hostOf(number)
	rt := runtime.NewRegistry(&faultyRuntime{Runtime: backend, world: w}, logr.Discard())
	return &process.Reconciler{
		Client: cached, Reader: live, Runtimes: rt, Recorder: noEvents{}, Clock: w.clock, Hosts: known,
		Kind: w.kind.newKind(w.t, w.ctx, dependencies{client: cached, reader: live, runtimes: rt, clock: w.clock, wake: w.wake}),
	}
}

func (w *world) wake(types.UID) {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// client returns the client of a leader, with the faults of this run. If cache is true, reads of the object may be stale.
func (w *world) client(leader int, cache bool) client.Client {
	turn := func() {
		if w.faults.turn != nil {
			w.faults.turn(leader)
		}
	}
	return interceptor.NewClient(w.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			turn()
			if target, ours := o.(process.Object); ours && cache && w.faults.lag != nil {
				w.reads++
				lag := w.faults.lag(w.reads)
				w.lagged[leader] = lag > 0
				return w.readOld(lag, target)
			}
			return c.Get(ctx, k, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			turn()
			return w.write(func() error { return c.Patch(ctx, o, p, opts...) }, w.recordState)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			turn()
			return w.write(func() error { return c.Delete(ctx, o, opts...) }, w.recordState)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			turn()
			return w.write(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) }, w.recordState)
		},
	})
}

// write calls do, which performs one write, and then calls the function keep, which records the state after the write. The faults may crash the manager
// before or after the write.
func (w *world) write(do func() error, keep func()) error {
	w.writes++
	n := w.writes
	if w.faults.write != nil {
		if err := w.faults.write(n, false); err != nil {
			return err
		}
	}
	err := do()
	keep()
	w.checkHosts()
	if err == nil && w.faults.write != nil {
		return w.faults.write(n, true)
	}
	return err
}

// recordState records the current state of the object for later stale reads.
func (w *world) recordState() {
	object := w.kind.object()
	if err := w.api.Get(w.ctx, key, object); err != nil {
		object = nil
	}
	last := len(w.pastStates) - 1
	if object != nil && last >= 0 && w.pastStates[last] != nil && w.pastStates[last].GetResourceVersion() == object.GetResourceVersion() {
		return
	}
	w.pastStates = append(w.pastStates, object)
}

// readOld reads the object as it was lag writes ago.
func (w *world) readOld(lag int, target process.Object) error {
	at := max(0, len(w.pastStates)-1-lag)
	if w.pastStates[at] == nil {
		return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("objects").GroupResource(), key.Name)
	}
	switch target := target.(type) {
	case *v1alpha1.Instance:
		w.pastStates[at].(*v1alpha1.Instance).DeepCopyInto(target)
	case *v1alpha1.DevServer:
		w.pastStates[at].(*v1alpha1.DevServer).DeepCopyInto(target)
	case *v1alpha1.LanguageServer:
		w.pastStates[at].(*v1alpha1.LanguageServer).DeepCopyInto(target)
	default:
		w.t.Fatalf("the cache of these tests does not support %T", target)
	}
	return nil
}

// faultyRuntime is a runtime with faults.
type faultyRuntime struct {
	*fake.Runtime
	world *world
}

func (d *faultyRuntime) call(do func() error) error {
	w := d.world
	w.acts++
	n := w.acts
	if w.faults.act != nil {
		if err := w.faults.act(n, false); err != nil {
			return err
		}
	}
	err := do()
	w.checkHosts()
	if err == nil && w.faults.act != nil {
		return w.faults.act(n, true)
	}
	return err
}

func (d *faultyRuntime) Capabilities() runtime.Capabilities {
	capabilities := d.Runtime.Capabilities()
	capabilities.SlowStart = d.world.slowStart
	return capabilities
}

func (d *faultyRuntime) Start(ctx context.Context, p runtime.Process) error {
	return d.call(func() error { return d.Runtime.Start(ctx, p) })
}

func (d *faultyRuntime) Stop(ctx context.Context, uid types.UID, n int64) error {
	return d.call(func() error { return d.Runtime.Stop(ctx, uid, n) })
}

func (d *faultyRuntime) Kill(ctx context.Context, uid types.UID, n int64) error {
	return d.call(func() error { return d.Runtime.Kill(ctx, uid, n) })
}

func (d *faultyRuntime) Forget(ctx context.Context, uid types.UID) error {
	return d.call(func() error { return d.Runtime.Forget(ctx, uid) })
}

// create creates the object of the scenario.
func (w *world) create() {
	object := w.kind.object()
	object.SetNamespace(key.Namespace)
	object.SetName(key.Name)
	object.SetUID(uid)
	object.SetGeneration(1)
	spec := object.GetProcessSpec()
	spec.Session = "pr-1"
	spec.Process.Command = []string{"serve"}
	spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](5)
	w.Expect(w.api.Create(w.ctx, object)).To(Succeed())
	w.recordState()
}

// change changes the spec as a user would.
func (w *world) change(do func(*v1alpha1.ProcessSpec)) {
	object := w.read()
	do(object.GetProcessSpec())
	object.SetGeneration(object.GetGeneration() + 1)
	w.Expect(w.api.Update(w.ctx, object)).To(Succeed())
	w.recordState()
}

// read returns the current object, or nil.
func (w *world) read() process.Object {
	object := w.kind.object()
	err := w.api.Get(w.ctx, key, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.Expect(err).NotTo(HaveOccurred())
	return object
}

// atRest reports whether the object will not change without an external event.
func atRest(object process.Object) bool {
	if object == nil {
		return true
	}
	status := object.GetProcessStatus()
	settled := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady) ||
		meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionStalled)
	return settled && status.ObservedGeneration == object.GetGeneration() && object.GetDeletionTimestamp().IsZero()
}

// passTime advances the clock by the delay that the reconcile requested. If the kind waits for a probe result, passTime waits for that instead, for at
// most 50 ms.
func (w *world) passTime(result ctrl.Result) {
	if w.kind.asynchronous && waitsForProbe(w.read()) {
		timer := time.NewTimer(50 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-w.woken:
		case <-timer.C:
		}
		return
	}
	w.clock.SetTime(w.clock.Now().Add(result.RequeueAfter))
}

func waitsForProbe(object process.Object) bool {
	if object == nil {
		return false
	}
	ready := meta.FindStatusCondition(object.GetProcessStatus().Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Status != metav1.ConditionTrue && ready.Reason == v1alpha1.ReasonNotReady
}
