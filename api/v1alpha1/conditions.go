// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types. Every condition has observedGeneration. From its first reconciliation on, every object has Ready, Reconciling and Stalled; a
// process object also has Restarting, unless it is a StrategyRun. Exactly one of Ready, Reconciling and Stalled is True at rest. Any other condition
// is present only while it has a message or an unusual status. An absent condition has its usual status, which internal/conditions defines.
const (
	// ConditionReady is True while the object is in the state that its spec requests. Either the current incarnation runs and has passed its readiness
	// check, if it has one (reason Running), or the object needs no process (reason Stopped, Completed, Idle or Disabled). Ready alone does not show
	// whether a process runs; status.process does. An object that is being deleted is not Ready.
	ConditionReady = "Ready"
	// ConditionReconciling is True while Berth is working toward the desired state, or waits for a back-off to end.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True while a problem prevents the desired state, usually until a user acts; the message states what to do.
	ConditionStalled = "Stalled"
	// ConditionRestarting is True while a restart is in progress: from before Berth stops the old process, or from when Berth has recorded its exit, until
	// the new incarnation is ready or has failed.
	ConditionRestarting = "Restarting"
	// ConditionCircuitOpen is True while the circuit breaker prevents starts. Absent: False.
	ConditionCircuitOpen = "CircuitOpen"
	// ConditionConflict is True when something that the object needs, such as a port, belongs to another owner, or when other processes also receive the
	// connections to the port of a DevServer; the message names the owner. Absent: False.
	ConditionConflict = "Conflict"
	// ConditionDriftDetected is True while the running process was started from an older spec, because updatePolicy is OnRestart or because the new spec
	// cannot be started. It is also True while a requested restart waits, because the next start would fail. Absent: False.
	ConditionDriftDetected = "DriftDetected"
	// ConditionContained is False, with the reason Subreaper, if no cgroup is writable: a process that keeps changing its parent can then briefly escape
	// from its process tree. Absent: True, because a cgroup or a container contains the whole process tree.
	ConditionContained = "Contained"
	// ConditionSucceeded is True if a StrategyRun or a Plan has succeeded, and False if it has not. Absent: Unknown, because there is no result yet.
	ConditionSucceeded = "Succeeded"
	// ConditionAdopted is True while an Instance has a process that Berth adopted and did not start. Absent: False.
	ConditionAdopted = "Adopted"
	// ConditionURLDetected is True if the output of a DevServer contains a URL, and a process of the DevServer listens on the port of that URL. Absent:
	// False.
	ConditionURLDetected = "URLDetected"
	// ConditionPortVerified is False while no process of a DevServer listens on its assigned port. Absent: True.
	ConditionPortVerified = "PortVerified"
	// ConditionInitialized is False until a LanguageServer has answered the initialize request and received the open documents and settings. Absent:
	// True.
	ConditionInitialized = "Initialized"
	// ConditionIndexed is True once a LanguageServer has finished the work that it began at its start, so that its answers are complete. Absent: False.
	ConditionIndexed = "Indexed"
	// ConditionHealthy is False while a running LanguageServer has a problem, which the message describes. Absent: True.
	ConditionHealthy = "Healthy"
	// ConditionStrategized is True from the time when the phase Strategize of a plan has succeeded until the plan is reverted. Absent: False.
	ConditionStrategized = "Strategized"
	// ConditionExecuted is True from the time when the phase Execute of a plan has succeeded until the plan is reverted. Absent: False.
	ConditionExecuted = "Executed"
	// ConditionApplied is True from the time when the phase Apply of a plan has succeeded until the plan is reverted. Absent: False.
	ConditionApplied = "Applied"
	// ConditionAwaitingApproval is True while a plan waits for spec.approval. Absent: False.
	ConditionAwaitingApproval = "AwaitingApproval"
	// ConditionIdle is True while a LanguageServer has no client, or after an Instance has had no activity for its idleTimeoutSeconds. Absent: False.
	ConditionIdle = "Idle"
	// ConditionAwaitingInput is True while the terminal of an Instance shows that its program waits for an answer. Absent: False.
	ConditionAwaitingInput = "AwaitingInput"
)

