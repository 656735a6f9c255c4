// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lifecycle is the core of Berth. Next, a pure function, decides the next step for one process. HostClaim.Decide decides which host runs an object, and
// Idleness decides whether a process sleeps.
//
// Next compares the desired state, the recorded status, the observed incarnations and the time. It returns at most one action, the new status, and when
// to check again. It does no I/O and reads no clock, so tests can list and cover every point at which a manager can crash.
package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/facts"
)

// DesiredState is the desired state of the process.
type DesiredState string

const (
	// DesiredRunning requires one running incarnation.
	DesiredRunning DesiredState = "Run"
	// DesiredStopped requires that no incarnation runs.
	DesiredStopped DesiredState = "Stop"
	// DesiredAsleep requires that no incarnation runs for now. The object stays usable: the next use starts the process.
	DesiredAsleep DesiredState = "Sleep"
	// DesiredDeleted requires that no incarnation runs and that every trace is removed, because the object is being deleted.
	DesiredDeleted DesiredState = "Deleted"
	// DesiredMoved requires that no incarnation runs on this host, because another host takes over the object.
	DesiredMoved DesiredState = "Move"
)

// Desired is what the spec requests.
type Desired struct {
	UID        types.UID
	Generation int64
	State      DesiredState

	Hosted

	// SpecHash is the fingerprint of everything that an incarnation is started with.
	SpecHash     string
	RestartToken string
	ResetToken   string
	// SessionID is the ID of the session that the program keeps across its starts; empty if the kind has no sessions.
	SessionID string
	// ResumeHash is the fingerprint of the command that resumes the session; empty if the spec has none.
	ResumeHash string
	// Logs is the command that prints the output of the process. Messages about an exit end with a sentence that names this command, unless it is empty.
	Logs string
	// Restart is the command that restarts the process. Messages that advise a retry name this command; if it is empty, they advise none.
	Restart string

	RestartPolicy v1alpha1.RestartPolicy
	UpdatePolicy  v1alpha1.UpdatePolicy
	// Grace is the time between the request to stop a process and SIGKILL.
	Grace   time.Duration
	Backoff Backoff
	Breaker Breaker

	// Blocked is why no incarnation can be started; nil if a start is possible. It is no reason to stop a running process, and it delays a restart that the spec
	// requests.
	Blocked *Blocked
	// Orphan reports that the process existed before Berth took it over and keeps running when the object is deleted or moves to another host.
	Orphan bool
	// Reserve permits a pre-start: the next incarnation may be started before a write records its start, because its number is already reserved. Set Reserve
	// only if the object has a finalizer and the runtime reports the Origin of each incarnation. Reserve stays the same for as long as the object exists.
	Reserve bool
	// RecordFirst forbids a pre-start: the next incarnation depends on a part of the status that is not written yet, such as a new port.
	RecordFirst bool
	// KeepsPreviousExit reports that the runtime still returns the exit of an incarnation after the next one was started.
	KeepsPreviousExit bool
	// Probed reports that the Ready condition depends on Observed.Ready. Otherwise a running process is ready.
	Probed bool
	// Once is set for a process that runs once and then has an outcome.
	Once *Once
}

// Hosted is the host of an object. It is zero if the object runs in a Pod, or if there is only this manager.
type Hosted struct {
	// Host is the host of this manager, which becomes status.hostName.
	Host string
	// MoveTo is the host that takes over the object; used only for DesiredMoved.
	MoveTo string
}

// Backoff configures the wait before a failed process is restarted.
type Backoff struct {
	Initial, Max, ResetAfter time.Duration
}

// Blocked is why nothing can be started.
type Blocked struct {
	Reason, Message string
	// Conflict reports that another owner holds something that this object needs. The Conflict condition reports it too.
	Conflict bool
	// Absent reports that the session or container that this object represents does not exist. The period ttlSecondsAfterStopped then begins although no
	// process has stopped.
	Absent bool
	// Retry is how long to wait before the next check; 0 if an event triggers it.
	Retry time.Duration
	// Outcome ends a process that runs once and has not started, with this outcome; empty if the process waits.
	Outcome v1alpha1.RunOutcome
}

