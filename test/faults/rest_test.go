// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/controllers/strategyrun"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// TestFinalExit_IsFixedPoint ends the process of every kind, in every runtime, for every reason after which it is not started again. The manager then reconciles
// only when an event or its own request causes a reconcile; the write of a status does not. Once nothing causes a reconcile any more, the object must be
// complete: further reconciles, also by a new manager, write and change nothing, and kstatus reports Current, or Failed where a person must act.
func TestFinalExit_IsFixedPoint(t *testing.T) {
	for _, subject := range restSubjects {
		for _, end := range endings {
			if end.only != nil && !end.only(subject) {
				continue
			}
			t.Run(subject.kind+" "+string(subject.runtime)+" "+end.name, func(t *testing.T) {
				t.Parallel()
				w := newRestWorld(t, subject, end)
				if end.do != nil {
					w.start(1)
					end.do(w)
				}
				w.settle()
				w.expectFixedPoint()
			})
		}
	}
}

// If the write of the final exit conflicts with a request to restart, the session stays for the next incarnation: it ends only after the exit is recorded.
func TestFinalExit_SessionIsKeptUntilTheExitIsRecorded(t *testing.T) {
	for _, subject := range restSubjects[1:3] {
		t.Run(string(subject.runtime), func(t *testing.T) {
			w := newRestWorld(t, subject, ending{})
			w.start(1)
			w.Expect(w.backend.kept).To(HaveKeyWithValue(uid, true))
			w.rt.Exit(uid, facts.Exit{Known: true})
			w.conflicts = 1
			w.reconcile()
			w.Expect(w.conflicts).To(BeZero())
			w.Expect(w.backend.kept).To(HaveKeyWithValue(uid, true))
			w.change(func(o process.Object) { o.GetProcessSpec().RestartToken = "again" })
			w.start(2)
			w.Expect(w.backend.kept).To(HaveKeyWithValue(uid, true))
			w.rt.Exit(uid, facts.Exit{Known: true})
			w.settle()
			w.Expect(w.backend.kept).To(HaveKeyWithValue(uid, false))
		})
	}
}

// restSubject is a kind in a runtime.
type restSubject struct {
	kind    string
	runtime v1alpha1.RuntimeType
	object  func() process.Object
	// contested means that a second object can claim the session, container or port of the object.
	contested bool
}

var pod = &v1alpha1.PodRuntime{Image: "image"}

func runtimeSpec(kind v1alpha1.RuntimeType) *v1alpha1.RuntimeSpec {
	if kind == v1alpha1.RuntimePod {
		return &v1alpha1.RuntimeSpec{Type: kind, Pod: pod}
	}
	return nil
}

func instanceIn(spec v1alpha1.InstanceRuntime) restSubject {
	return restSubject{kind: "Instance", runtime: spec.Type, contested: spec.Tmux != nil || spec.Docker != nil && spec.Docker.Container != "", object: func() process.Object {
		return &v1alpha1.Instance{Spec: v1alpha1.InstanceSpec{Runtime: spec.DeepCopy()}}
	}}
}

// restSubjects are all kinds that are processes, in all runtimes that they support.
var restSubjects = func() []restSubject {
	subjects := []restSubject{
		instanceIn(v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeHost}),
		instanceIn(v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: "shared"}}),
		instanceIn(v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeDocker, Docker: &v1alpha1.DockerRuntime{Container: "shared"}}),
		instanceIn(v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: pod}),
	}
	for _, kind := range []v1alpha1.RuntimeType{v1alpha1.RuntimeHost, v1alpha1.RuntimePod} {
		subjects = append(subjects,
			restSubject{kind: "DevServer", runtime: kind, contested: kind == v1alpha1.RuntimeHost, object: func() process.Object {
				return &v1alpha1.DevServer{Spec: v1alpha1.DevServerSpec{Port: ptr.To[int32](28080), Runtime: runtimeSpec(kind)}}
			}},
			restSubject{kind: "LanguageServer", runtime: kind, object: func() process.Object {
				return &v1alpha1.LanguageServer{Spec: v1alpha1.LanguageServerSpec{
					Language: "go", Workspace: v1alpha1.Workspace{Folders: []string{"/src"}}, Runtime: runtimeSpec(kind)}}
			}},
			restSubject{kind: "StrategyRun", runtime: kind, object: func() process.Object {
				return &v1alpha1.StrategyRun{Spec: v1alpha1.StrategyRunSpec{StrategyRef: v1alpha1.LocalReference{Name: "strategy"}}}
			}})
	}
	return subjects
}()

