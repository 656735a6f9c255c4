// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testScheme() *apiruntime.Scheme {
	scheme := apiruntime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		panic(err)
	}
	return scheme
}

// testKind is the kind Instance with hooks.
type testKind struct {
	adopts    string // what the object adopts
	observe   func(observed *lifecycle.Observed) (time.Duration, error)
	probed    bool
	variables map[string]string
	forgotten []types.UID
	refused   bool // StartSpec.Refused in the last call of Prepare
	// recordFirst is the value of StartSpec.RecordFirst. port is a part of the status that Prepare sets before a start, and stops counts the calls of
	// ObserveStopped.
	recordFirst bool
	port        string
	stops       int
}

func (k *testKind) Resource() string           { return "instances" }
func (k *testKind) New() Object                { return &v1alpha1.Instance{} }
func (k *testKind) NewList() client.ObjectList { return &v1alpha1.InstanceList{} }
func (k *testKind) Traits(Object) Traits       { return Traits{Adopts: k.adopts} }
func (k *testKind) Asleep(context.Context, Object, time.Time) bool {
	return false
}

func (k *testKind) Prepare(_ context.Context, object Object, current *facts.Incarnation, start *StartSpec) error {
	start.Probed, start.Variables, k.refused = k.probed, k.variables, start.Refused
	start.RecordFirst = k.recordFirst
	if current == nil {
		object.(*v1alpha1.Instance).Status.AttachCommand = k.port
	}
	return nil
}

func (k *testKind) ObserveRunning(_ context.Context, _ Object, _ facts.Incarnation, observed *lifecycle.Observed) (time.Duration, error) {
	if k.observe != nil {
		return k.observe(observed)
	}
	return 0, nil
}
func (k *testKind) ObserveStopped(context.Context, Object) time.Duration {
	k.stops++
	return 0
}
func (k *testKind) Forget(uid types.UID) { k.forgotten = append(k.forgotten, uid) }

// eventRecorder is a recorder that collects events.
type eventRecorder struct {
	mu     sync.Mutex
	events []string
}

func (e *eventRecorder) Eventf(_, _ apiruntime.Object, eventType, reason, _, note string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, eventType+" "+reason+" "+fmt.Sprintf(note, args...))
}

// fixture is one object and its reconciler, with fakes of everything that the reconciler uses.
type fixture struct {
	*WithT
	t        *testing.T
	clock    *clocktesting.FakePassiveClock
	rt       *fake.Runtime
	kind     *testKind
	recorder *eventRecorder
	api      client.WithWatch
	writes   int
	// intercept is called before each write. A write for which it returns an error fails with that error and does not reach the API server.
	intercept func(write int) error
	r         *Reconciler
}

const testUID = types.UID("uid-1")

var testKey = types.NamespacedName{Namespace: "default", Name: "one"}

func newFixture(t *testing.T, change func(*v1alpha1.Instance)) *fixture {
	t.Helper()
	b := &fixture{WithT: NewWithT(t), t: t, kind: &testKind{}, recorder: &eventRecorder{}}
	b.clock = clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 123_456_789))
	b.rt = fake.New(t.Context(), b.clock)
	b.rt.Unguarded()
	object := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: testKey.Namespace, Name: testKey.Name, UID: testUID, Generation: 1}}
	object.Spec.Process.Command = []string{"serve"}
	if change != nil {
		change(object)
	}
	b.api = fakeclient.NewClientBuilder().WithScheme(testScheme()).WithStatusSubresource(object).WithObjects(object).Build()
	counted := interceptor.NewClient(b.api, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := b.countWrite(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := b.countWrite(); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	b.r = &Reconciler{Client: counted, Reader: counted, Runtimes: runtime.NewRegistry(b.rt, logr.Discard()), Kind: b.kind, Recorder: b.recorder, Clock: b.clock}
	t.Cleanup(func() { b.Expect(b.rt.Violations()).To(BeEmpty()) })
	return b
}

func (b *fixture) countWrite() error {
	b.writes++
	if b.intercept != nil {
		return b.intercept(b.writes)
	}
	return nil
}

func (b *fixture) reconcile() ctrl.Result {
	b.t.Helper()
	result, err := b.r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: testKey})
	b.Expect(err).NotTo(HaveOccurred())
	return result
}

// crash lets the process fail after a run that was long enough for an immediate restart.
func (b *fixture) crash() {
	b.clock.SetTime(b.clock.Now().Add(time.Hour))
	b.rt.Exit(testUID, facts.Exit{Known: true, Code: 1})
}

