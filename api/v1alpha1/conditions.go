// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types. Every condition carries observedGeneration and is set on the first visit of the reconciler.
// At rest exactly one of Ready, Reconciling and Stalled is True.
const (
	// ConditionReady is True while the current incarnation runs and, where probes are set, its readiness probe succeeded after it started.
	ConditionReady = "Ready"
	// ConditionReconciling is True while Berth is on its way to what the spec says, waiting for a back-off included.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when nothing will happen until somebody acts; the message says what to do.
	ConditionStalled = "Stalled"
	// ConditionRestarting is True from before a process is ended to be started again until the new incarnation is ready or has failed.
	ConditionRestarting = "Restarting"
	// ConditionCircuitOpen is True while the breaker keeps the process from being started.
	ConditionCircuitOpen = "CircuitOpen"
	// ConditionConflict is True when something that this object needs (a port) belongs to somebody else; the message names the owner.
	ConditionConflict = "Conflict"
	// ConditionDriftDetected is True when what runs was started from an older spec (updatePolicy: OnRestart).
	ConditionDriftDetected = "DriftDetected"
	// ConditionContained says by which means the whole process tree can be ended: the reason is Cgroup or Subreaper.
	ConditionContained = "Contained"
	// ConditionURLDetected is True when the URL of a DevServer was found in its output and confirmed by its sockets.
	ConditionURLDetected = "URLDetected"
	// ConditionPortVerified is True when the processes of a DevServer listen on the port that it was given.
	ConditionPortVerified = "PortVerified"
)

// Reasons of conditions; events carry the same words.
const (
	// ReasonPending: the reconciler has seen the object and has not acted yet.
	ReasonPending = "Pending"
	// ReasonStarting: the incarnation was recorded and is being started.
	ReasonStarting = "Starting"
	// ReasonRunning: the process runs.
	ReasonRunning = "Running"
	// ReasonNotReady: the process runs and its readiness probe does not succeed.
	ReasonNotReady = "NotReady"
	// ReasonStopping: the process was asked to end.
	ReasonStopping = "Stopping"
	// ReasonStopped: nothing runs, as the spec asks.
	ReasonStopped = "Stopped"
	// ReasonDeleting: the object is being deleted; its process is ended first.
	ReasonDeleting = "Deleting"
	// ReasonCompleted: the process ended well and the restart policy does not start it again.
	ReasonCompleted = "Completed"
	// ReasonFailed: the process failed and the restart policy does not start it again.
	ReasonFailed = "Failed"
	// ReasonBackOff: the process failed; it is started again at status.nextRestartTime.
	ReasonBackOff = "BackOff"
	// ReasonCircuitOpen: too many failures; see status.breaker.
	ReasonCircuitOpen = "CircuitOpen"
	// ReasonCircuitClosed: the breaker lets starts through.
	ReasonCircuitClosed = "CircuitClosed"
	// ReasonCircuitHalfOpen: the cool-down is over and one start is being tried.
	ReasonCircuitHalfOpen = "CircuitHalfOpen"
	// ReasonRequested: somebody changed spec.restartToken.
	ReasonRequested = "Requested"
	// ReasonSpecChanged: the spec that the process was started from has changed.
	ReasonSpecChanged = "SpecChanged"
	// ReasonCrashed: the process ended although nobody asked it to.
	ReasonCrashed = "Crashed"
	// ReasonUnhealthy: the liveness probe failed too often.
	ReasonUnhealthy = "Unhealthy"
	// ReasonSuperseded: an older incarnation was still there and is being ended.
	ReasonSuperseded = "Superseded"
	// ReasonNotRestarting: no restart is under way.
	ReasonNotRestarting = "NotRestarting"
	// ReasonCommandNotFound: the program of spec.process.command does not exist.
	ReasonCommandNotFound = "CommandNotFound"
	// ReasonPermissionDenied: the program may not be executed, or the directory not be entered.
	ReasonPermissionDenied = "PermissionDenied"
	// ReasonWorkingDirMissing: spec.process.workingDir is not a directory.
	ReasonWorkingDirMissing = "WorkingDirMissing"
	// ReasonInvalidEnvironment: a variable refers to something that is not there, or is not allowed.
	ReasonInvalidEnvironment = "InvalidEnvironment"
	// ReasonStartFailed: the process could not be started for another cause, which the message holds.
	ReasonStartFailed = "StartFailed"
	// ReasonRuntimeUnavailable: the runtime cannot be asked at the moment.
	ReasonRuntimeUnavailable = "RuntimeUnavailable"
	// ReasonUnknown: what became of the process cannot be told; nothing is invented and nothing started beside it.
	ReasonUnknown = "Unknown"
	// ReasonPortInUse: a process that is not of this object listens on the port; the message names it.
	ReasonPortInUse = "PortInUse"
	// ReasonPortClaimed: an older object claims the same port.
	ReasonPortClaimed = "PortClaimed"
	// ReasonNoFreePort: the range that ports are allocated from is exhausted.
	ReasonNoFreePort = "NoFreePort"
	// ReasonInstanceMissing: spec.instanceRef names an Instance that does not exist.
	ReasonInstanceMissing = "InstanceMissing"
	// ReasonNoConflict: nothing else claims what this object needs.
	ReasonNoConflict = "NoConflict"
	// ReasonUpToDate: what runs was started from the spec as it is.
	ReasonUpToDate = "UpToDate"
	// ReasonDrifted: what runs was started from an older spec and is replaced at the next restart.
	ReasonDrifted = "Drifted"
	// ReasonCgroup: the tree is held in a cgroup and ended through it.
	ReasonCgroup = "Cgroup"
	// ReasonSubreaper: the tree is found as the descendants of its shim; weaker than a cgroup.
	ReasonSubreaper = "Subreaper"
	// ReasonDetected: the URL was found in the output.
	ReasonDetected = "Detected"
	// ReasonNotDetected: no URL was found in the output so far.
	ReasonNotDetected = "NotDetected"
	// ReasonDetectionDisabled: spec.url.detect is Disabled.
	ReasonDetectionDisabled = "DetectionDisabled"
	// ReasonListening: the processes of this object listen on the port.
	ReasonListening = "Listening"
	// ReasonNotListening: none of the processes of this object listens on the port so far.
	ReasonNotListening = "NotListening"
	// ReasonOtherPort: the processes of this object listen on another port than the one they were given.
	ReasonOtherPort = "OtherPort"
)
