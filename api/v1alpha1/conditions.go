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
	// ConditionContained says by which means the whole process tree can be ended: the reason is Cgroup, Subreaper or Container.
	ConditionContained = "Contained"
	// ConditionSucceeded says how a run ended: True, False, or Unknown while it has not.
	ConditionSucceeded = "Succeeded"
	// ConditionAdopted is True while the process of an Instance was there before Berth, and was taken over.
	ConditionAdopted = "Adopted"
	// ConditionURLDetected is True when the URL of a DevServer was found in its output and confirmed by its sockets.
	ConditionURLDetected = "URLDetected"
	// ConditionPortVerified is True when the processes of a DevServer listen on the port that it was given.
	ConditionPortVerified = "PortVerified"
	// ConditionInitialized is True while a LanguageServer serves: it has answered initialize and was given all that it has to know.
	ConditionInitialized = "Initialized"
	// ConditionIndexed is True when a LanguageServer has no work left that it began at its start: its answers are complete.
	ConditionIndexed = "Indexed"
	// ConditionHealthy is False while something is wrong with a LanguageServer that runs; the message says what becomes of it.
	ConditionHealthy = "Healthy"
	// ConditionStrategized, ConditionExecuted and ConditionApplied are True once that phase of a plan has succeeded, until it is reverted.
	ConditionStrategized = "Strategized"
	// ConditionExecuted: see ConditionStrategized.
	ConditionExecuted = "Executed"
	// ConditionApplied: see ConditionStrategized.
	ConditionApplied = "Applied"
	// ConditionAwaitingApproval is True while a plan waits for spec.targetPhase to be raised.
	ConditionAwaitingApproval = "AwaitingApproval"
	// ConditionIdle is True while a LanguageServer has no client, and while nothing has happened in an Instance for its idleTimeoutSeconds.
	ConditionIdle = "Idle"
	// ConditionAwaitingInput is True while the terminal of an Instance shows that its program waits for an answer.
	ConditionAwaitingInput = "AwaitingInput"
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
	// ReasonMoving: the label berth.dev/host names another host; the process stops here before it starts there.
	ReasonMoving = "Moving"
	// ReasonHostUnavailable: the object belongs to a host whose manager does not report; its process may still run there.
	ReasonHostUnavailable = "HostUnavailable"
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
	// ReasonLost: the cluster, or somebody, took the Pod away. It is started again however it ended, unless restartPolicy is Never; no breaker counts it.
	ReasonLost = "Lost"
	// ReasonCrashed: the process ended although nobody asked it to.
	ReasonCrashed = "Crashed"
	// ReasonUnhealthy: the liveness probe failed too often.
	ReasonUnhealthy = "Unhealthy"
	// ReasonHung: the process lives and answers nothing.
	ReasonHung = "Hung"
	// ReasonProtocolError: the process sent what is no message of its protocol.
	ReasonProtocolError = "ProtocolError"
	// ReasonMemoryLimit: the process held more memory than its spec allows.
	ReasonMemoryLimit = "MemoryLimit"
	// ReasonCanaryFailed: the process answers, and what it answers is of no use.
	ReasonCanaryFailed = "CanaryFailed"
	// ReasonTimedOut: the process took longer than it may.
	ReasonTimedOut = "TimedOut"
	// ReasonSucceeded: the run ended with exit code 0.
	ReasonSucceeded = "Succeeded"
	// ReasonCancelled: the run was ended, or not begun, because somebody asked for it.
	ReasonCancelled = "Cancelled"
	// ReasonSkippedCircuitOpen: the breaker of the strategy is open, so nothing was started.
	ReasonSkippedCircuitOpen = "SkippedCircuitOpen"
	// ReasonStrategyMissing: spec.strategyRef names a Strategy that does not exist.
	ReasonStrategyMissing = "StrategyMissing"
	// ReasonStrategyChanged: the strategy has another program than the plan of the run was pinned to.
	ReasonStrategyChanged = "StrategyChanged"
	// ReasonDisabled: the strategy is disabled.
	ReasonDisabled = "Disabled"
	// ReasonEnabled: runs of the strategy are started.
	ReasonEnabled = "Enabled"
	// ReasonInvalidArgument: an argument cannot be passed on; the message names it.
	ReasonInvalidArgument = "InvalidArgument"
	// ReasonActionMissing: spec.actionRef names an Action that does not exist.
	ReasonActionMissing = "ActionMissing"
	// ReasonActionArchived: the action lets no more plans begin.
	ReasonActionArchived = "ActionArchived"
	// ReasonDuplicate: an older plan has the same idempotencyKey.
	ReasonDuplicate = "Duplicate"
	// ReasonNameTaken: an object that is not of this plan has the name of one of its runs, or a Service that is not of this DevServer has its name.
	ReasonNameTaken = "NameTaken"
	// ReasonBegun: the plan, or a phase of it, has begun.
	ReasonBegun = "Begun"
	// ReasonProcessing: runs of the current phase take place.
	ReasonProcessing = "Processing"
	// ReasonEnding: what still runs is being ended.
	ReasonEnding = "Ending"
	// ReasonPhaseComplete: the phase has succeeded.
	ReasonPhaseComplete = "PhaseComplete"
	// ReasonPhaseFailed: too many runs of the phase did not succeed.
	ReasonPhaseFailed = "PhaseFailed"
	// ReasonAwaitingApproval: the next phase begins when spec.targetPhase is raised.
	ReasonAwaitingApproval = "AwaitingApproval"
	// ReasonApproved: spec.targetPhase lets the next phase begin.
	ReasonApproved = "Approved"
	// ReasonApplied: the last phase of the plan has succeeded.
	ReasonApplied = "Applied"
	// ReasonRetried: the phase was begun once more, as asked.
	ReasonRetried = "Retried"
	// ReasonReverted: the plan was begun once more at an earlier phase, as asked.
	ReasonReverted = "Reverted"
	// ReasonReversionLimit: the plan may not be reverted more often.
	ReasonReversionLimit = "ReversionLimit"
	// ReasonRequestIgnored: a retry or a revert was asked for where there is none.
	ReasonRequestIgnored = "RequestIgnored"
	// ReasonResultIgnored: a run ended that nobody waits for any more; what it came to changes nothing.
	ReasonResultIgnored = "ResultIgnored"
	// ReasonResumed: the plan is again where it was before a request that could not be carried out.
	ReasonResumed = "Resumed"
	// ReasonIdle: nobody uses the process, so it sleeps until somebody comes.
	ReasonIdle = "Idle"
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
	// ReasonImageMissing: the engine does not have the image, and the spec does not let it be pulled, or it could not be.
	ReasonImageMissing = "ImageMissing"
	// ReasonContainerMissing: the container that is to be adopted does not exist.
	ReasonContainerMissing = "ContainerMissing"
	// ReasonContainerTaken: the container belongs to somebody else; the message says to whom.
	ReasonContainerTaken = "ContainerTaken"
	// ReasonStartFailed: the process could not be started for another cause, which the message holds.
	ReasonStartFailed = "StartFailed"
	// ReasonStopFailed: the stop could not be carried out; Berth retries, and the message holds the cause.
	ReasonStopFailed = "StopFailed"
	// ReasonRuntimeUnavailable: the runtime cannot be asked at the moment, or the manager was started without it.
	ReasonRuntimeUnavailable = "RuntimeUnavailable"
	// ReasonRuntimeForbidden: the namespace does not permit programs on the machine of the manager; the message names the label that does.
	ReasonRuntimeForbidden = "RuntimeForbidden"
	// ReasonUnknown: what became of the process cannot be told; nothing is invented and nothing started beside it.
	ReasonUnknown = "Unknown"
	// ReasonPortInUse: a process that is not of this object listens on the port; the message names it.
	ReasonPortInUse = "PortInUse"
	// ReasonPortForbidden: the manager is not permitted to listen on the port; the message says which permission it needs.
	ReasonPortForbidden = "PortForbidden"
	// ReasonPortClaimed: an older object claims the same port.
	ReasonPortClaimed = "PortClaimed"
	// ReasonNoFreePort: the range that ports are allocated from is exhausted.
	ReasonNoFreePort = "NoFreePort"
	// ReasonInstanceMissing: spec.instanceRef names an Instance that does not exist.
	ReasonInstanceMissing = "InstanceMissing"
	// ReasonSessionClaimed: another object has the session or container, or an older one claims it.
	ReasonSessionClaimed = "SessionClaimed"
	// ReasonSessionTaken: a session or container of that name is there, is not Berth's, and may not be adopted.
	ReasonSessionTaken = "SessionTaken"
	// ReasonNothingToAdopt: spec.adoption is Required, and what is to be adopted is not there.
	ReasonNothingToAdopt = "NothingToAdopt"
	// ReasonInvalidSession: tmux takes no session of that name, or on that socket.
	ReasonInvalidSession = "InvalidSession"
	// ReasonAdopted: what runs was there before and was taken over.
	ReasonAdopted = "Adopted"
	// ReasonDiscovered: all sources were looked through.
	ReasonDiscovered = "Discovered"
	// ReasonInvalidPattern: a pattern of a source, of an argument or of spec.terminal.awaitingInput.patterns is not a regular expression, or exceeds the
	// limits of internal/pattern; the message names it.
	ReasonInvalidPattern = "InvalidPattern"
	// ReasonAlreadyClaimed: what was found is another Instance's; the message names it.
	ReasonAlreadyClaimed = "AlreadyClaimed"
	// ReasonBerthsOwn: what was found was started by Berth itself.
	ReasonBerthsOwn = "BerthsOwn"
	// ReasonForeignBerth: what was found belongs to another Berth, or to an object that is gone.
	ReasonForeignBerth = "ForeignBerth"
	// ReasonEnded: the Instance of what was found has ended, and is in the way of a new one.
	ReasonEnded = "Ended"
	// ReasonUnfit: what was found cannot be adopted; the message says why.
	ReasonUnfit = "Unfit"
	// ReasonRefused: the API server does not let an Instance be made of it; the message says why.
	ReasonRefused = "Refused"
	// ReasonNotAdopted: what runs was started by Berth, or nothing runs.
	ReasonNotAdopted = "NotAdopted"
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
	// ReasonInitialized: the language server has answered initialize and serves.
	ReasonInitialized = "Initialized"
	// ReasonInitializing: the language server runs and has not answered initialize yet.
	ReasonInitializing = "Initializing"
	// ReasonNotRunning: no process is there to say it of.
	ReasonNotRunning = "NotRunning"
	// ReasonSettled: the language server has ended all work that it began at its start.
	ReasonSettled = "Settled"
	// ReasonProgressTimeout: the language server still says that it works; that is waited for no longer.
	ReasonProgressTimeout = "ProgressTimeout"
	// ReasonIndexing: the language server reads its workspace.
	ReasonIndexing = "Indexing"
	// ReasonHealthy: nothing is wrong.
	ReasonHealthy = "Healthy"
	// ReasonQuarantined: a document or request is kept from the language server, as it was there at repeated crashes.
	ReasonQuarantined = "Quarantined"
	// ReasonCapabilityMismatch: the restarted language server offers less than the one that its clients know.
	ReasonCapabilityMismatch = "CapabilityMismatch"
	// ReasonInUse: clients are connected.
	ReasonInUse = "InUse"
	// ReasonNoClients: no client is connected.
	ReasonNoClients = "NoClients"
	// ReasonActive: something has happened in the terminal within the time.
	ReasonActive = "Active"
	// ReasonNoActivity: nothing has happened in the terminal for the time.
	ReasonNoActivity = "NoActivity"
	// ReasonNoIdleTimeout: spec.idleTimeoutSeconds is 0, so it is not watched how long nothing happens.
	ReasonNoIdleTimeout = "NoIdleTimeout"
	// ReasonAwaitingInput: the terminal shows a question.
	ReasonAwaitingInput = "AwaitingInput"
	// ReasonNotAwaitingInput: the terminal shows no question.
	ReasonNotAwaitingInput = "NotAwaitingInput"
	// ReasonEndingProcesses: what the program has started itself ends with it; the message names it.
	ReasonEndingProcesses = "EndingProcesses"
)