func (b *fixture) object() *v1alpha1.Instance {
	b.t.Helper()
	object := &v1alpha1.Instance{}
	b.Expect(b.api.Get(b.t.Context(), testKey, object)).To(Succeed())
	return object
}

func (b *fixture) update(change func(*v1alpha1.Instance)) {
	b.t.Helper()
	object := b.object()
	change(object)
	object.Generation++
	b.Expect(b.api.Update(b.t.Context(), object)).To(Succeed())
}

func (b *fixture) condition(conditionType string) metav1.Condition {
	b.t.Helper()
	condition := meta.FindStatusCondition(b.object().Status.Conditions, conditionType)
	b.Expect(condition).NotTo(BeNil(), conditionType)
	return *condition
}

func conflictError(int) error {
	return apierrors.NewConflict(schema.GroupResource{Group: "berth.dev", Resource: "instances"}, testKey.Name, errors.New("changed"))
}

func TestStart_IsRecordedFirst(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) { i.Spec.Session = "pr-1" })
	b.kind.recordFirst = true
	b.intercept = func(write int) error {
		switch write {
		case 1:
			b.Expect(b.rt.Known()).To(BeEmpty(), "started before the finalizer was written")
		case 2:
			b.Expect(hasFinalizer(b.object())).To(BeTrue())
			b.Expect(b.rt.Known()).To(BeEmpty(), "started before it was recorded")
		}
		return nil
	}
	b.reconcile()
	object := b.object()
	b.Expect(object.Labels).To(HaveKeyWithValue(v1alpha1.LabelSession, "pr-1"))
	b.Expect(object.Status.Incarnation).To(BeEquivalentTo(1))
	b.Expect(object.Status.ObservedGeneration).To(BeEquivalentTo(1))
	b.Expect(b.writes).To(Equal(2), "one for finalizer and label, one for the intent")
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}))

	b.reconcile()
	b.Expect(b.condition(v1alpha1.ConditionReady).Status).To(Equal(metav1.ConditionTrue))
	b.Expect(b.object().Status.Process.PID).NotTo(BeZero())
	writes := b.writes
	for range 3 {
		b.Expect(b.reconcile()).To(Equal(ctrl.Result{}))
	}
	b.Expect(b.writes).To(Equal(writes), "a reconcile at rest writes nothing")
}

func hasFinalizer(o client.Object) bool {
	for _, f := range o.GetFinalizers() {
		if f == v1alpha1.FinalizerProcess {
			return true
		}
	}
	return false
}

func TestConflict_PreventsAction(t *testing.T) {
	b := newFixture(t, nil)
	b.kind.recordFirst = true
	b.intercept = func(write int) error {
		if write == 2 {
			return conflictError(write)
		}
		return nil
	}
	b.Expect(b.reconcile().RequeueAfter).To(Equal(staleRequeue))
	b.Expect(b.rt.Known()).To(BeEmpty())
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}))
}

func TestFailedStart_IsRetriedAndReportedOnce(t *testing.T) {
	b := newFixture(t, nil)
	for range 2 {
		b.rt.Fail(fake.Start, errors.New("no more processes"))
		_, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
		b.Expect(err).To(MatchError(ContainSubstring("no more processes")))
	}
	b.Expect(b.condition(v1alpha1.ConditionReconciling)).To(And(HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring("no more processes"))),
		"the condition explains the delay")
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}))
	b.Expect(b.object().Status.Incarnation).To(BeEquivalentTo(1), "the recorded incarnation is started, not the next one")
	b.Expect(b.recorder.events).To(ContainElement("Warning RuntimeUnavailable No more processes."))
	var complaints int
	for _, event := range b.recorder.events {
		if event == "Warning RuntimeUnavailable No more processes." {
			complaints++
		}
	}
	b.Expect(complaints).To(Equal(1), "events: %v", b.recorder.events)
}

func TestRefusedStart_IsPassedToNextPrepare(t *testing.T) {
	b := newFixture(t, nil)
	b.rt.Fail(fake.Start, &facts.StartError{Reason: v1alpha1.ReasonSessionTaken, Message: "another object has the session"})
	b.Expect(b.reconcile().RequeueAfter).To(Equal(staleRequeue))
	b.Expect(b.kind.refused).To(BeFalse())
	b.Expect(b.recorder.events).NotTo(ContainElement(HavePrefix("Warning")), "the kind reports the reason")
	b.reconcile()
	b.Expect(b.kind.refused).To(BeTrue(), "the kind supplies the reason")
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}))
	b.reconcile()
	b.Expect(b.kind.refused).To(BeFalse())
}

