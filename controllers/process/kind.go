// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package process is the reconcile loop of all process kinds: read, observe, decide (internal/lifecycle), write, act.
package process

import (
	"context"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// Object is an object of a process kind.
type Object interface {
	client.Object
	GetProcessSpec() *v1alpha1.ProcessSpec
	GetProcessStatus() *v1alpha1.ProcessStatus
}

// Kind is the part of a reconcile that is specific to one kind. Its methods may be called concurrently for different objects, but not for the same object, and
// never wait for a process. A kind may also implement SpecResolver, StatusDeriver and ActionObserver.
type Kind interface {
	// Resource is the plural lower-case name, such as devservers.
	Resource() string
	// New and NewList return empty objects.
	New() Object
	NewList() client.ObjectList

	// Traits returns what the kind requires for the object. It may be called several times in a reconcile, first directly after ResolveSpec.
	Traits(object Object) Traits

	// Asleep reports whether the process should be asleep for now (state: OnDemand, or an idle timeout). It is called at most once per reconcile, after Traits,
	// and only for an object that is not stopped, deleted or moved to another host. Kinds without such a state return false.
	Asleep(ctx context.Context, object Object, now time.Time) bool

	// Prepare sets how to start the next incarnation of the object, or why it cannot be started. It may set fields of the kind's own status (such as an allocated
	// port), which are then written together with the intent to start, before the start. start.Process already holds argv (not expanded yet), environment,
	// directory, UID and incarnation. The ProcessStatus is the one that was read.
	// Prepare is called in every reconcile of an object that is not stopped, deleted or moved to another host, even while an incarnation is running: current is
	// that incarnation, or nil.
	Prepare(ctx context.Context, object Object, current *facts.Incarnation, start *StartSpec) error

	// ObserveRunning adds what the kind knows about the current incarnation, which is running: readiness, liveness, addresses. It sets fields of the kind's own
	// status and its own conditions (through SetCondition). It is called before the decision, so the ProcessStatus is the one that was read, and may still
	// describe the previous incarnation, if the current one was pre-started. retry is how long to wait before the next check; 0 means that none is needed.
	ObserveRunning(ctx context.Context, object Object, current facts.Incarnation, observed *lifecycle.Observed) (retry time.Duration, err error)

	// ObserveStopped sets the kind's own status while no incarnation is running, or while the program has exited and only other processes of its tree are alive.
	// It removes the conditions of the kind that describe a running process. It is called after the decision and before the status is written, so that the
	// ProcessStatus is the one that will be written; it is not called if the step pre-starts an incarnation or postpones the write. If the write fails, the
	// stored ProcessStatus differs, so what must follow an acknowledged write belongs in ActionObserver. retry is as for ObserveRunning.
	ObserveStopped(ctx context.Context, object Object) (retry time.Duration)

	// Forget is called after the object was deleted, and while the object belongs to another host. The kind drops what it keeps in memory about this UID, such
	// as probers.
	Forget(uid types.UID)
}

// Traits is what a kind requires for one object.
type Traits struct {
	// Runtime is the type of the backend that the spec names; empty for the default of the manager. It stays the same for as long as the object exists.
	Runtime v1alpha1.RuntimeType
	// Template is the template of the object's Pods; nil if there is none.
	Template *apiruntime.RawExtension
	// Finalizers are added to the object in its first reconcile, together with the process finalizer.
	Finalizers []string
	// Marked records the UID of the object in AnnotationUID before its process is started.
	Marked bool
	// Adopts is the existing session or container that the object may adopt, in the form of the policy key adoption (see AdoptsSession); empty if it adopts none.
	Adopts string
	// KeepAdopted leaves an adopted process running when the object is deleted.
	KeepAdopted bool
	// SessionID is the ID of the session that the program keeps across its starts; empty if the kind has no sessions. An object with a session can have a
	// resumeCommand, and its program gets the variables BERTH_INCARNATION and BERTH_RESUMED.
	SessionID string
	// Once is set for a process that runs once. It is read after Prepare.
	Once *lifecycle.Once
}

// SpecResolver is implemented by kinds whose process spec comes from another object.
type SpecResolver interface {
	// ResolveSpec returns the process spec of the object. It is called first in every reconcile.
	ResolveSpec(ctx context.Context, object Object) (*v1alpha1.ProcessSpec, error)
}

// StatusDeriver is implemented by kinds whose own status depends on the decision.
type StatusDeriver interface {
	// DeriveStatus may set the kind's own status and conditions. It returns additional events. It is called after the decision and before the status is written, but
	// not if the step pre-starts an incarnation or postpones the write. base is the object as it was read.
	DeriveStatus(object, base Object, step lifecycle.Step, now time.Time) []lifecycle.Event
}

// ActionObserver is implemented by kinds that must act on a decision themselves, for example kinds with a proxy.
type ActionObserver interface {
	// BeforeAction is called at most once per reconcile, before the action of the step is carried out. If the status has changed, the API server has acknowledged
	// it by then. Before a pre-start, the ProcessStatus is the one that was read, which does not show yet that the previous incarnation has exited, and written
	// is false. base is the object as it was read; written reports whether this reconcile wrote a status. An error is logged and not retried, so what the kind
	// does after a write happens at most once.
	BeforeAction(ctx context.Context, object, base Object, step lifecycle.Step, written bool) error
}

// StartSpec is how the next incarnation would be started.
type StartSpec struct {
	// Process is complete except for the variables of the kind.
	Process runtime.Process
	// Variables are environment variables, such as PORT, that precede the environment of the spec and override it. They must not contain secrets. Prepare sets
	// Variables. Its changes to Process.Env have no effect, because the environment is computed again after Prepare, from the spec and Variables. It may change
	// Process.Command, which is expanded after Prepare.
	Variables map[string]string
	// Fingerprint lists values of the kind's spec that a running process depends on, besides the command, directory and environment of the spec. A change of
	// one of them counts as a changed spec.
	Fingerprint []string
	// Blocked is why nothing can be started; nil if a start is possible.
	Blocked *lifecycle.Blocked
	// Held is why the start must wait although it is possible. It counts only if nothing else blocks the start, so an object that is held can start.
	Held *lifecycle.Blocked
	// Found reports that the backend knows the recorded incarnation, alive or ended.
	Found bool
	// RecordFirst reports that the start must be recorded before it happens, because the status does not claim yet what the incarnation will use. A start for
	// which Prepare changes the status is always recorded first.
	RecordFirst bool
	// Refused reports that the last action of the runtime for this object, usually the start, failed.
	Refused bool
	// Probed reports that Ready depends on the result of ObserveRunning.
	Probed bool
}