// ending is one way in which a process ends for good.
type ending struct {
	name string
	// spec changes the spec before the object is created.
	spec func(process.Object)
	// program is the behavior of the program.
	program fake.Program
	// do ends the running process; nil if the program cannot be executed.
	do func(*restWorld)
	// failed means that a person must act. run is the outcome of a StrategyRun.
	failed bool
	run    v1alpha1.RunOutcome
	// keeps means that the object still claims its session, container or port, because it starts its process again by itself.
	keeps bool
	only  func(restSubject) bool
}

func isRun(s restSubject) bool            { return s.kind == "StrategyRun" }
func isNotRun(s restSubject) bool         { return !isRun(s) }
func restarts(o process.Object)           { o.GetProcessSpec().RestartPolicy = v1alpha1.RestartAlways }
func exits(e facts.Exit) func(*restWorld) { return func(w *restWorld) { w.rt.Exit(uid, e) } }

var endings = []ending{
	{name: "stopped", do: (*restWorld).stop, only: isNotRun},
	{name: "stopped with SIGKILL", program: fake.Program{IgnoreStop: true}, do: (*restWorld).stop, only: isNotRun},
	{name: "cancelled", do: (*restWorld).stop, run: v1alpha1.OutcomeCancelled, failed: true, only: isRun},
	{name: "completed", do: exits(facts.Exit{Known: true}), run: v1alpha1.OutcomeSucceeded},
	{name: "failed", do: exits(facts.Exit{Known: true, Code: 3}), run: v1alpha1.OutcomeFailed, failed: true},
	{name: "terminated by a signal", do: exits(facts.Exit{Known: true, Signal: "SIGSEGV"}), run: v1alpha1.OutcomeFailed, failed: true},
	{name: "exited with an unknown status", do: exits(facts.Exit{}), run: v1alpha1.OutcomeFailed, failed: true},
	{name: "lost", do: exits(facts.Exit{Known: true, Lost: true, Message: "its machine was removed"}), run: v1alpha1.OutcomeFailed, failed: true},
	{name: "disappeared", do: func(w *restWorld) {
		w.rt.Exit(uid, facts.Exit{})
		w.Expect(w.rt.Forget(w.ctx, uid)).To(Succeed())
	}, run: v1alpha1.OutcomeFailed, failed: true},
	{name: "completed with child processes left", do: func(w *restWorld) {
		w.rt.LeaderExit(uid, facts.Exit{Known: true})
		w.reconcile()
		w.rt.Exit(uid, facts.Exit{Known: true})
	}, run: v1alpha1.OutcomeSucceeded},
	{name: "command not found", run: v1alpha1.OutcomeFailed, failed: true,
		program: fake.Program{StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program"}}},
	{name: "breaker open", spec: func(o process.Object) {
		restarts(o)
		o.GetProcessSpec().Breaker = v1alpha1.BreakerPolicy{FailureThreshold: ptr.To[int32](2), CoolDownSeconds: ptr.To[int32](0)}
	}, do: func(w *restWorld) {
		w.rt.Exit(uid, facts.Exit{Known: true, Code: 3})
		w.start(2)
		w.rt.Exit(uid, facts.Exit{Known: true, Code: 3})
	}, failed: true, keeps: true, only: isNotRun},
	{name: "stopped after a failure", spec: restarts, do: func(w *restWorld) {
		w.rt.Exit(uid, facts.Exit{Known: true, Code: 3})
		w.reconcile()
		w.stop()
	}, only: isNotRun},
	{name: "timed out", do: func(w *restWorld) { w.clock.Step(2 * time.Hour) }, run: v1alpha1.OutcomeTimedOut, failed: true, only: isRun},
	{name: "idle", spec: func(o process.Object) { o.(*v1alpha1.Instance).Spec.IdleTimeoutSeconds = ptr.To[int32](60) },
		do: func(w *restWorld) { w.clock.Step(time.Hour) }, keeps: true, only: func(s restSubject) bool { return s.kind == "Instance" }},
	{name: "idle", spec: func(o process.Object) { o.GetProcessSpec().State = v1alpha1.StateOnDemand },
		do: func(w *restWorld) {
			w.backend.report.Clients, w.backend.report.IdleSince = 0, w.clock.Now()
			w.reconcile()
			w.clock.Step(time.Hour)
		}, keeps: true, only: func(s restSubject) bool { return s.kind == "LanguageServer" }},
	{name: "stopped while idle", spec: func(o process.Object) { o.(*v1alpha1.Instance).Spec.IdleTimeoutSeconds = ptr.To[int32](60) }, do: func(w *restWorld) {
		w.clock.Step(time.Hour)
		w.settle()
		w.stop()
	}, only: func(s restSubject) bool { return s.kind == "Instance" }},
	{name: "stopped while idle", spec: func(o process.Object) { o.GetProcessSpec().State = v1alpha1.StateOnDemand }, do: func(w *restWorld) {
		w.backend.report.Clients, w.backend.report.IdleSince = 0, w.clock.Now()
		w.reconcile()
		w.clock.Step(time.Hour)
		w.settle()
		w.stop()
	}, only: func(s restSubject) bool { return s.kind == "LanguageServer" }},
	{name: "hung", do: func(w *restWorld) {
		w.backend.report.Unhealthy, w.backend.report.Restart = v1alpha1.ReasonHung, true
	}, failed: true, only: func(s restSubject) bool { return s.kind == "LanguageServer" }},
	{name: "changed while it ran with an older spec", spec: func(o process.Object) { o.GetProcessSpec().UpdatePolicy = v1alpha1.UpdateOnRestart }, do: func(w *restWorld) {
		w.change(func(o process.Object) { o.GetProcessSpec().Process.Command = []string{"serve", "--more"} })
		w.reconcile()
		w.stop()
	}, only: isNotRun},
}

// restWorld is one object with its API server, its runtime and its manager.
type restWorld struct {
	*WithT
	ctx     context.Context
	subject restSubject
	end     ending
	clock   *clocktesting.FakeClock
	rt      *fake.Runtime
	backend *restBackend
	api     client.WithWatch
	manager *process.Reconciler
	newKind func() process.Kind
	all     *runtime.Registry
	writes  int
	acts    int
	// conflicts is how many of the next writes of a status fail with a conflict.
	conflicts int
}

var restScheme = func() *apiruntime.Scheme {
	scheme := apiruntime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
	return scheme
}()

func newRestWorld(t *testing.T, subject restSubject, end ending) *restWorld {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w := &restWorld{WithT: NewWithT(t), ctx: ctx, subject: subject, end: end, clock: clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))}
	w.rt = fake.New(ctx, w.clock)
	w.rt.Program("serve", end.program)
	w.backend = &restBackend{Runtime: w.rt, sessions: fake.WithSessions(w.rt), world: w, kept: map[types.UID]bool{}}
	w.backend.report.Clients = 1
	w.all = runtime.NewRegistry(w.backend, logr.Discard())
	if subject.runtime != v1alpha1.RuntimeHost {
		w.all = runtime.NewRegistry(runtime.NoRuntime{Reason: "other"}, logr.Discard(), runtime.Backend{Type: subject.runtime, Runtime: w.backend})
	}
	object := w.newObject(key.Name, uid)
	strategy := &v1alpha1.Strategy{}
	strategy.Namespace, strategy.Name, strategy.UID, strategy.Generation = key.Namespace, "strategy", "strategy", 1
	strategy.Spec.Process.Command, strategy.Spec.Runtime = []string{"serve"}, runtimeSpec(subject.runtime)
	strategy.Status.Breaker = &v1alpha1.StrategyBreakerStatus{State: v1alpha1.BreakerClosed}
	w.api = fakeclient.NewClientBuilder().WithScheme(restScheme).WithStatusSubresource(object, strategy).WithObjects(object, strategy).
		WithIndex(&v1alpha1.Instance{}, instance.IndexPlace, func(o client.Object) []string { return []string{instance.Place(o.(*v1alpha1.Instance))} }).Build()
	w.newKind = func() process.Kind { return w.kindOf(t) }
	w.restartManager()
	return w
}