func TestStaleCache_StartsNothing(t *testing.T) {
	b := newFixture(t, nil)
	b.rt.Fail(fake.Start, errors.New("manager killed"))
	_, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
	b.Expect(err).To(HaveOccurred())
	old := b.object() // incarnation 1 is recorded but not started
	b.update(func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateStopped })

	// The cache of a new manager still contains the old object.
	stale := interceptor.NewClient(b.api, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			old.DeepCopyInto(o.(*v1alpha1.Instance))
			return nil
		},
	})
	b.r = &Reconciler{Client: stale, Reader: b.api, Runtimes: runtime.NewRegistry(b.rt, logr.Discard()), Kind: b.kind, Recorder: b.recorder, Clock: b.clock}
	b.Expect(b.reconcile().RequeueAfter).To(Equal(staleRequeue))
	b.Expect(b.rt.Known()).To(BeEmpty())
}

func TestOwnWrites_AreReadDespiteStaleCache(t *testing.T) {
	b := newFixture(t, nil)
	before := b.object()
	b.reconcile()
	b.r.Client = interceptor.NewClient(b.api, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			before.DeepCopyInto(o.(*v1alpha1.Instance))
			return nil
		},
	})
	b.reconcile()
	b.Expect(b.condition(v1alpha1.ConditionReady).Status).To(Equal(metav1.ConditionTrue), "the live object is read when the cache is older than the last own write")
}

func TestLostRecord_IsRebuilt(t *testing.T) {
	b := newFixture(t, nil)
	b.Expect(b.rt.Start(t.Context(), runtime.Process{UID: testUID, Incarnation: 7, Command: []string{"serve"}})).To(Succeed())
	b.reconcile()
	b.reconcile()
	b.Expect(b.object().Status.Incarnation).To(BeEquivalentTo(7))
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{7}), "the running incarnation is recorded")
}

func TestDelete_StopsProcessFirst(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) { i.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](5) })
	b.rt.Program("serve", fake.Program{IgnoreStop: true})
	b.reconcile()
	b.reconcile()
	b.Expect(b.api.Delete(t.Context(), b.object())).To(Succeed())
	b.Expect(b.reconcile().RequeueAfter).To(Equal(5 * time.Second))
	b.Expect(b.object().Status.Stopping.Reason).To(Equal(v1alpha1.ReasonDeleting))
	b.reconcile()
	b.Expect(b.rt.Count(testUID, fake.Stop)).To(Equal(1))
	b.clock.SetTime(b.clock.Now().Add(5 * time.Second))
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(BeEmpty())
	b.rt.Fail(fake.Forget, errors.New("busy"))
	_, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
	b.Expect(err).To(MatchError(ContainSubstring("busy")))
	b.Expect(hasFinalizer(b.object())).To(BeTrue(), "the finalizer stays until the backend has forgotten the object")
	b.reconcile()
	b.Expect(apierrors.IsNotFound(b.api.Get(t.Context(), testKey, &v1alpha1.Instance{}))).To(BeTrue())
	b.Expect(b.rt.Known()).To(BeEmpty())
	b.Expect(b.kind.forgotten).To(Equal([]types.UID{testUID}))
	b.Expect(b.reconcile()).To(Equal(ctrl.Result{}))
}

func TestStop_IsRepeatedWhileItIsDeferred(t *testing.T) {
	b := newFixture(t, nil)
	b.rt.Program("serve", fake.Program{DeferStops: 3})
	b.reconcile()
	b.reconcile()
	b.update(func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateStopped })
	b.reconcile()
	writes := b.writes
	for range 3 {
		b.Expect(b.rt.Live(testUID)).NotTo(BeEmpty())
		b.Expect(b.reconcile().RequeueAfter).To(BeNumerically("<=", 20*time.Millisecond))
	}
	b.Expect(b.rt.Live(testUID)).To(BeEmpty())
	b.Expect(b.rt.Count(testUID, fake.Stop)).To(Equal(4))
	b.Expect(b.writes).To(Equal(writes), "the status states the request to stop already")
}

func TestKind_ForgetsVanishedObject(t *testing.T) {
	b := newFixture(t, nil)
	b.reconcile()
	b.update(func(i *v1alpha1.Instance) { i.Finalizers = nil })
	b.Expect(b.api.Delete(t.Context(), b.object())).To(Succeed())
	b.reconcile()
	b.Expect(b.kind.forgotten).To(Equal([]types.UID{testUID}))
}

