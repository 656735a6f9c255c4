// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

func newKind(objects ...client.Object) *Kind {
	scheme := apiruntime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	cache := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&v1alpha1.Instance{}, IndexPlace, byPlace).WithObjects(objects...).Build()
	return New(cache, runtime.NewRegistry(runtime.NoRuntime{}, logr.Discard()), clock.RealClock{})
}

func tmuxInstance(namespace, name, session string) *v1alpha1.Instance {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "-" + name)}}
	instance.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: session}}
	return instance
}

func TestPrepare_SetsTerminalSize(t *testing.T) {
	tests := map[string]struct {
		spec v1alpha1.TerminalSpec
		want runtime.Terminal
	}{
		"defaults": {want: runtime.Terminal{Columns: 120, Rows: 40}},
		"from the spec": {
			spec: v1alpha1.TerminalSpec{Columns: ptr.To[int32](80), Rows: ptr.To[int32](24)},
			want: runtime.Terminal{Columns: 80, Rows: 24},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			start := process.StartSpec{}
			instance := &v1alpha1.Instance{Spec: v1alpha1.InstanceSpec{Terminal: tc.spec}}
			if err := newKind().Prepare(t.Context(), instance, nil, &start); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.want, start.Process.Terminal); diff != "" {
				t.Errorf("terminal (-want +got):\n%s", diff)
			}
			if len(start.Fingerprint) > 0 || start.Probed {
				t.Errorf("the size of a terminal must not restart a session: %+v", start)
			}
		})
	}
}

func TestPrepare_LeavesStatusUnchanged(t *testing.T) {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{UID: "one"}}
	start := process.StartSpec{}
	if err := newKind().Prepare(t.Context(), instance, nil, &start); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v1alpha1.InstanceStatus{}, instance.Status); diff != "" || start.RecordFirst {
		t.Errorf("the first start of an Instance must not wait for a write (-want +got):\n%s", diff)
	}
	newKind().ObserveStopped(t.Context(), instance)
	if want := map[string]string{sessionIDVariable: instance.Status.SessionID}; instance.Status.SessionID != "one" || !cmp.Equal(start.Variables, want) {
		t.Errorf("status.sessionID is %q, and the variables are %v", instance.Status.SessionID, start.Variables)
	}
}

func TestStopSignal_DefaultsByRuntime(t *testing.T) {
	for _, tc := range []struct {
		runtime    v1alpha1.RuntimeType
		spec, want string
	}{
		{"", "", "SIGHUP"}, {v1alpha1.RuntimeTmux, "", "SIGHUP"}, {v1alpha1.RuntimeDocker, "", "SIGTERM"}, {v1alpha1.RuntimePod, "", "SIGTERM"},
		{"", "SIGTERM", "SIGTERM"}, {v1alpha1.RuntimeDocker, "SIGINT", "SIGINT"},
	} {
		instance := &v1alpha1.Instance{}
		instance.Spec.Process.Stop.Signal = tc.spec
		if tc.runtime != "" {
			instance.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: tc.runtime}
		}
		if got := stopSignal(instance, "SIGTERM"); got != tc.want {
			t.Errorf("runtime %q, signal %q: got %q, want %q", tc.runtime, tc.spec, got, tc.want)
		}
	}
}

func TestAttachCommand_OmitsDefaultNamespace(t *testing.T) {
	for namespace, want := range map[string]string{
		"default": "berth attach instance/claude",
		"work":    "berth attach instance/claude -n work",
	} {
		instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "claude"}}
		if _, err := newKind().ObserveRunning(t.Context(), instance, facts.Incarnation{}, &lifecycle.Observed{}); err != nil {
			t.Fatal(err)
		}
		if instance.Status.AttachCommand != want {
			t.Errorf("in %s: got %q, want %q", namespace, instance.Status.AttachCommand, want)
		}
	}
}

func TestPlace_IdentifiesClaimedSession(t *testing.T) {
	container := &v1alpha1.Instance{}
	container.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeDocker, Docker: &v1alpha1.DockerRuntime{Image: "agent"}}
	adopted := container.DeepCopy()
	adopted.Spec.Runtime.Docker.Container = "agent-1"
	socket := tmuxInstance("default", "claude", "main")
	socket.Spec.Runtime.Tmux.Socket = "work"
	for want, instance := range map[string]*v1alpha1.Instance{
		"tmux berth claude-1":      tmuxInstance("default", "claude.1", ""),
		"tmux berth work/claude":   tmuxInstance("work", "claude", ""),
		"tmux work main":           socket,
		"docker agent-1":           adopted,
		"":                         container,
		"tmux berth one two three": tmuxInstance("default", "claude", "one two three"),
	} {
		if got := Place(instance); got != want {
			t.Errorf("claims %q, want %q", got, want)
		}
	}
}