// Reasons of conditions, events and exits. docs/extending.md lists what a new reason needs.
const (
	// ReasonPending means that a plan has not started yet, that the Strategy of a run has not been reconciled yet, or that a condition has not been determined yet.
	ReasonPending = "Pending"
	// ReasonStarting means that the incarnation was recorded, and Berth is starting it.
	ReasonStarting = "Starting"
	// ReasonRunning means that the process runs and is ready.
	ReasonRunning = "Running"
	// ReasonNotReady means that the process runs, but its readiness probe does not succeed.
	ReasonNotReady = "NotReady"
	// ReasonStopping means that Berth is stopping the process.
	ReasonStopping = "Stopping"
	// ReasonStopped means that spec.state is Stopped, so that no process runs, or that an InstanceDiscovery does not scan; the object is Ready. As the reason
	// of an exit, it means that a stop was requested.
	ReasonStopped = "Stopped"
	// ReasonDeleting means that the object is being deleted, and that Berth stops its process first.
	ReasonDeleting = "Deleting"
	// ReasonMoving means that the label berth.dev/host names another host. The process stops on this host before it starts on the other one.
	ReasonMoving = "Moving"
	// ReasonHostUnavailable means that the object belongs to a host whose manager does not report. The process may still run on that host.
	ReasonHostUnavailable = "HostUnavailable"
	// ReasonCompleted means that the process exited with code 0, and the restart policy does not restart it; the object is Ready.
	ReasonCompleted = "Completed"
	// ReasonFailed means that the process failed, and the restart policy does not restart it.
	ReasonFailed = "Failed"
	// ReasonBackOff means that the process failed, and that Berth restarts it at status.nextRestartTime.
	ReasonBackOff = "BackOff"
	// ReasonCircuitOpen means that the circuit breaker opened after too many failures; see status.breaker.
	ReasonCircuitOpen = "CircuitOpen"
	// ReasonCircuitClosed means that the circuit breaker allows starts.
	ReasonCircuitClosed = "CircuitClosed"
	// ReasonCircuitHalfOpen means that the cool-down is over, and Berth is trying one start.
	ReasonCircuitHalfOpen = "CircuitHalfOpen"
	// ReasonRequested means that spec.restartToken was changed.
	ReasonRequested = "Requested"
	// ReasonSpecChanged means that the spec from which the process was started has changed.
	ReasonSpecChanged = "SpecChanged"
	// ReasonLost means that the cluster or a user removed the Pod, or that the host of the process was declared lost. Berth restarts the process
	// whatever its exit status, unless restartPolicy is Never, and the breaker does not count the exit.
	ReasonLost = "Lost"
	// ReasonCrashed means that the process exited, and no stop was requested.
	ReasonCrashed = "Crashed"
	// ReasonResumeFailed means that process.resumeCommand failed at once, so Berth starts process.command instead.
	ReasonResumeFailed = "ResumeFailed"
	// ReasonUnhealthy means that the liveness probe failed too often.
	ReasonUnhealthy = "Unhealthy"
	// ReasonHung means that the process runs but does not answer.
	ReasonHung = "Hung"
	// ReasonProtocolError means that the process sent an invalid message of its protocol.
	ReasonProtocolError = "ProtocolError"
	// ReasonMemoryLimit means that the process used more memory than its spec permits.
	ReasonMemoryLimit = "MemoryLimit"
	// ReasonCanaryFailed means that the process does not give a usable answer to the canary request.
	ReasonCanaryFailed = "CanaryFailed"
	// ReasonFolderReplaced means that the folder of the workspace of a language server did not exist for a while, so the server is restarted.
	ReasonFolderReplaced = "FolderReplaced"
	// ReasonTimedOut means that a run, or a phase of a plan, took longer than its timeout.
	ReasonTimedOut = "TimedOut"
	// ReasonSucceeded means that the run exited with code 0.
	ReasonSucceeded = "Succeeded"
	// ReasonCancelled means that the run was stopped, or not started, on request.
	ReasonCancelled = "Cancelled"
	// ReasonSkippedCircuitOpen means that no process was started, because the breaker of the strategy is open.
	ReasonSkippedCircuitOpen = "SkippedCircuitOpen"
	// ReasonStrategyMissing means that a Strategy that a run or a plan needs does not exist.
	ReasonStrategyMissing = "StrategyMissing"
	// ReasonRestored means that a Plan or a StrategyRun is a copy of an object that Berth has served before, for example from a backup, so that it may have been
	// executed already.
	ReasonRestored = "Restored"
	// ReasonStrategyChanged means that the program of the strategy has changed since the plan of the run started.
	ReasonStrategyChanged = "StrategyChanged"
	// ReasonDisabled means that the strategy is disabled. The Strategy is Ready; its runs that have not started are Stalled.
	ReasonDisabled = "Disabled"
	// ReasonEnabled means that Berth starts runs of the strategy.
	ReasonEnabled = "Enabled"
	// ReasonInvalidArgument means that an argument is invalid; the message names the argument.
	ReasonInvalidArgument = "InvalidArgument"
	// ReasonActionMissing means that spec.actionRef names an Action that does not exist.
	ReasonActionMissing = "ActionMissing"
	// ReasonActionArchived means that the action does not permit new plans.
	ReasonActionArchived = "ActionArchived"
	// ReasonDuplicate means that another plan with the same idempotencyKey takes precedence.
	ReasonDuplicate = "Duplicate"
	// ReasonNameTaken means that an object of another owner has the name of a run of the plan, of the Service of the object, or of the Instance that a
	// discovery would create.
	ReasonNameTaken = "NameTaken"
	// ReasonBegun means that the plan has started.
	ReasonBegun = "Begun"
	// ReasonProcessing means that runs of the current phase are in progress.
	ReasonProcessing = "Processing"
	// ReasonEnding means that Berth is stopping the runs that are still active.
	ReasonEnding = "Ending"
	// ReasonPhaseComplete means that the phase has succeeded.
	ReasonPhaseComplete = "PhaseComplete"
	// ReasonPhaseFailed means that too many runs of the phase did not succeed.
	ReasonPhaseFailed = "PhaseFailed"
	// ReasonAwaitingApproval means that the plan waits until spec.approval permits the next phase.
	ReasonAwaitingApproval = "AwaitingApproval"
	// ReasonApproved means that the next phase has started, because spec.targetPhase or spec.approval permits it.
	ReasonApproved = "Approved"
	// ReasonApplied means that the last phase of the plan has succeeded.
	ReasonApplied = "Applied"
	// ReasonRetried means that the phase was started again, as requested.
	ReasonRetried = "Retried"
	// ReasonReverted means that the plan was restarted at an earlier phase, as requested.
	ReasonReverted = "Reverted"
	// ReasonReversionLimit means that the plan has reached its limit of reverts.
	ReasonReversionLimit = "ReversionLimit"
	// ReasonRequestIgnored means that a retry or a revert was requested, but there is nothing to retry or revert.
	ReasonRequestIgnored = "RequestIgnored"
	// ReasonResultIgnored means that a run of an abandoned attempt has ended, and that the plan ignores its result.
	ReasonResultIgnored = "ResultIgnored"
	// ReasonResumed means that a retry returned the plan to the state that it had before a revert that exceeded the limit.
	ReasonResumed = "Resumed"
	// ReasonIdle means that the process is unused and was stopped, and that the next use starts it. The object is Ready.
	ReasonIdle = "Idle"
	// ReasonSuperseded means that an older incarnation, or the process of a deleted object with the same name, still runs, and Berth is stopping it.
	ReasonSuperseded = "Superseded"
	// ReasonNotRestarting means that no restart is in progress.
	ReasonNotRestarting = "NotRestarting"
	// ReasonCommandNotFound means that the program of spec.process.command or of the image does not exist.
	ReasonCommandNotFound = "CommandNotFound"
	// ReasonPermissionDenied means that the program is not executable, or that the working directory is not accessible.
	ReasonPermissionDenied = "PermissionDenied"
	// ReasonWorkingDirMissing means that spec.process.workingDir is not a directory.
	ReasonWorkingDirMissing = "WorkingDirMissing"
	// ReasonInvalidEnvironment means that an environment variable refers to something that does not exist or is not permitted.
	ReasonInvalidEnvironment = "InvalidEnvironment"
	// ReasonImageMissing means that the engine does not have the image, and that the spec does not permit pulling the image, or that the pull failed.
	ReasonImageMissing = "ImageMissing"
	// ReasonContainerMissing means that the container to adopt does not exist.
	ReasonContainerMissing = "ContainerMissing"
	// ReasonContainerTaken means that the container belongs to another owner, which the message names, or must not be adopted.
	ReasonContainerTaken = "ContainerTaken"
	// ReasonStartFailed means that the process could not be started for a cause that has no separate reason. The message contains the cause.
	ReasonStartFailed = "StartFailed"
	// ReasonStopFailed means that the stop failed, and that Berth retries. The message contains the cause.
	ReasonStopFailed = "StopFailed"
	// ReasonRuntimeUnavailable means that the runtime cannot be queried at the moment, or that the manager was started without it.
	ReasonRuntimeUnavailable = "RuntimeUnavailable"
	// ReasonUndecodable means that the object has a value that cannot be decoded, so Berth ignores the object. It is the reason of an event only.
	ReasonUndecodable = "Undecodable"
	// ReasonRuntimeForbidden means that the namespace does not permit programs on the machine of the manager; the message names the label that permits
	// them.
	ReasonRuntimeForbidden = "RuntimeForbidden"
	// ReasonAdoptionForbidden means that the key adoption of the ConfigMap berth-policy does not permit the namespace to adopt the session or container; the
	// message names the entry.
	ReasonAdoptionForbidden = "AdoptionForbidden"
	// ReasonUnknown means that the state or the exit status of the process is unknown. Berth starts no other process while the old one may still run.
	ReasonUnknown = "Unknown"
	// ReasonPortInUse means that a process that does not belong to this object listens on the port. The message names the port and, if Berth knows it,
	// the process.
	ReasonPortInUse = "PortInUse"
	// ReasonPortForbidden means that the manager is not permitted to listen on the port; the message names the permission that it needs.
	ReasonPortForbidden = "PortForbidden"
	// ReasonPortClaimed means that another DevServer holds the port, or is older and claims it.
	ReasonPortClaimed = "PortClaimed"
	// ReasonPortShared means that other processes also receive connections to a port of a running DevServer, because they listen on the same address with
	// SO_REUSEPORT, or on a more specific one.
	ReasonPortShared = "PortShared"
	// ReasonNoFreePort means that the range from which Berth chooses ports has no free port.
	ReasonNoFreePort = "NoFreePort"
	// ReasonInstanceMissing means that spec.instanceRef names an Instance that does not exist.
	ReasonInstanceMissing = "InstanceMissing"
	// ReasonSessionClaimed means that another object holds the session or container, or is older and claims it.
	ReasonSessionClaimed = "SessionClaimed"
	// ReasonSessionTaken means that a session or container of that name exists, does not belong to this object, and may not be adopted.
	ReasonSessionTaken = "SessionTaken"
	// ReasonNothingToAdopt means that spec.adoption is Required, and the session or container does not exist.
	ReasonNothingToAdopt = "NothingToAdopt"
	// ReasonInvalidSession means that tmux does not accept the name of the session or of its socket.
	ReasonInvalidSession = "InvalidSession"
	// ReasonAdopted means that Berth adopted a process that it did not start.
	ReasonAdopted = "Adopted"
	// ReasonDiscovered means that all sources were scanned.
	ReasonDiscovered = "Discovered"
	// ReasonInvalidPattern means that a pattern of a source, of an argument or of spec.terminal.awaitingInput.patterns is not a regular expression, or
	// exceeds the limits of internal/pattern. The message names the pattern.
	ReasonInvalidPattern = "InvalidPattern"
	// ReasonAlreadyClaimed means that another Instance, which the entry of status.found names, claims the session or container.
	ReasonAlreadyClaimed = "AlreadyClaimed"
	// ReasonBerthsOwn means that Berth itself started the session or container.
	ReasonBerthsOwn = "BerthsOwn"
	// ReasonForeignBerth means that the session or container belongs to another Berth, or to an object that was deleted.
	ReasonForeignBerth = "ForeignBerth"
	// ReasonEnded means that the Instance of the session or container still exists, but its process has ended or is stopped. While it exists, its name
	// prevents a new Instance.
	ReasonEnded = "Ended"
	// ReasonUnfit means that the session or container cannot be adopted; the message contains the cause.
	ReasonUnfit = "Unfit"
	// ReasonRefused means that the API server refused the Instance; the message contains the cause.
	ReasonRefused = "Refused"
	// ReasonNotAdopted means that Berth started the process, or that no process runs.
	ReasonNotAdopted = "NotAdopted"
	// ReasonNoConflict means that no other owner has something that this object needs.
	ReasonNoConflict = "NoConflict"
	// ReasonUpToDate means that the process was started from the current spec.
	ReasonUpToDate = "UpToDate"
	// ReasonDrifted means that the running process was started from an older spec; the next restart replaces it.
	ReasonDrifted = "Drifted"
	// ReasonCgroup means that the process tree is in a cgroup, through which Berth kills it.
	ReasonCgroup = "Cgroup"
	// ReasonSubreaper means that Berth finds the process tree as the descendants of its shim, which is less reliable than a cgroup.
	ReasonSubreaper = "Subreaper"
	// ReasonDetected means that the output contains the URL.
	ReasonDetected = "Detected"
	// ReasonNotDetected means that the output does not contain a URL yet.
	ReasonNotDetected = "NotDetected"
	// ReasonDetectionDisabled means that spec.url.detect is Disabled, or that the server is in a Pod.
	ReasonDetectionDisabled = "DetectionDisabled"
	// ReasonListening means that the processes of this object listen on the port.
	ReasonListening = "Listening"
	// ReasonNotListening means that no process of this object listens on the assigned port yet.
	ReasonNotListening = "NotListening"
	// ReasonOtherPort means that the processes of this object listen on another port than the assigned one.
	ReasonOtherPort = "OtherPort"
	// ReasonInitialized means that the language server has answered initialize and serves requests.
	ReasonInitialized = "Initialized"
	// ReasonInitializing means that the language server runs and has not answered initialize yet.
	ReasonInitializing = "Initializing"
	// ReasonNotRunning means that no process runs, so the condition does not apply.
	ReasonNotRunning = "NotRunning"
	// ReasonSettled means that the language server has finished the work that it began at its start.
	ReasonSettled = "Settled"
	// ReasonProgressTimeout means that the language server reported no progress, or stopped reporting progress before it finished the work that it began
	// at its start. Berth no longer waits for it.
	ReasonProgressTimeout = "ProgressTimeout"
	// ReasonIndexing means that the language server is indexing its workspace.
	ReasonIndexing = "Indexing"
	// ReasonHealthy means that no problem is known.
	ReasonHealthy = "Healthy"
	// ReasonQuarantined means that Berth does not send a document to the language server because its text makes the server crash, or does not send a request
	// because it was in flight at repeated crashes.
	ReasonQuarantined = "Quarantined"
	// ReasonCapabilityMismatch means that the restarted language server offers fewer capabilities than its clients know from the previous incarnation.
	ReasonCapabilityMismatch = "CapabilityMismatch"
	// ReasonFilesUnseen means that the language server may not learn what other programs change on disk, because a limit is reached or because the folder of
	// the workspace does not exist.
	ReasonFilesUnseen = "FilesUnseen"
	// ReasonInUse means that clients are connected.
	ReasonInUse = "InUse"
	// ReasonNoClients means that no client is connected.
	ReasonNoClients = "NoClients"
	// ReasonActive means that the terminal had activity within idleTimeoutSeconds.
	ReasonActive = "Active"
	// ReasonNoActivity means that the terminal had no activity for idleTimeoutSeconds.
	ReasonNoActivity = "NoActivity"
	// ReasonNoIdleTimeout means that spec.idleTimeoutSeconds is 0, so Berth does not watch for inactivity.
	ReasonNoIdleTimeout = "NoIdleTimeout"
	// ReasonAwaitingInput means that the terminal shows a question.
	ReasonAwaitingInput = "AwaitingInput"
	// ReasonNotAwaitingInput means that the terminal shows no question.
	ReasonNotAwaitingInput = "NotAwaitingInput"
	// ReasonEndingProcesses means that Berth stops the program together with its child processes, which the message names.
	ReasonEndingProcesses = "EndingProcesses"
)
