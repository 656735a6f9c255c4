// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance is what is special to Instances: a terminal and how to take it, the tmux session or container that it is in, and what was there
// before Berth.
package instance

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/claim"
	"github.com/berth-dev/berth/controllers/place"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/pattern"
	"github.com/berth-dev/berth/internal/presence"
	"github.com/berth-dev/berth/internal/runtime"
)

// The size of a terminal when the spec leaves it open.
const (
	defaultColumns = 120
	defaultRows    = 40
)

// interrupt is Ctrl-C.
const interrupt = 0x03

// SessionID is the variable that holds status.sessionID.
const SessionID = "SESSION_ID"

// windows is a backend whose sessions people may look at while nothing runs in them.
type windows interface {
	// Keep says whether the session stays between two incarnations.
	Keep(uid types.UID, keep bool)
}

// Kind is the kind Instance.
type Kind struct {
	client   client.Client
	backend  runtime.Runtime
	clock    clock.PassiveClock
	reserved *claim.Reservations
	present  *presence.Book   // nil when nobody can come
	recorder process.Recorder // nil when nobody is told
	patterns pattern.Cache    // spec.terminal.awaitingInput.patterns, compiled

	mu       sync.Mutex
	memories map[types.UID]*memory
}

var (
	_ process.Kind      = (*Kind)(nil)
	_ process.Placed    = (*Kind)(nil)
	_ process.Sleeper   = (*Kind)(nil)
	_ process.Concluder = (*Kind)(nil)
	_ process.Effective = (*Kind)(nil)
	_ process.Reserving = (*Kind)(nil)
)

// +kubebuilder:rbac:groups=berth.dev,resources=instances,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=instances/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=instances/finalizers,verbs=update

// Setup registers the controller of Instances with the manager.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	deps = deps.WithDefaults()
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Instance{}, IndexPlace, byPlace); err != nil {
		return fmt.Errorf("index instances by what they claim: %w", err)
	}
	kind := New(mgr.GetClient(), deps.Runtime, deps.Clock)
	kind.present, kind.recorder = deps.Presence, mgr.GetEventRecorder("berth-instances")
	return process.Setup(mgr, kind, deps, func(b *builder.Builder) *builder.Builder {
		return contested.Watch(b, kind.client, &v1alpha1.Instance{})
	})
}

// New gives the kind. The client reads from a cache with the index IndexPlace.
func New(cache client.Client, backend runtime.Runtime, now clock.PassiveClock) *Kind {
	return &Kind{client: cache, backend: backend, clock: now, reserved: claim.NewReservations(now), memories: map[types.UID]*memory{}}
}

// Resource is the plural lower-case name.
func (*Kind) Resource() string { return "instances" }

// New gives an empty Instance.
func (*Kind) New() process.Object { return &v1alpha1.Instance{} }

// NewList gives an empty list of Instances.
func (*Kind) NewList() client.ObjectList { return &v1alpha1.InstanceList{} }

// Runtime gives the backend that the spec names.
func (k *Kind) Runtime(object process.Object) runtime.Runtime {
	return place.Backend(k.backend, k.RuntimeType(object))
}

// RuntimeType returns the runtime that the spec names.
func (*Kind) RuntimeType(object process.Object) v1alpha1.RuntimeType {
	return typeOf(object.(*v1alpha1.Instance)) // New returns nothing else
}

// Orphans says that what was adopted outlives the object, unless the spec says otherwise.
func (*Kind) Orphans(object process.Object, current runtime.Incarnation) bool {
	instance := object.(*v1alpha1.Instance) // New gives nothing else
	return current.Adopted && instance.Spec.DeletionPolicy != v1alpha1.DeletionTerminate
}

// Reserves says that an Instance needs nothing on record for its next incarnation: what it claims it keeps over a restart.
func (*Kind) Reserves(process.Object) bool { return true }

