// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance is what is special to Instances: a terminal and how to take it, the tmux session or container that it is in, and what was there
// before Berth.
package instance

import (
	"context"
	"fmt"
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
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
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

// Backends gives the runtime of a type, and that of the manager for no type and for one that it does not have.
type Backends interface {
	For(v1alpha1.RuntimeType) runtime.Runtime
}

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
}

var (
	_ process.Kind      = (*Kind)(nil)
	_ process.Placed    = (*Kind)(nil)
	_ process.Effective = (*Kind)(nil)
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
	return process.Setup(mgr, kind, deps, func(b *builder.Builder) *builder.Builder {
		return contested.Watch(b, kind.client, &v1alpha1.Instance{})
	})
}

// New gives the kind. The client reads from a cache with the index IndexPlace.
func New(cache client.Client, backend runtime.Runtime, now clock.PassiveClock) *Kind {
	return &Kind{client: cache, backend: backend, clock: now, reserved: claim.NewReservations(now)}
}

// Resource is the plural lower-case name.
func (*Kind) Resource() string { return "instances" }

// New gives an empty Instance.
func (*Kind) New() process.Object { return &v1alpha1.Instance{} }

// NewList gives an empty list of Instances.
func (*Kind) NewList() client.ObjectList { return &v1alpha1.InstanceList{} }

// Runtime gives the backend that the spec names.
func (k *Kind) Runtime(object process.Object) runtime.Runtime {
	if backends, has := k.backend.(Backends); has {
		return backends.For(typeOf(object.(*v1alpha1.Instance))) // New gives nothing else
	}
	return k.backend
}

// Orphans says that what was adopted outlives the object, unless the spec says otherwise.
func (*Kind) Orphans(object process.Object, current runtime.Incarnation) bool {
	instance := object.(*v1alpha1.Instance) // New gives nothing else
	return current.Adopted && instance.Spec.DeletionPolicy != v1alpha1.DeletionTerminate
}

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
	if err := k.settle(ctx, instance, plan); err != nil || current != nil {
		return err
	}
	return k.check(ctx, instance, plan)
}

// Look says how to attach. A session that runs is ready: there is nothing to ask.
func (k *Kind) Look(_ context.Context, object process.Object, current runtime.Incarnation, _ *lifecycle.Observed) (time.Duration, error) {
	k.show(object, current.Adopted)
	return 0, nil
}

// Rest says how to attach: the same command as ever, so that it can be kept over restarts.
func (k *Kind) Rest(_ context.Context, object process.Object) {
	k.show(object, false)
}

// show sets what the kind adds to the status, whether something runs or not.
func (k *Kind) show(object process.Object, adopted bool) {
	instance := object.(*v1alpha1.Instance) // New gives nothing else
	instance.Status.AttachCommand = attachCommand(instance)
	instance.Status.ObservedInterruptToken = instance.Spec.InterruptToken
	if adopted {
		process.SetCondition(object, k.clock.Now(), v1alpha1.ConditionAdopted, metav1.ConditionTrue, v1alpha1.ReasonAdopted, "It was there before and was taken over.")
	} else {
		process.SetCondition(object, k.clock.Now(), v1alpha1.ConditionAdopted, metav1.ConditionFalse, v1alpha1.ReasonNotAdopted, "")
	}
	if kept, are := k.Runtime(object).(windows); are {
		kept.Keep(instance.UID, claim.Wants(instance))
	}
	if !claim.Wants(instance) && !claim.Live(instance) {
		k.reserved.Release(instance.UID)
	}
}

// Written sends the Ctrl-C that was recorded as sent: once or, when the manager ends just now, not at all.
func (k *Kind) Written(ctx context.Context, object, base process.Object) error {
	instance, before := object.(*v1alpha1.Instance), base.(*v1alpha1.Instance) // New gives nothing else
	asked := instance.Status.ObservedInterruptToken != before.Status.ObservedInterruptToken && before.Status.Process != nil
	keyboard, able := k.Runtime(object).(runtime.Keyboard)
	if !asked || !able || instance.Status.Process == nil {
		return nil // nothing runs that could be interrupted
	}
	if err := keyboard.Type(ctx, instance.UID, []byte{interrupt}); err != nil {
		return fmt.Errorf("interrupt, as spec.interruptToken asks: %w", err)
	}
	return nil
}

// Forget drops what is reserved for an object that is gone.
func (k *Kind) Forget(uid types.UID) { k.reserved.Release(uid) }
