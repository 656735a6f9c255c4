// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types. Every condition has observedGeneration. The first reconciliation sets Ready, Reconciling, Stalled and, for process objects except
// StrategyRuns, Restarting; from then on they are always present. At rest exactly one of Ready, Reconciling and Stalled is True. Any other condition
// is present only while it has its unusual status or a message; an absent condition has its usual status, which internal/conditions defines.
const (
	// ConditionReady is True while the object is as its spec requests: the current incarnation runs and, if it has a readiness probe, that probe has
	// succeeded since the start (reason Running); or the object is at rest without a process (reason Stopped, Completed, Idle or Disabled). Ready alone
	// does not show that a process runs; status.process does. An object that is being deleted is not Ready.
	ConditionReady = "Ready"
	// ConditionReconciling is True while Berth is working toward the desired state, which includes waiting for a back-off.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when a person must act; the message says what to do.
	ConditionStalled = "Stalled"
	// ConditionRestarting is True while a restart is in progress: from before the old process is stopped until the new incarnation is ready or has
	// failed.
	ConditionRestarting = "Restarting"
	// ConditionCircuitOpen is True while the breaker prevents starts. Absent: False.
	ConditionCircuitOpen = "CircuitOpen"
	// ConditionConflict is True when something that the object needs, such as a port, belongs to another owner; the message names the owner. Absent:
	// False.
	ConditionConflict = "Conflict"
	// ConditionDriftDetected is True while the running process was started from an older spec: with updatePolicy OnRestart, or because the new spec
	// cannot be started. Absent: False.
	ConditionDriftDetected = "DriftDetected"
	// ConditionContained is False, with the reason Subreaper, if no cgroup is writable: a process that keeps changing its parent can then escape for a
	// moment. Absent: True, because a cgroup or a container contains the whole process tree.
	ConditionContained = "Contained"
	// ConditionSucceeded is the result of a StrategyRun or a Plan: True or False. Absent: Unknown, because there is no result yet.
	ConditionSucceeded = "Succeeded"
	// ConditionAdopted is True while the process of an Instance was not started by Berth but adopted. Absent: False.
	ConditionAdopted = "Adopted"
	// ConditionURLDetected is True when the output of a DevServer contains its URL, and a process of the server listens on the port of that URL. Absent:
	// False.
	ConditionURLDetected = "URLDetected"
	// ConditionPortVerified is False while the processes of a DevServer do not listen on the port that Berth assigned. Absent: True.
	ConditionPortVerified = "PortVerified"
	// ConditionInitialized is False until a LanguageServer has answered initialize and received the open documents and settings. Absent: True.
	ConditionInitialized = "Initialized"
	// ConditionIndexed is True when a LanguageServer has finished the work that it began at its start, so that its answers are complete. Absent: False.
	ConditionIndexed = "Indexed"
	// ConditionHealthy is False while something is wrong with a running LanguageServer; the message describes the consequence. Absent: True.
	ConditionHealthy = "Healthy"
	// ConditionStrategized, ConditionExecuted and ConditionApplied are True once that phase of a plan has succeeded, until the plan is reverted. Absent:
	// False.
	ConditionStrategized = "Strategized"
	// ConditionExecuted: see ConditionStrategized.
	ConditionExecuted = "Executed"
	// ConditionApplied: see ConditionStrategized.
	ConditionApplied = "Applied"
	// ConditionAwaitingApproval is True while a plan waits until spec.targetPhase is raised. Absent: False.
	ConditionAwaitingApproval = "AwaitingApproval"
	// ConditionIdle is True while a LanguageServer has no client, or while an Instance had no activity for its idleTimeoutSeconds. Absent: False.
	ConditionIdle = "Idle"
	// ConditionAwaitingInput is True while the terminal of an Instance shows that its program waits for an answer. Absent: False.
	ConditionAwaitingInput = "AwaitingInput"
)

