// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance implements what is specific to Instances: the terminal and how to attach to it, the tmux session or container that holds it, and the
// adoption of existing ones.
package instance

import (
	"cmp"
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
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/perobject"
	"github.com/berth-dev/berth/internal/runtime"
)

// defaultColumns and defaultRows are the terminal size if the spec does not set it.
const (
	defaultColumns = 120
	defaultRows    = 40
)

// terminalStopSignal is the signal that a terminal sends when it closes. Interactive shells ignore SIGTERM; on SIGHUP they exit and forward it to their jobs.
const terminalStopSignal = "SIGHUP"

// sessionIDVariable is the name of the environment variable that holds status.sessionID.
const sessionIDVariable = "SESSION_ID"

// Kind implements process.Kind for Instances.
type Kind struct {
	client   client.Client
	runtimes *runtime.Registry
	clock    clock.PassiveClock
	reserved arbitration.Reservations[string, types.UID] // sessions and containers
	present  *activity.Tracker
	recorder process.Recorder // nil disables events
	// permission decides which other objects compete for sessions and containers; nil permits all namespaces.
	permission *process.Permission
	memories   perobject.Map[objectCache] // of each object; only one reconcile at a time uses it
	reports    *hook.Tracker              // what the hooks of agents have reported
	hookSocket string                     // where the hooks of programs on this machine report; empty if nowhere
}

var (
	_ process.Kind           = (*Kind)(nil)
	_ process.StatusDeriver  = (*Kind)(nil)
	_ process.ActionObserver = (*Kind)(nil)
)

// +kubebuilder:rbac:groups=berth.dev,resources=instances,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=instances/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=instances/finalizers,verbs=update

// Setup registers the controller of Instances with the manager.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	deps = deps.WithDefaults()
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Instance{}, IndexPlace, byPlace); err != nil {
		return fmt.Errorf("index Instances by claim: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Instance{}, IndexProgram, byProgram); err != nil {
		return fmt.Errorf("index Instances by program: %w", err)
	}
	kind := New(mgr.GetClient(), deps.Runtimes, deps.Clock)
	kind.permission = deps.Permission
	if deps.Reports != nil {
		kind.reports, kind.hookSocket = deps.Reports, deps.HookSocket
	}
	kind.present, kind.recorder = deps.Presence, mgr.GetEventRecorder("berth-instances")
	return process.Setup(mgr, kind, deps, func(b *builder.Builder) *builder.Builder {
		return contested.Watch(b, kind.client, &v1alpha1.Instance{})
	})
}

// New returns the kind. The client reads from a cache with the index IndexPlace.
func New(cache client.Client, runtimes *runtime.Registry, now clock.PassiveClock) *Kind {
	return &Kind{client: cache, runtimes: runtimes, clock: now, present: activity.New(now), reports: hook.NewTracker(now)}
}

// Resource implements process.Kind.
func (*Kind) Resource() string { return "instances" }

// New returns an empty Instance.
func (*Kind) New() process.Object { return &v1alpha1.Instance{} }

// NewList returns an empty list of Instances.
func (*Kind) NewList() client.ObjectList { return &v1alpha1.InstanceList{} }

// Runtime returns the backend that the spec names.
func (k *Kind) Runtime(object process.Object) runtime.Runtime {
	return k.runtimes.For(typeOf(object.(*v1alpha1.Instance))) // New returns only Instances
}

// Traits implements process.Kind. An adopted session outlives the object unless the spec sets deletionPolicy: Terminate.
func (*Kind) Traits(object process.Object) process.Traits {
	instance := object.(*v1alpha1.Instance) // New returns only Instances
	traits := process.Traits{Runtime: typeOf(instance), Adopts: adopts(instance), KeepAdopted: instance.Spec.DeletionPolicy != v1alpha1.DeletionTerminate,
		SessionID: sessionID(instance)}
	if spec := instance.Spec.Runtime; spec != nil && spec.Pod != nil {
		traits.Template = spec.Pod.Template
	}
	return traits
}

// Prepare implements process.Kind: it sets the terminal, and the session or container. The terminal size is not part of the fingerprint, because attaching
// changes it anyway.
func (k *Kind) Prepare(ctx context.Context, object process.Object, current *facts.Incarnation, start *process.StartSpec) error {
	instance := object.(*v1alpha1.Instance) // New returns only Instances
	start.Process.Terminal = &runtime.Terminal{
		Columns: ptr.Deref(instance.Spec.Terminal.Columns, defaultColumns),
		Rows:    ptr.Deref(instance.Spec.Terminal.Rows, defaultRows),
	}
	start.Process.StopSignal = stopSignal(instance, start.Process.StopSignal)
	start.Variables = map[string]string{sessionIDVariable: sessionID(instance)}
	if k.hookSocket != "" && !contained(instance) {
		start.Variables[hook.SocketVariable] = k.hookSocket
	}
	config, err := configOf(instance)
	if err != nil {
		return err
	}
	start.Process.Config = config
	if typeOf(instance) == v1alpha1.RuntimePod {
		if err := podspec.Pod(start, instance, "Instance", instance.Spec.Runtime.Pod); err != nil {
			return err
		}
	}
	if err := k.settle(ctx, instance, start); err != nil || current != nil {
		return err
	}
	return k.check(ctx, instance, start)
}

// sessionID returns the ID of the session, which is a new one for each object.
func sessionID(instance *v1alpha1.Instance) string { return string(instance.UID) }