// Observed is the actual state, as the backend and the probes report it.
type Observed struct {
	Incarnations []facts.Incarnation
	// Confirmed reports that a read from the API server has shown that the record is the newest one. If the record does not contain an observed incarnation,
	// Next treats an unconfirmed record as stale, and a confirmed record as one that has lost data.
	Confirmed bool
	// Vanished is a living process of a deleted object that had the same name; nil if there is none. It is observed only before the first start.
	Vanished *facts.Incarnation
	// Ready reports whether the current incarnation is ready, for example the latest result of its readiness probe; nil if that is not known.
	Ready *bool
	// NotReady describes for users why Ready is false or nil.
	NotReady string
	// Unhealthy is why the current incarnation must be stopped although it is running, for example because its liveness probe failed; otherwise empty.
	Unhealthy string
	// UnhealthyReason is the condition reason for Unhealthy: Hung, ProtocolError, MemoryLimit, CanaryFailed, TimedOut or FolderReplaced. Empty means the reason
	// Unhealthy. FolderReplaced does not count as a failure, because the process has not caused it.
	UnhealthyReason string
	// Contested describes other processes that receive connections to the current incarnation; nil if there are none.
	Contested *Contested
	// LastError is the error of the last attempt to start or stop an incarnation, if that attempt failed and is retried; otherwise empty. The status records
	// the error before the next attempt.
	LastError string
	// Program is the result of the backend's check of a program whose start failed; nil if the backend did not check.
	Program *ProgramCheck
	// StartChecked reports that the caller has checked the start that would follow the running incarnation (see Step.CheckStart). StartFailure is why that start
	// would fail; nil if the check found nothing wrong.
	StartChecked bool
	StartFailure *facts.StartError
	// Timeline converts recorded times to elapsed time.
	Timeline elapsed.Timeline
	// Backlog is the minimum wait before a restart after a failure, because of the restarts that are already planned. The rate of restarts is limited across
	// all objects.
	Backlog time.Duration
}

// Contested describes processes that share something with the current incarnation that only one of them should have.
type Contested struct {
	Reason, Message string
	// Yields reports that the other processes have precedence, or belong to no object, so that the incarnation is not usable until a person acts.
	Yields bool
	// Obstructs reports that the next incarnation could not start while the other processes run.
	Obstructs bool
}

// Action is the one external action of a step. It is carried out after the status is written; a pre-start is carried out before.
type Action string

const (
	// None is no external action.
	None Action = "None"
	// StartProcess starts Step.Incarnation. The status already contains its number, as the current or as the reserved incarnation.
	StartProcess Action = "Start"
	// StopProcess requests that Step.Incarnation stops.
	StopProcess Action = "Stop"
	// KillProcess kills Step.Incarnation.
	KillProcess Action = "Kill"
	// Forget removes every trace of the UID from the backend.
	Forget Action = "Forget"
	// Recheck reports that the record is older than the observed state. The caller writes nothing and takes no action.
	Recheck Action = "Recheck"
)

// Step is what to do next: write Status if it differs from the record; after the API server has acknowledged that write, carry out Action; then check
// again after Requeue, if that is not 0, or on the next event.
type Step struct {
	Status      v1alpha1.ProcessStatus
	Action      Action
	Incarnation int64
	// SessionStart is how Action starts the incarnation or, if CheckStart is set, how the incarnation after the one that Action stops would be started. It is empty
	// if the kind has no sessions.
	SessionStart v1alpha1.SessionStart
	// PreStart reports a pre-start: Action is carried out without a write, because the record already contains the intent. The result is recorded afterwards.
	PreStart bool
	// CheckStart reports that Action stops a process only because the spec requests another incarnation, and that Observed contains no check of the next start.
	// A caller that can check it does not use this step: it sets Observed.StartChecked and Observed.StartFailure, and calls Next again.
	CheckStart bool
	// Why is the reason for the restart if the step is a pre-start that restarts the process; otherwise empty.
	Why     string
	Requeue time.Duration
	// PlannedRestart reports that Status plans a restart after a failure. The restart counts toward the restart rate once Status is written.
	PlannedRestart bool
	// Ended is the process whose exit this step records, and which Status therefore no longer contains; nil if there is none or its identity is not known.
	Ended *v1alpha1.ProcessReference
	// Released reports that nothing of the object remains in the backend once Action is done, so that the finalizer can be removed.
	Released bool
	// Expires is when the period ttlSecondsAfterStopped begins. Since this time, the process has been stopped or finished, or could not be started. Expires is
	// zero in all other states.
	Expires time.Time
	// Events are emitted after the write.
	Events []Event
	// Outcome is the outcome of a process that runs once; empty while it has not ended.
	Outcome v1alpha1.RunOutcome
	// Postponed reports that Status is the record, although a process is observed that the record does not contain: its write can wait until Requeue.
	Postponed bool
}

// Event is a change of the object that is reported to users. Reason is a condition reason.
type Event struct {
	Warning         bool
	Reason, Message string
}
