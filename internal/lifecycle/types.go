// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lifecycle is the heart of Berth: one pure function that decides what to do next about one process.
//
// Next looks at what is wanted, what was recorded, what is there and the time, and answers with at most one action, the status that is
// true from now on, and when to look again. It does no I/O and asks no clock, so every point at which a manager can crash can be listed and tested.
package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// Want is what should become of the process.
type Want string

const (
	// Run wants one incarnation to run.
	Run Want = "Run"
	// Stop wants none to run.
	Stop Want = "Stop"
	// Sleep wants none to run for now, though the object is of use as it is: whoever comes wakes it.
	Sleep Want = "Sleep"
	// Gone wants none to run and every trace removed: the object is being deleted.
	Gone Want = "Gone"
	// Move wants none to run on this host, because another host is to run it.
	Move Want = "Move"
)

// Desired is what the spec asks for.
type Desired struct {
	UID        types.UID
	Generation int64
	Want       Want

	Hosted

	// SpecHash is the fingerprint of all that an incarnation is started with.
	SpecHash     string
	RestartToken string
	ResetToken   string
	// Logs is the command that prints the output, for messages about an exit; empty omits it.
	Logs string

	RestartPolicy v1alpha1.RestartPolicy
	UpdatePolicy  v1alpha1.UpdatePolicy
	// Grace is the time between asking a process to end and killing it.
	Grace   time.Duration
	Backoff Backoff
	Breaker Breaker

	// Blocked, when set, is why nothing can be started. What runs already goes on running.
	Blocked *Blocked
	// Orphan leaves what runs as it is when the object goes: it was there before, and is not Berth's to end.
	Orphan bool
	// Reserve says that the next incarnation may be started before that is recorded, as its number is reserved. It needs nothing else on record, a
	// finalizer, and a runtime that tells of each incarnation its Origin.
	Reserve bool
	// KeepsEnd says that the runtime still tells how an incarnation ended after the next was started.
	KeepsEnd bool
	// Probed says that Ready waits for Observed.Ready; without it a process that runs is ready.
	Probed bool
}

// Hosted is the host of an object; the zero value is for Pods, and for a manager that is alone.
type Hosted struct {
	// Host is the host of this manager, which becomes status.hostName.
	Host string
	// MoveTo is the host that takes over, for Move.
	MoveTo string
}

// Backoff is the wait before a failed process is started again.
type Backoff struct {
	Initial, Max, ResetAfter time.Duration
}

// Blocked is why nothing can be started.
type Blocked struct {
	Reason, Message string
	// Conflict: something that this object needs belongs to somebody else. It is said in the condition Conflict too.
	Conflict bool
	// Absent: what this object stands for is not there, so that ttlSecondsAfterStopped counts from now on.
	Absent bool
	// Retry is when to look again; 0 when an event will come.
	Retry time.Duration
}

// Observed is what is really there.
type Observed struct {
	Incarnations []facts.Incarnation
	// Confirmed says that the record was compared with a live read and is the newest. Without it an incarnation that the record does not know means
	// that the record is old; with it, that the record was lost.
	Confirmed bool
	// Ready is the newest answer of the readiness probe for the current incarnation: nil while there is none.
	Ready *bool
	// NotReady says why Ready is false or nil, for people.
	NotReady string
	// Unhealthy, when not empty, is why the liveness probe of the current incarnation has failed for good.
	Unhealthy string
	// UnhealthyReason is Unhealthy (or empty), Hung, ProtocolError, MemoryLimit or CanaryFailed.
	UnhealthyReason string
	// Trouble is why the last attempt to start or stop an incarnation failed, if it is retried; otherwise empty. The status records it before the next
	// attempt.
	Trouble string
	// Program is what the backend found when it checked the program whose start failed; nil if it did not check.
	Program *ProgramCheck
	// Backlog is how long the restarts after failures that were planned before will take at the rate that is allowed for all objects. A restart that is
	// planned now comes after them.
	Backlog time.Duration
}

// Action is the one thing to do outside, after the status was written.
type Action string

const (
	// None means: nothing to do outside.
	None Action = "None"
	// StartProcess starts Step.Incarnation, whose number the status already holds, as its own or as the one that is reserved.
	StartProcess Action = "Start"
	// StopProcess asks Step.Incarnation to end.
	StopProcess Action = "Stop"
	// KillProcess ends Step.Incarnation.
	KillProcess Action = "Kill"
	// Forget removes every trace of the UID outside.
	Forget Action = "Forget"
	// LookAgain means: what was read is older than what is there. Nothing is written or done.
	LookAgain Action = "LookAgain"
)

// Step is what to do next: write Status if it differs, and only when that write was acknowledged do Action; then look again after Requeue, if that is
// not 0, or when something happens.
type Step struct {
	Status      v1alpha1.ProcessStatus
	Action      Action
	Incarnation int64
	// Ahead says that the action is done without a write: the record holds the intent already, and what comes of it is recorded afterwards.
	Ahead bool
	// Why is the reason of a restart that is made ahead; empty when it is none.
	Why     string
	Requeue time.Duration
	// PlannedRestart reports that a restart after a failure was planned, which counts for the rate of restarts.
	PlannedRestart bool
	// Ended is the process that was found to have ended, as far as it is known; the status has it no more.
	Ended *v1alpha1.ProcessReference
	// Released says that nothing of the object is left outside once Action is done, so that the finalizer may go.
	Released bool
	// Expires says since when the object is at rest without a process, for ttlSecondsAfterStopped; zero while it is not.
	Expires time.Time
	// Events are to be told after the write.
	Events []Event
}

// Event is something that a user may notice. Reason is that of a condition.
type Event struct {
	Warning         bool
	Reason, Message string
}