// stopSignal returns the signal that the spec names. The default is SIGHUP for programs in a terminal of this machine. It is SIGTERM for containers, because
// many daemons reload their configuration on SIGHUP.
func stopSignal(instance *v1alpha1.Instance, usual string) string {
	switch {
	case instance.Spec.Process.Stop.Signal != "":
		return instance.Spec.Process.Stop.Signal
	case contained(instance):
		return usual
	default:
		return terminalStopSignal
	}
}

// contained reports whether the program runs in a container, with a file system and PIDs of its own.
func contained(instance *v1alpha1.Instance) bool {
	kind := typeOf(instance)
	return kind == v1alpha1.RuntimePod || kind == v1alpha1.RuntimeDocker
}

// ObserveRunning implements process.Kind: it sets the status of a running Instance.
func (k *Kind) ObserveRunning(ctx context.Context, object process.Object, current facts.Incarnation, _ *lifecycle.Observed) (time.Duration, error) {
	instance := object.(*v1alpha1.Instance) // New returns only Instances
	k.show(instance, current.Adopted, k.handle(instance))
	return k.watch(ctx, instance, current), nil
}

// ObserveStopped implements process.Kind: it sets the status of an Instance that is not running.
func (k *Kind) ObserveStopped(_ context.Context, object process.Object) time.Duration {
	instance := object.(*v1alpha1.Instance)                                                                                          // New returns only Instances
	command := k.attachCommand(instance)                                                                                             // wakes a sleeping Instance, and starts a completed one
	if arbitration.Wants(instance) && typeOf(instance) != v1alpha1.RuntimePod && !lifecycle.Asleep(&instance.Status.ProcessStatus) { // a restart keeps the session
		command = cmp.Or(instance.Status.AttachCommand, command)
	}
	k.show(instance, false, command)
	k.resting(instance)
	return 0
}

// handle returns the command that attaches to the running terminal. The command of the backend takes precedence.
func (k *Kind) handle(instance *v1alpha1.Instance) string {
	if terminals := k.Runtime(instance).Capabilities().Terminals; terminals != nil {
		return cmp.Or(terminals.AttachCommand(instance.UID), k.attachCommand(instance))
	}
	return k.attachCommand(instance)
}

// show sets the parts of the status that running and stopped Instances have in common. It records the interruptToken in the status first; BeforeAction
// interrupts the program after the write. Therefore each token causes at most one interrupt.
func (k *Kind) show(instance *v1alpha1.Instance, adopted bool, command string) {
	instance.Status.AttachCommand, instance.Status.SessionID = command, sessionID(instance)
	instance.Status.ObservedInterruptToken = cmp.Or(instance.Spec.InterruptToken, instance.Status.ObservedInterruptToken) // a removed token is no request
	if adopted {
		k.set(instance, v1alpha1.ConditionAdopted, metav1.ConditionTrue, v1alpha1.ReasonAdopted, "Berth adopted a program that was already running.")
	} else {
		k.set(instance, v1alpha1.ConditionAdopted, metav1.ConditionFalse, v1alpha1.ReasonNotAdopted, "")
	}
}

// BeforeAction implements process.ActionObserver: it keeps or ends the session as the recorded status requires, and stops treating an Instance as asleep that was
// stopped or deleted in its sleep. After a write of the status, it emits the event for a recorded stop, or interrupts the program for a recorded interruptToken.
func (k *Kind) BeforeAction(ctx context.Context, object, base process.Object, step lifecycle.Step, written bool) error {
	instance, before := object.(*v1alpha1.Instance), base.(*v1alpha1.Instance) // New returns only Instances
	k.hold(instance, step.PreStart || arbitration.Wants(instance))             // before a pre-start, the status does not show yet that the Instance is started
	if !lifecycle.Asleep(&instance.Status.ProcessStatus) {
		k.present.Rise(instance.UID) // clients must not wait for its start
	}
	if !written {
		return nil
	}
	if stops(instance, before) {
		return k.tellEnding(ctx, instance)
	}
	asked := instance.Status.ObservedInterruptToken != before.Status.ObservedInterruptToken
	is, was := instance.Status.Process, before.Status.Process
	terminals := k.Runtime(object).Capabilities().Terminals
	if !asked || terminals == nil || is == nil || was == nil || is.Incarnation != was.Incarnation {
		return nil // no process to interrupt
	}
	k.present.Touch(instance.UID)
	if err := terminals.Type(ctx, instance.UID, runtime.Keystrokes{Interrupt: true}); err != nil {
		return fmt.Errorf("interrupt the program for spec.interruptToken: %w", err)
	}
	return nil
}

// hold keeps the session of an Instance that may start its next incarnation. Otherwise the session ends with its process, and the reservation is released. It is
// called after the status is recorded: if the write fails, the next reconcile may decide to start the Instance, whose users then stay attached.
func (k *Kind) hold(instance *v1alpha1.Instance, wanted bool) {
	if terminals := k.Runtime(instance).Capabilities().Terminals; terminals != nil {
		terminals.Keep(instance.UID, wanted)
	}
	if !wanted && !arbitration.Live(instance) {
		k.reserved.Release(instance.UID, k.clock.Now())
	}
}

// Forget implements process.Kind: it drops the data cached for the object.
func (k *Kind) Forget(uid types.UID) {
	k.reserved.Release(uid, k.clock.Now())
	k.present.Forget(uid)
	k.reports.Forget(uid)
	k.memories.Forget(uid)
}

func (k *Kind) set(instance *v1alpha1.Instance, conditionType string, status metav1.ConditionStatus, reason, message string) {
	process.SetCondition(instance, k.clock.Now(), conditionType, status, reason, message)
}