func TestReadiness_ComesFromKind(t *testing.T) {
	b := newFixture(t, nil)
	b.kind.probed = true
	answer := false
	b.kind.observe = func(observed *lifecycle.Observed) (time.Duration, error) {
		observed.Ready, observed.NotReady = &answer, "the server does not listen yet"
		return 100 * time.Millisecond, nil
	}
	b.reconcile()
	b.Expect(b.reconcile().RequeueAfter).To(Equal(100 * time.Millisecond))
	b.Expect(b.condition(v1alpha1.ConditionReady).Message).To(Equal("The server does not listen yet."))
	answer = true
	b.reconcile()
	b.Expect(b.condition(v1alpha1.ConditionReady).Status).To(Equal(metav1.ConditionTrue))

	b.rt.LeaderExit(testUID, facts.Exit{Known: true})
	b.reconcile()
	b.Expect(b.condition(v1alpha1.ConditionReady).Status).To(Equal(metav1.ConditionFalse), "processes that the program left behind are not ready")
}

func TestFailedObservation_DoesNotDelayStop(t *testing.T) {
	b := newFixture(t, nil)
	b.reconcile()
	b.kind.observe = func(*lifecycle.Observed) (time.Duration, error) { return 0, errors.New("no sockets") }
	_, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
	b.Expect(err).To(MatchError(ContainSubstring("no sockets")))
	b.update(func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateStopped })
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(BeEmpty())
}

func TestKindVariables_ReachCommandAndEnvironment(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) {
		i.Spec.Process.Command = []string{"serve", "--port=$(PORT)"}
		i.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "URL", Value: "http://localhost:$(PORT)"}}
	})
	b.kind.variables = map[string]string{"PORT": "8080"}
	b.reconcile()
	process, _ := b.rt.Process(testUID)
	b.Expect(process.Command).To(Equal([]string{"serve", "--port=8080"}))
	b.Expect(process.Env).To(Equal([]string{"PORT=8080", "URL=http://localhost:8080"}))
	b.Expect(process.Open).To(Equal([]string{"PORT"}), "the names of variables that never contain secrets")
	b.Expect(process.StopSignal).To(Equal("SIGTERM"))
	b.Expect(process.Name).To(Equal("instances/default/one"))
}

// externalStartRuntime is a runtime in which a process is started from outside between the first and the second observation.
type externalStartRuntime struct {
	runtime.Runtime
	uid          types.UID
	observations int
}

func (r *externalStartRuntime) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	if r.observations++; r.observations == 1 {
		return r.Runtime.Observe(ctx, uid)
	}
	return []facts.Incarnation{{UID: string(r.uid), Number: 1, Phase: facts.Running}}, nil
}

func TestExpiry_DeletesOnlyStoppedObject(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) {
		i.Spec.State = v1alpha1.StateStopped
		i.Spec.TTLSecondsAfterStopped = ptr.To[int32](60)
	})
	left := b.reconcile().RequeueAfter
	b.Expect(left).To(And(BeNumerically(">", 58*time.Second), BeNumerically("<=", 60*time.Second)))
	b.clock.SetTime(b.clock.Now().Add(left))
	old := b.object()
	b.update(func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateRunning })
	live := b.r.Client
	b.r.Client = interceptor.NewClient(b.api, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			old.DeepCopyInto(o.(*v1alpha1.Instance))
			return nil
		},
	})
	b.Expect(b.reconcile().RequeueAfter).To(Equal(staleRequeue), "a new request keeps the object")
	b.Expect(b.object().DeletionTimestamp).To(BeNil())

	b.r.Client = live
	b.update(func(i *v1alpha1.Instance) { i.Spec.State = v1alpha1.StateStopped })
	b.r.Runtimes = runtime.NewRegistry(&externalStartRuntime{Runtime: b.rt, uid: testUID}, logr.Discard())
	b.Expect(b.reconcile().RequeueAfter).To(Equal(staleRequeue), "a process that was started from outside prevents the clean-up")
	b.Expect(b.object().DeletionTimestamp).To(BeNil())

	b.r.Runtimes = runtime.NewRegistry(b.rt, logr.Discard())
	b.reconcile()
	b.Expect(b.object().DeletionTimestamp).NotTo(BeNil())
	b.reconcile()
	b.Expect(apierrors.IsNotFound(b.api.Get(t.Context(), testKey, &v1alpha1.Instance{}))).To(BeTrue())
}