func TestPrepare_GivesSessionToOneInstance(t *testing.T) {
	young, old := tmuxInstance("default", "young", "main"), tmuxInstance("other", "old", "main")
	young.CreationTimestamp, old.CreationTimestamp = metav1.Unix(2000, 0), metav1.Unix(1000, 0)
	kind := newKind(young, old)
	blocked := func(instance *v1alpha1.Instance) *lifecycle.Blocked {
		start := process.StartSpec{}
		if err := kind.Prepare(t.Context(), instance, nil, &start); err != nil {
			t.Fatal(err)
		}
		return start.Blocked
	}
	if why := blocked(old); why != nil {
		t.Errorf("the older Instance does not get its session: %s", why.Message)
	}
	why := blocked(young)
	if why == nil || !why.Conflict || why.Reason != v1alpha1.ReasonSessionClaimed {
		t.Fatalf("two Instances get the same session: %+v", why)
	}
	if want := `The session "main" of the tmux server "berth" belongs to an Instance in another namespace, which claimed it first. Stop or delete that Instance, or recreate this one with another name.`; why.Message != want {
		t.Errorf("got %q, want %q", why.Message, want)
	}

	young.Status.Incarnation = 1 // the younger Instance already runs, so it keeps its claim
	kind = newKind(young, old)
	if why := blocked(young); why != nil {
		t.Errorf("a running Instance loses its claim: %s", why.Message)
	}
	if why := blocked(old); why == nil {
		t.Error("the older Instance gets a session that is in use")
	}
	old.Status.Incarnation, old.Status.LastExit = 1, &v1alpha1.ProcessExit{Incarnation: 1, Reason: v1alpha1.ReasonCompleted}
	if why := blocked(old); why != nil {
		t.Errorf("a completed Instance reports a conflict: %s", why.Message)
	}
}

func TestPrepare_SessionOfForbiddenInstanceIsFree(t *testing.T) {
	mine, theirs := tmuxInstance("default", "mine", "main"), tmuxInstance("forbidden", "theirs", "main")
	mine.CreationTimestamp, theirs.CreationTimestamp = metav1.Unix(2000, 0), metav1.Unix(1000, 0)
	kind := newKind(mine, theirs)
	reader := fake.NewClientBuilder().WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{v1alpha1.LabelAllowRuntime: "Tmux"}}}).Build()
	kind.permission = &process.Permission{Cache: reader, Live: reader, Namespace: "berth-system"}
	start := process.StartSpec{Blocked: &lifecycle.Blocked{Reason: v1alpha1.ReasonRuntimeForbidden}}
	if err := kind.Prepare(t.Context(), theirs, nil, &start); err != nil {
		t.Fatal(err)
	}
	start = process.StartSpec{}
	if err := kind.Prepare(t.Context(), mine, nil, &start); err != nil {
		t.Fatal(err)
	}
	if start.Blocked != nil {
		t.Errorf("an Instance that may not start keeps the session: %s", start.Blocked.Message)
	}
}

// The older Instance is in a namespace that permits the runtime, but not the adoption of the session.
func TestPrepare_SessionOfInstanceThatMayNotAdoptIsFree(t *testing.T) {
	mine, theirs := tmuxInstance("default", "mine", "main"), tmuxInstance("other", "theirs", "main")
	mine.Spec.Adoption, theirs.Spec.Adoption = v1alpha1.AdoptionRequired, v1alpha1.AdoptionRequired
	mine.CreationTimestamp, theirs.CreationTimestamp = metav1.Unix(2000, 0), metav1.Unix(1000, 0)
	kind := newKind(mine, theirs)
	reader := fake.NewClientBuilder().WithObjects(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: process.PolicyConfigMap},
		Data: map[string]string{"runtimes": "Tmux", "adoption.default": "tmux:berth/main"}}).Build()
	kind.permission = &process.Permission{Cache: reader, Live: reader, Namespace: "berth-system"}
	start := process.StartSpec{}
	if err := kind.Prepare(t.Context(), mine, nil, &start); err != nil {
		t.Fatal(err)
	}
	if start.Blocked != nil {
		t.Errorf("an Instance that may not adopt the session keeps it: %s", start.Blocked.Message)
	}
}

// refusingRuntime is a backend that refuses every start.
type refusingRuntime struct {
	runtime.NoRuntime
	runtime.NoInspection
	reason string
}

func (r refusingRuntime) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Inspection: r}
}

func (r refusingRuntime) Check(context.Context, runtime.Process) error {
	return &facts.StartError{Reason: r.reason, Message: "no"}
}

func TestCheck_BlocksWithConflictOrAbsence(t *testing.T) {
	for reason, want := range map[string]struct{ conflict, absent bool }{
		v1alpha1.ReasonSessionTaken:     {conflict: true},
		v1alpha1.ReasonSessionClaimed:   {conflict: true},
		v1alpha1.ReasonNothingToAdopt:   {absent: true}, // absent, so that the period ttlSecondsAfterStopped can begin
		v1alpha1.ReasonContainerMissing: {absent: true},
		v1alpha1.ReasonInvalidSession:   {},
	} {
		g := NewWithT(t)
		kind, start := newKind(), &process.StartSpec{}
		kind.runtimes = runtime.NewRegistry(runtime.NoRuntime{}, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeTmux, Runtime: refusingRuntime{reason: reason}})
		g.Expect(kind.check(t.Context(), tmuxInstance("default", "agent", "agent"), start)).To(Succeed())
		g.Expect(start.Blocked).To(BeNil(), "the first start is attempted without a check")
		start.Refused = true
		g.Expect(kind.check(t.Context(), tmuxInstance("default", "agent", "agent"), start)).To(Succeed())
		g.Expect(start.Blocked).To(HaveValue(And(
			HaveField("Reason", reason), HaveField("Conflict", want.conflict), HaveField("Absent", want.absent))))
	}
}