// Prepare gives the process its terminal and its place. The size of a terminal is no part of the fingerprint: whoever attaches changes it anyway.
func (k *Kind) Prepare(ctx context.Context, object process.Object, current *runtime.Incarnation, plan *process.Plan) error {
	instance := object.(*v1alpha1.Instance) // New gives nothing else
	plan.Process.Terminal = &runtime.Terminal{
		Columns: ptr.Deref(instance.Spec.Terminal.Columns, defaultColumns),
		Rows:    ptr.Deref(instance.Spec.Terminal.Rows, defaultRows),
	}
	instance.Status.SessionID = string(instance.UID)
	plan.Variables = map[string]string{SessionID: instance.Status.SessionID}
	config, err := configOf(instance)
	if err != nil {
		return err
	}
	plan.Process.Config = config
	if typeOf(instance) == v1alpha1.RuntimePod {
		if err := place.Pod(plan, instance, "Instance", instance.Spec.Runtime.Pod); err != nil {
			return err
		}
	}
	if err := k.settle(ctx, instance, plan); err != nil || current != nil {
		return err
	}
	return k.check(ctx, instance, plan)
}

// Look says what there is to say while something runs.
func (k *Kind) Look(ctx context.Context, object process.Object, current runtime.Incarnation, _ *lifecycle.Observed) (time.Duration, error) {
	instance := object.(*v1alpha1.Instance) // New gives nothing else
	k.show(instance, current.Adopted, k.handle(instance))
	return k.watch(ctx, instance, current), nil
}

// Rest says it while nothing does.
func (k *Kind) Rest(_ context.Context, object process.Object) {
	instance := object.(*v1alpha1.Instance) // New gives nothing else
	command := attachCommand(instance)
	if claim.Wants(instance) && typeOf(instance) != v1alpha1.RuntimePod && !lifecycle.Asleep(&instance.Status.ProcessStatus) { // its place is kept over a restart
		command = cmp.Or(instance.Status.AttachCommand, command)
	}
	k.show(instance, false, command)
	k.resting(instance)
}

// handle is what to type to take the terminal of what runs: the backend knows best.
func (k *Kind) handle(instance *v1alpha1.Instance) string {
	if handle, has := k.Runtime(instance).(runtime.Handle); has {
		return cmp.Or(handle.AttachCommand(instance.UID), attachCommand(instance))
	}
	return attachCommand(instance)
}

// show is what holds either way. That an interruptToken was carried out is decided here and done in Written, so at most once for a write.
func (k *Kind) show(instance *v1alpha1.Instance, adopted bool, command string) {
	instance.Status.AttachCommand = command
	instance.Status.ObservedInterruptToken = instance.Spec.InterruptToken
	if adopted {
		k.set(instance, v1alpha1.ConditionAdopted, metav1.ConditionTrue, v1alpha1.ReasonAdopted, "It was there before and was taken over.")
	} else {
		k.set(instance, v1alpha1.ConditionAdopted, metav1.ConditionFalse, v1alpha1.ReasonNotAdopted, "")
	}
	if kept, are := k.Runtime(instance).(windows); are {
		kept.Keep(instance.UID, claim.Wants(instance))
	}
	if !claim.Wants(instance) && !claim.Live(instance) {
		k.reserved.Release(instance.UID)
	}
}

// Written does what was recorded as done: once or, when the manager ends just now, not at all.
func (k *Kind) Written(ctx context.Context, object, base process.Object) error {
	instance, before := object.(*v1alpha1.Instance), base.(*v1alpha1.Instance) // New gives nothing else
	if stops(instance, before) {
		return k.tellEnding(ctx, instance)
	}
	asked := instance.Status.ObservedInterruptToken != before.Status.ObservedInterruptToken
	is, was := instance.Status.Process, before.Status.Process
	keyboard, able := k.Runtime(object).(runtime.Keyboard)
	if !asked || !able || is == nil || was == nil || is.Incarnation != was.Incarnation {
		return nil // nothing runs that could be interrupted
	}
	if err := keyboard.Type(ctx, instance.UID, []byte{interrupt}); err != nil {
		return fmt.Errorf("interrupt, as spec.interruptToken asks: %w", err)
	}
	return nil
}

// Forget drops what is kept of an object that is gone.
func (k *Kind) Forget(uid types.UID) {
	k.reserved.Release(uid)
	k.present.Forget(uid)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.memories, uid)
}

func (k *Kind) set(instance *v1alpha1.Instance, conditionType string, status metav1.ConditionStatus, reason, message string) {
	process.SetCondition(instance, k.clock.Now().Truncate(time.Second), conditionType, status, reason, message)
}