// Reasons of conditions, events and exits.
const (
	// ReasonPending: the reconciler has seen the object and has not acted yet.
	ReasonPending = "Pending"
	// ReasonStarting: the incarnation was recorded, and Berth is starting it.
	ReasonStarting = "Starting"
	// ReasonRunning: the process runs and is ready.
	ReasonRunning = "Running"
	// ReasonNotReady: the process runs, but its readiness probe does not succeed.
	ReasonNotReady = "NotReady"
	// ReasonStopping: Berth is stopping the process.
	ReasonStopping = "Stopping"
	// ReasonStopped: no process runs, or an InstanceDiscovery does not scan, as the spec requests; the object is Ready. As the reason of an exit: a stop
	// was requested.
	ReasonStopped = "Stopped"
	// ReasonDeleting: the object is being deleted; Berth stops its process first.
	ReasonDeleting = "Deleting"
	// ReasonMoving: the label berth.dev/host names another host; the process stops on this host before it starts on the other one.
	ReasonMoving = "Moving"
	// ReasonHostUnavailable: the object belongs to a host whose manager does not report; the process may still run on that host.
	ReasonHostUnavailable = "HostUnavailable"
	// ReasonCompleted: the process exited with code 0, and the restart policy does not restart it; the object is Ready.
	ReasonCompleted = "Completed"
	// ReasonFailed: the process failed, and the restart policy does not restart it.
	ReasonFailed = "Failed"
	// ReasonBackOff: the process failed; Berth restarts it at status.nextRestartTime.
	ReasonBackOff = "BackOff"
	// ReasonCircuitOpen: there were too many failures; see status.breaker.
	ReasonCircuitOpen = "CircuitOpen"
	// ReasonCircuitClosed: the breaker allows starts.
	ReasonCircuitClosed = "CircuitClosed"
	// ReasonCircuitHalfOpen: the cool-down is over, and Berth is trying one start.
	ReasonCircuitHalfOpen = "CircuitHalfOpen"
	// ReasonRequested: spec.restartToken was changed.
	ReasonRequested = "Requested"
	// ReasonSpecChanged: the spec from which the process was started has changed.
	ReasonSpecChanged = "SpecChanged"
	// ReasonLost: the cluster or a user removed the Pod. Berth restarts the process whatever its exit status, unless restartPolicy is Never, and the
	// breaker does not count the exit.
	ReasonLost = "Lost"
	// ReasonCrashed: the process exited, and no stop was requested.
	ReasonCrashed = "Crashed"
	// ReasonUnhealthy: the liveness probe failed too often.
	ReasonUnhealthy = "Unhealthy"
	// ReasonHung: the process runs but does not answer.
	ReasonHung = "Hung"
	// ReasonProtocolError: the process sent an invalid message of its protocol.
	ReasonProtocolError = "ProtocolError"
	// ReasonMemoryLimit: the process used more memory than its spec permits.
	ReasonMemoryLimit = "MemoryLimit"
	// ReasonCanaryFailed: the process does not give a usable answer to the canary request.
	ReasonCanaryFailed = "CanaryFailed"
	// ReasonTimedOut: the process took longer than its timeout.
	ReasonTimedOut = "TimedOut"
	// ReasonSucceeded: the run exited with code 0.
	ReasonSucceeded = "Succeeded"
	// ReasonCancelled: the run was stopped, or not started, on request.
	ReasonCancelled = "Cancelled"
	// ReasonSkippedCircuitOpen: the breaker of the strategy is open, so no process was started.
	ReasonSkippedCircuitOpen = "SkippedCircuitOpen"
	// ReasonStrategyMissing: spec.strategyRef names a Strategy that does not exist.
	ReasonStrategyMissing = "StrategyMissing"
	// ReasonStrategyChanged: the strategy has a different program than the one that the plan of the run pinned.
	ReasonStrategyChanged = "StrategyChanged"
	// ReasonDisabled: the strategy is disabled. The Strategy is Ready; its runs that have not started are Stalled.
	ReasonDisabled = "Disabled"
	// ReasonEnabled: Berth starts runs of the strategy.
	ReasonEnabled = "Enabled"
	// ReasonInvalidArgument: an argument is invalid; the message names it.
	ReasonInvalidArgument = "InvalidArgument"
	// ReasonActionMissing: spec.actionRef names an Action that does not exist.
	ReasonActionMissing = "ActionMissing"
	// ReasonActionArchived: the action does not permit new plans.
	ReasonActionArchived = "ActionArchived"
	// ReasonDuplicate: another plan with the same idempotencyKey takes precedence.
	ReasonDuplicate = "Duplicate"
	// ReasonNameTaken: an object of another owner has the name of a run of the plan, of the Service of the object, or of the Instance that a discovery
	// would create.
	ReasonNameTaken = "NameTaken"
	// ReasonBegun: the plan, or a phase of it, has started.
	ReasonBegun = "Begun"
	// ReasonProcessing: runs of the current phase are in progress.
	ReasonProcessing = "Processing"
	// ReasonEnding: Berth is stopping the runs that are still running.
	ReasonEnding = "Ending"
	// ReasonPhaseComplete: the phase has succeeded.
	ReasonPhaseComplete = "PhaseComplete"
	// ReasonPhaseFailed: too many runs of the phase did not succeed.
	ReasonPhaseFailed = "PhaseFailed"
	// ReasonAwaitingApproval: the next phase starts when spec.targetPhase is raised.
	ReasonAwaitingApproval = "AwaitingApproval"
	// ReasonApproved: spec.targetPhase permits the next phase to start.
	ReasonApproved = "Approved"
	// ReasonApplied: the last phase of the plan has succeeded.
	ReasonApplied = "Applied"
	// ReasonRetried: the phase was started again, as requested.
	ReasonRetried = "Retried"
	// ReasonReverted: the plan was restarted at an earlier phase, as requested.
	ReasonReverted = "Reverted"
	// ReasonReversionLimit: the plan has reached the limit of reverts.
	ReasonReversionLimit = "ReversionLimit"
	// ReasonRequestIgnored: a retry or a revert was requested, but there is nothing to retry or revert.
	ReasonRequestIgnored = "RequestIgnored"
	// ReasonResultIgnored: a run of an abandoned attempt has ended; its result changes nothing.
	ReasonResultIgnored = "ResultIgnored"
	// ReasonResumed: the plan has returned to the state that it had before a request that could not be carried out.
	ReasonResumed = "Resumed"
	// ReasonIdle: the process is unused and was stopped; the next use starts it. The object is Ready.
	ReasonIdle = "Idle"
	// ReasonSuperseded: an older incarnation still runs, and Berth is stopping it.
	ReasonSuperseded = "Superseded"
	// ReasonNotRestarting: no restart is in progress.
	ReasonNotRestarting = "NotRestarting"
	// ReasonCommandNotFound: the program of spec.process.command does not exist.
	ReasonCommandNotFound = "CommandNotFound"
	// ReasonPermissionDenied: the program is not executable, or the directory cannot be entered.
	ReasonPermissionDenied = "PermissionDenied"
	// ReasonWorkingDirMissing: spec.process.workingDir is not a directory.
	ReasonWorkingDirMissing = "WorkingDirMissing"
	// ReasonInvalidEnvironment: a variable refers to something that does not exist or is not permitted.
	ReasonInvalidEnvironment = "InvalidEnvironment"
	// ReasonImageMissing: the engine does not have the image, and the spec does not permit pulling it, or the pull failed.
	ReasonImageMissing = "ImageMissing"
	// ReasonContainerMissing: the container to adopt does not exist.
	ReasonContainerMissing = "ContainerMissing"
	// ReasonContainerTaken: the container belongs to another owner, which the message names, or must not be adopted.
	ReasonContainerTaken = "ContainerTaken"
	// ReasonStartFailed: the process could not be started for another cause, which the message contains.
	ReasonStartFailed = "StartFailed"
	// ReasonStopFailed: the stop failed; the message contains the cause, and Berth retries.
	ReasonStopFailed = "StopFailed"
	// ReasonRuntimeUnavailable: the runtime cannot be queried at the moment, or the manager was started without it.
	ReasonRuntimeUnavailable = "RuntimeUnavailable"
	// ReasonRuntimeForbidden: the namespace does not permit programs on the machine of the manager; the message names the label that permits them.
	ReasonRuntimeForbidden = "RuntimeForbidden"
	// ReasonUnknown: the state or the exit status of the process is unknown. Berth does not guess, and starts no other process while the old one may
	// still run.
	ReasonUnknown = "Unknown"
	// ReasonPortInUse: a process that does not belong to this object listens on the port. The message names the port, and the process if Berth knows it.
	ReasonPortInUse = "PortInUse"
	// ReasonPortForbidden: the manager is not permitted to listen on the port; the message names the permission that it needs.
	ReasonPortForbidden = "PortForbidden"
	// ReasonPortClaimed: another DevServer holds the port, or is older and claims it.
	ReasonPortClaimed = "PortClaimed"
	// ReasonNoFreePort: no port is free in the range from which Berth chooses ports.
	ReasonNoFreePort = "NoFreePort"
	// ReasonInstanceMissing: spec.instanceRef names an Instance that does not exist.
	ReasonInstanceMissing = "InstanceMissing"
	// ReasonSessionClaimed: another object holds the session or container, or is older and claims it.
	ReasonSessionClaimed = "SessionClaimed"
	// ReasonSessionTaken: a session or container of that name exists, does not belong to Berth, and may not be adopted.
	ReasonSessionTaken = "SessionTaken"
	// ReasonNothingToAdopt: spec.adoption is Required, and the session or container does not exist.
	ReasonNothingToAdopt = "NothingToAdopt"
	// ReasonInvalidSession: tmux does not accept the name of the session, or of its socket.
	ReasonInvalidSession = "InvalidSession"
	// ReasonAdopted: Berth adopted a process that it did not start.
	ReasonAdopted = "Adopted"
	// ReasonDiscovered: all sources were scanned.
	ReasonDiscovered = "Discovered"
	// ReasonInvalidPattern: a pattern of a source, of an argument or of spec.terminal.awaitingInput.patterns is not a regular expression, or exceeds the
	// limits of internal/pattern; the message names it.
	ReasonInvalidPattern = "InvalidPattern"
	// ReasonAlreadyClaimed: the session or container belongs to another Instance, which the message names.
	ReasonAlreadyClaimed = "AlreadyClaimed"
	// ReasonBerthsOwn: Berth itself started the session or container.
	ReasonBerthsOwn = "BerthsOwn"
	// ReasonForeignBerth: the session or container belongs to another Berth, or to an object that was deleted.
	ReasonForeignBerth = "ForeignBerth"
	// ReasonEnded: the Instance of the session or container has ended, and its name prevents a new one.
	ReasonEnded = "Ended"
	// ReasonUnfit: the session or container cannot be adopted; the message contains the cause.
	ReasonUnfit = "Unfit"
	// ReasonRefused: the API server refused the Instance; the message contains the cause.
	ReasonRefused = "Refused"
	// ReasonNotAdopted: Berth started the process, or none runs.
	ReasonNotAdopted = "NotAdopted"
	// ReasonNoConflict: no other owner has what this object needs.
	ReasonNoConflict = "NoConflict"
	// ReasonUpToDate: the process was started from the current spec.
	ReasonUpToDate = "UpToDate"
	// ReasonDrifted: the running process was started from an older spec; the next restart replaces it.
	ReasonDrifted = "Drifted"
	// ReasonCgroup: the process tree is in a cgroup, through which Berth kills it.
	ReasonCgroup = "Cgroup"
	// ReasonSubreaper: Berth finds the process tree as the descendants of its shim, which is weaker than a cgroup.
	ReasonSubreaper = "Subreaper"
	// ReasonDetected: the output contains the URL.
	ReasonDetected = "Detected"
	// ReasonNotDetected: the output does not contain a URL yet.
	ReasonNotDetected = "NotDetected"
	// ReasonDetectionDisabled: spec.url.detect is Disabled, or the server is in a Pod.
	ReasonDetectionDisabled = "DetectionDisabled"
	// ReasonListening: the processes of this object listen on the port.
	ReasonListening = "Listening"
	// ReasonNotListening: no process of this object listens on the port yet, or none runs.
	ReasonNotListening = "NotListening"
	// ReasonOtherPort: the processes of this object listen on a different port than the assigned one.
	ReasonOtherPort = "OtherPort"
	// ReasonInitialized: the language server has answered initialize and serves requests.
	ReasonInitialized = "Initialized"
	// ReasonInitializing: the language server runs and has not answered initialize yet.
	ReasonInitializing = "Initializing"
	// ReasonNotRunning: no process runs that the condition could describe.
	ReasonNotRunning = "NotRunning"
	// ReasonSettled: the language server has finished the work that it began at its start.
	ReasonSettled = "Settled"
	// ReasonProgressTimeout: the language server still reports progress, but Berth no longer waits for it.
	ReasonProgressTimeout = "ProgressTimeout"
	// ReasonIndexing: the language server is indexing its workspace.
	ReasonIndexing = "Indexing"
	// ReasonHealthy: no problem is known.
	ReasonHealthy = "Healthy"
	// ReasonQuarantined: Berth does not send a document or a request to the language server, because it was involved in repeated crashes.
	ReasonQuarantined = "Quarantined"
	// ReasonCapabilityMismatch: the restarted language server offers fewer capabilities than the one that its clients know.
	ReasonCapabilityMismatch = "CapabilityMismatch"
	// ReasonInUse: clients are connected.
	ReasonInUse = "InUse"
	// ReasonNoClients: no client is connected.
	ReasonNoClients = "NoClients"
	// ReasonActive: the terminal had activity within idleTimeoutSeconds.
	ReasonActive = "Active"
	// ReasonNoActivity: the terminal had no activity for idleTimeoutSeconds.
	ReasonNoActivity = "NoActivity"
	// ReasonNoIdleTimeout: spec.idleTimeoutSeconds is 0, so Berth does not watch for inactivity.
	ReasonNoIdleTimeout = "NoIdleTimeout"
	// ReasonAwaitingInput: the terminal shows a question.
	ReasonAwaitingInput = "AwaitingInput"
	// ReasonNotAwaitingInput: the terminal shows no question.
	ReasonNotAwaitingInput = "NotAwaitingInput"
	// ReasonEndingProcesses: Berth stops the program together with its child processes, which the message names.
	ReasonEndingProcesses = "EndingProcesses"
)