// newObject returns an object of the kind that is not stored yet. By default, its process is not restarted.
func (w *restWorld) newObject(name string, uid types.UID) process.Object {
	object := w.subject.object()
	object.SetNamespace(key.Namespace)
	object.SetName(name)
	object.SetUID(uid)
	object.SetGeneration(1)
	spec := object.GetProcessSpec()
	spec.State, spec.RestartPolicy, spec.Process.Command = v1alpha1.StateRunning, v1alpha1.RestartNever, []string{"serve"}
	if w.end.spec != nil {
		w.end.spec(object)
	}
	return object
}

func (w *restWorld) kindOf(t *testing.T) process.Kind {
	counted := w.client()
	if isRun(w.subject) {
		return strategyrun.New(counted, counted, w.all, w.clock)
	}
	for _, s := range kindsUnderTest {
		if s.name == w.subject.kind {
			return s.newKind(t, w.ctx, dependencies{client: counted, reader: counted, runtimes: w.all, clock: w.clock, wake: func(types.UID) {}})
		}
	}
	t.Fatalf("unknown kind %s", w.subject.kind)
	return nil
}

// client returns a client that counts the calls that write.
func (w *restWorld) client() client.Client {
	return interceptor.NewClient(w.api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			w.writes++
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			w.writes++
			return c.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			w.writes++
			if w.conflicts > 0 {
				w.conflicts--
				return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("objects").GroupResource(), o.GetName(), errFault)
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
}

// restartManager replaces the manager with a new one, which has nothing in memory.
func (w *restWorld) restartManager() {
	counted := w.client()
	w.manager = &process.Reconciler{Client: counted, Reader: counted, Runtimes: w.all, Recorder: noEvents{}, Clock: w.clock, Kind: w.newKind()}
}

func (w *restWorld) read(key types.NamespacedName) process.Object {
	object := w.subject.object()
	w.Expect(w.api.Get(w.ctx, key, object)).To(Succeed())
	return object
}

func (w *restWorld) change(do func(process.Object)) {
	object := w.read(key)
	do(object)
	object.SetGeneration(object.GetGeneration() + 1)
	w.Expect(w.api.Update(w.ctx, object)).To(Succeed())
}

func (w *restWorld) stop() {
	w.change(func(o process.Object) {
		if run, is := o.(*v1alpha1.StrategyRun); is {
			run.Spec.State = v1alpha1.RunCancelled
		} else {
			o.GetProcessSpec().State = v1alpha1.StateStopped
		}
	})
}

func (w *restWorld) reconcile() ctrl.Result {
	result, err := w.manager.Reconcile(w.ctx, ctrl.Request{NamespacedName: key})
	w.Expect(err).NotTo(HaveOccurred())
	return result
}

// start reconciles until the status records that an incarnation runs.
func (w *restWorld) start(incarnation int64) {
	for range 20 {
		result := w.reconcile()
		if running := w.read(key).GetProcessStatus().Process; running != nil && running.Incarnation == incarnation {
			return
		}
		if len(w.rt.Live(uid)) > 0 {
			result.RequeueAfter = min(result.RequeueAfter, time.Second) // not until an idle process is stopped or a run times out
		}
		w.clock.Step(result.RequeueAfter)
	}
	w.Expect(describe(w.read(key))).To(BeEmpty(), "incarnation %d does not start", incarnation)
}

// quietRounds is after how many reconciles without a process that neither write nor act the object counts as settled, although the manager has requested
// another check.
const quietRounds = 5

// settle reconciles for an event that has just occurred, and then for every reason that exists in a real manager: the runtime reports the effect of an action,
// and the manager requests another check. The write of a status is no reason.
func (w *restWorld) settle() {
	quiet := 0
	for range 400 {
		writes, acts := w.writes, w.acts
		result := w.reconcile()
		if quiet++; w.acts != acts || w.writes != writes || len(w.rt.Live(uid)) > 0 {
			quiet = 0
		}
		if w.acts != acts {
			continue
		}
		if result.RequeueAfter == 0 || quiet == quietRounds {
			return
		}
		w.clock.Step(result.RequeueAfter)
	}
	w.Expect(describe(w.read(key))).To(BeEmpty(), "the object does not come to rest")
}

func (w *restWorld) expectFixedPoint() {
	w.Expect(w.rt.Live(uid)).To(BeEmpty())
	object := w.read(key)
	kept := w.backend.kept[uid]
	if w.subject.kind == "Instance" {
		w.Expect(kept).To(Equal(w.end.keeps), "the session is kept: %s", describe(object))
	}
	w.expectState(object)
	if w.subject.contested && !arbitration.Wants(object) {
		w.expectReleased()
	}
	writes, acts := w.writes, w.acts
	for _, next := range []struct {
		name    string
		prepare func()
	}{{"at once", func() {}}, {"later", func() { w.clock.Step(time.Hour) }}, {"by a new manager", w.restartManager}} {
		next.prepare()
		w.settle()
		w.Expect(cmp.Diff(object, w.read(key))).To(BeEmpty(), "a reconcile %s changes the object", next.name)
		w.Expect(w.writes).To(Equal(writes), "a reconcile %s writes", next.name)
		w.Expect(w.acts).To(Equal(acts), "a reconcile %s acts", next.name)
		w.Expect(w.backend.kept[uid]).To(Equal(kept), "a reconcile %s changes whether the session is kept", next.name)
	}
}

// expectState checks the conditions and the status of the process.
func (w *restWorld) expectState(object process.Object) {
	content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(object)
	w.Expect(err).NotTo(HaveOccurred())
	result, err := status.Compute(&unstructured.Unstructured{Object: content})
	w.Expect(err).NotTo(HaveOccurred())
	want := status.CurrentStatus
	if w.end.failed {
		want = status.FailedStatus
	}
	w.Expect(result.Status).To(Equal(want), "%s: %s", result.Message, describe(object))
	recorded := object.GetProcessStatus()
	w.Expect(recorded.Process).To(BeNil())
	w.Expect(recorded.Stopping).To(BeNil())
	for _, condition := range recorded.Conditions {
		w.Expect(condition.ObservedGeneration).To(Equal(object.GetGeneration()), condition.Type)
	}
	for _, conditionType := range []string{v1alpha1.ConditionDriftDetected, v1alpha1.ConditionContained, v1alpha1.ConditionRestarting} {
		w.Expect(meta.IsStatusConditionTrue(recorded.Conditions, conditionType)).To(BeFalse(), conditionType)
	}
	switch object := object.(type) {
	case *v1alpha1.Instance:
		command := "berth attach instance/one"
		switch {
		case w.subject.runtime == v1alpha1.RuntimePod:
			command = ""
		case w.end.name == "breaker open" && w.subject.runtime == v1alpha1.RuntimeTmux:
			command = w.backend.sessions.AttachCommand(uid) // the session is kept
		}
		w.Expect(object.Status.AttachCommand).To(Equal(command))
	case *v1alpha1.DevServer:
		w.Expect(object.Status.ObservedPorts).To(BeEmpty())
	case *v1alpha1.LanguageServer:
		w.Expect(object.Status.Memory).To(BeNil())
		if w.backend.Gone(w.ctx, uid) {
			w.Expect(object.Status.Clients).To(BeZero())
		}
	case *v1alpha1.StrategyRun:
		w.Expect(object.Status.Outcome).To(Equal(w.end.run))
	}
}

// expectReleased checks that another object can have the session, container or port at once.
func (w *restWorld) expectReleased() {
	rival := types.NamespacedName{Namespace: key.Namespace, Name: "rival"}
	w.rt.Program("rival", fake.Program{})
	object := w.newObject(rival.Name, "rival")
	object.GetProcessSpec().Process.Command = []string{"rival"}
	w.Expect(w.api.Create(w.ctx, object)).To(Succeed())
	for range 2 { // a DevServer records its port before it starts
		_, err := w.manager.Reconcile(w.ctx, ctrl.Request{NamespacedName: rival})
		w.Expect(err).NotTo(HaveOccurred())
	}
	w.Expect(w.rt.Live("rival")).To(HaveLen(1), "%s", describe(w.read(rival)))
}

// restBackend is a fake runtime with the capabilities of the runtime of a subject.
type restBackend struct {
	*fake.Runtime
	sessions *fake.Sessions
	world    *restWorld
	kept     map[types.UID]bool
	// report is what the multiplexer of a LanguageServer reports beyond the state of the process.
	report lsp.Report
}

// Capabilities implements runtime.Runtime.
func (b *restBackend) Capabilities() runtime.Capabilities {
	can := b.Runtime.Capabilities()
	if b.world.subject.runtime != v1alpha1.RuntimeHost {
		can.KeepsPreviousExit = false
	}
	switch b.world.subject.runtime {
	case v1alpha1.RuntimePod:
		can.SlowStart, can.Inspection = true, nil
	case v1alpha1.RuntimeTmux, v1alpha1.RuntimeDocker:
		can.Adoption = b.sessions
	}
	can.Terminals = restTerminals{b.sessions, b}
	return can
}

func (b *restBackend) Start(ctx context.Context, p runtime.Process) error {
	b.world.acts++
	return b.Runtime.Start(ctx, p)
}

func (b *restBackend) Stop(ctx context.Context, uid types.UID, n int64) error {
	b.world.acts++
	return b.Runtime.Stop(ctx, uid, n)
}

func (b *restBackend) Kill(ctx context.Context, uid types.UID, n int64) error {
	b.world.acts++
	return b.Runtime.Kill(ctx, uid, n)
}

// Report implements languageserver.Reporter.
func (b *restBackend) Report(uid types.UID) (lsp.Report, bool) {
	if b.Gone(context.Background(), uid) {
		return lsp.Report{}, false
	}
	newest, err := runtime.Newest(context.Background(), b.Runtime, uid)
	if err != nil || newest == nil {
		return b.report, true
	}
	report := b.report
	report.Incarnation, report.Phase = newest.Number, newest.Phase
	if report.Initialized = newest.Phase == facts.Running; report.Initialized {
		report.Indexed, report.MemoryBytes = true, 100<<20
	}
	return report, true
}

// Endpoint implements languageserver.Reporter.
func (*restBackend) Endpoint(types.UID) string { return "/run/lsp.sock" }

// Keep implements languageserver.Reporter.
func (b *restBackend) Keep(uid types.UID, keep bool) { b.kept[uid] = keep }

// SetFolders implements languageserver.Reporter.
func (*restBackend) SetFolders(context.Context, types.UID, []string) error { return nil }

// Gone implements languageserver.Reporter. In a Pod, the multiplexer exits with a server that is not put to sleep, and when a sleeping server is stopped.
func (b *restBackend) Gone(_ context.Context, uid types.UID) bool {
	object := b.world.read(key)
	sleeps := object.GetProcessSpec().State == v1alpha1.StateOnDemand && lifecycle.Asleep(object.GetProcessStatus())
	return b.world.subject.runtime == v1alpha1.RuntimePod && !sleeps && len(b.Live(uid)) == 0
}

// restTerminals records which sessions are kept.
type restTerminals struct {
	*fake.Sessions
	backend *restBackend
}

// Keep implements runtime.Terminals.
func (t restTerminals) Keep(uid types.UID, keep bool) { t.backend.kept[uid] = keep }

// AttachCommand implements runtime.Terminals. Only tmux has a command for every session.
func (t restTerminals) AttachCommand(uid types.UID) string {
	if t.backend.world.subject.runtime == v1alpha1.RuntimeTmux {
		return t.Sessions.AttachCommand(uid)
	}
	return ""
}
