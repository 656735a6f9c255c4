// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package process is the reconcile loop that all process kinds share: read, observe, decide (internal/lifecycle), write, act.
package process

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// Object is an object of a process kind.
type Object interface {
	client.Object
	GetProcessSpec() *v1alpha1.ProcessSpec
	GetProcessStatus() *v1alpha1.ProcessStatus
}

// Kind is what is special to one kind. Its methods are called from one reconcile of one object at a time and never wait for a process.
type Kind interface {
	// Resource is the plural lower-case name, such as devservers.
	Resource() string
	// New and NewList give empty objects.
	New() Object
	NewList() client.ObjectList

	// Prepare says how the next incarnation of the object would be started, or why it can't be. It may set fields of the kind's own status
	// (an allocated port), which are then written together with the intent to start. Shared work is done already when it is called: plan.Process
	// holds argv (not expanded yet), environment, directory, UID and incarnation.
	// It is called at every reconcile of an object that wants to run, also while an incarnation is running: current is that incarnation, or nil.
	Prepare(ctx context.Context, object Object, current *runtime.Incarnation, plan *Plan) error

	// Look adds what the kind knows about the current incarnation, which runs: readiness, liveness, addresses. It sets fields of the kind's own status and
	// its own conditions (through SetCondition). retry is when to look again, 0 for never.
	Look(ctx context.Context, object Object, current runtime.Incarnation, observed *lifecycle.Observed) (retry time.Duration, err error)

	// Rest is called instead of Look when no incarnation is running, so that the kind sets all of its own conditions from the first visit on.
	Rest(ctx context.Context, object Object)

	// Forget is called when the object is gone: whatever the kind keeps in memory about this UID (probers) ends.
	Forget(uid types.UID)
}

// Sleeper is implemented by kinds whose processes may sleep although they are wanted (state: OnDemand), until somebody comes.
type Sleeper interface {
	// Asleep says whether the process of an object that is neither stopped nor deleted should not run for now, by the time given. It is asked
	// once per reconcile, before anything else of the kind.
	Asleep(ctx context.Context, object Object, now time.Time) bool
}

// Resolver is implemented by kinds whose objects take over what they run from another object.
type Resolver interface {
	// Resolve makes the object's process spec. It is called first in every reconcile; what it sets is not written.
	Resolve(ctx context.Context, object Object) error
}

// Concluder is implemented by kinds that draw conclusions from what was decided.
type Concluder interface {
	// Conclude may set the kind's own status and conditions, after the decision and before it is written. base is the object as it was.
	Conclude(object, base Object, step *lifecycle.Step, now time.Time)
}

// Placed is implemented by kinds whose objects choose where they run.
type Placed interface {
	// Runtime gives the backend of an object, which stays the same for as long as the object is there.
	Runtime(object Object) runtime.Runtime
	// RuntimeType returns the type of that backend as the spec names it; empty if the spec names none.
	RuntimeType(object Object) v1alpha1.RuntimeType
	// Orphans says whether what runs is left as it is when the object goes.
	Orphans(object Object, current runtime.Incarnation) bool
}

// Effective is implemented by kinds that have something else to do outside after a status was written: once for each write, and not at all when
// the manager ends in between.
type Effective interface {
	// Written is told the object as it was written and as it was before.
	Written(ctx context.Context, object, base Object) error
}

// Reserving is implemented by kinds whose next incarnation needs nothing on record but its number, so that it may be started after a crash before that
// is recorded. The runtime has to be a Chronicler.
type Reserving interface {
	// Reserves says whether that holds for the object.
	Reserves(object Object) bool
}

// Finalizing is implemented by kinds that somebody else waits for too.
type Finalizing interface {
	// Finalizers are put on the object together with the one of its process, at its first visit.
	Finalizers(object Object) []string
}

// Plan is how the next incarnation would be started.
type Plan struct {
	// Process is complete but for variables of the kind.
	Process runtime.Process
	// Variables come before the environment of the spec and win over it, such as PORT. Environment and argv are expanded anew with them
	// after Prepare: what it sets in Process.Env and Process.Command beyond that is lost for Env, and expanded for Command. No secrets belong there.
	Variables map[string]string
	// Fingerprint are words of the kind's spec that a running process depends on, beyond command, directory and environment of the spec.
	// A change of one of them is a changed spec.
	Fingerprint []string
	// Blocked, when set, is why nothing can be started.
	Blocked *lifecycle.Blocked
	// Refused says that the last start was refused by the runtime as things were.
	Refused bool
	// Probed says that Ready waits for what Look says.
	Probed bool
}
