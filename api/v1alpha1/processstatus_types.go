// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BreakerState is the state of a circuit breaker.
// +kubebuilder:validation:Enum=Closed;Open;HalfOpen
type BreakerState string

const (
	// BreakerClosed allows starts.
	BreakerClosed BreakerState = "Closed"
	// BreakerOpen prevents starts.
	BreakerOpen BreakerState = "Open"
	// BreakerHalfOpen allows one trial start, whose outcome decides whether the breaker closes or opens.
	BreakerHalfOpen BreakerState = "HalfOpen"
)

// ProcessStatus contains the status fields that all process kinds share.
type ProcessStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// incarnation is the number of times that Berth has started a process for this object. It is also the number of the current incarnation. Berth
	// records each number before the start, here or in reservedIncarnation.
	// +optional
	Incarnation int64 `json:"incarnation,omitempty"`

	// reservedIncarnation is the number of the next incarnation, which Berth may start before it records the start. A single write can then record both
	// the exit of the current incarnation and the start of the next. An unused reservation stays and has no effect. Unset if Berth records each start in
	// advance.
	// +optional
	ReservedIncarnation int64 `json:"reservedIncarnation,omitempty"`

	// hostName is the name of the host that manages the process. While it is set, no other host starts a process for this object. Empty until a
	// host has written the first status, after the object was moved, and with the runtime Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	HostName string `json:"hostName,omitempty"`

	// specHash is a hash of the part of the spec from which the current incarnation was started.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SpecHash string `json:"specHash,omitempty"`

	// observedRestartToken is the last restartToken that Berth acted on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRestartToken string `json:"observedRestartToken,omitempty"`

	// observedResetToken is the last resetToken that Berth acted on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedResetToken string `json:"observedResetToken,omitempty"`

	// restartCount is the number of incarnations after the first one, for any reason. It includes starts after a stop, and starts that failed.
	// +optional
	// +kubebuilder:default=0
	RestartCount int64 `json:"restartCount,omitempty"`

	// process identifies the process of the current incarnation. Unset while none runs.
	// +optional
	// +structType=atomic
	Process *ProcessReference `json:"process,omitempty"`

	// stopping is a requested stop whose completion Berth has not observed yet.
	// +optional
	// +structType=atomic
	Stopping *StopRequest `json:"stopping,omitempty"`

	// lastExit describes the exit of the last incarnation that ended.
	// +optional
	// +structType=atomic
	LastExit *ProcessExit `json:"lastExit,omitempty"`

	// resume describes how Berth starts the program of an Instance again: with process.command or with process.resumeCommand. Unset for other kinds, and
	// before the first start.
	// +optional
	// +structType=atomic
	Resume *ResumeStatus `json:"resume,omitempty"`

	// failures is the number of consecutive failures, from which Berth computes the back-off.
	// +optional
	Failures int32 `json:"failures,omitempty"`

	// nextRestartTime is when Berth restarts the process: the end of the back-off or, while the breaker is open, of its cool-down. Unset while no
	// restart is planned.
	// +optional
	NextRestartTime *metav1.MicroTime `json:"nextRestartTime,omitempty"`

	// breaker is the state of the circuit breaker.
	// +optional
	Breaker *BreakerStatus `json:"breaker,omitempty"`

	// conditions describe the current state of the object. Ready, Reconciling, Stalled and, except for a StrategyRun, Restarting are always set. Any
	// other condition is set only while it has a message or an unusual status; if it is absent, it has its usual status. The documentation of each kind
	// lists the conditions and their usual status.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ProcessReference identifies a process. On a host, the boot, the PID and the start time together identify it, even if the PID is used again.
type ProcessReference struct {
	// incarnation is the number of the incarnation that the process belongs to.
	// +required
	Incarnation int64 `json:"incarnation"`

	// node is the name of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// pid is the process ID of the program.
	// +optional
	PID int64 `json:"pid,omitempty"`

	// startTicks is the start time of the process in clock ticks since boot (/proc/PID/stat, field 22). 0 if the system does not report it.
	// +optional
	StartTicks int64 `json:"startTicks,omitempty"`

	// bootID is the ID of the boot of the machine during which the process was started.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID,omitempty"`

	// podName is the name of the Pod. Set only with the runtime Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`

	// containerID is the ID of the container. Set only with the runtimes Docker and Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ContainerID string `json:"containerID,omitempty"`

	// startTime is when the process was started.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
}

// StopRequest is a requested stop. Berth records it before it sends the first signal.
type StopRequest struct {
	// incarnation is the number of the incarnation to stop. The request does not affect any other incarnation.
	// +required
	Incarnation int64 `json:"incarnation"`

	// reason is why the incarnation is stopped: Requested, SpecChanged, Unhealthy (or Hung, ProtocolError, MemoryLimit, CanaryFailed, TimedOut), Idle,
	// Stopped, Deleting or Superseded.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// message describes the problem of an unhealthy incarnation, such as the result of its liveness probe. Otherwise unset.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// killTime is when Berth kills the whole process tree. Berth can move it to an earlier time, but never to a later one.
	// +required
	KillTime metav1.MicroTime `json:"killTime"`
}

// ProcessExit describes how a process ended.
type ProcessExit struct {
	// incarnation is the number of the incarnation that ended.
	// +required
	Incarnation int64 `json:"incarnation"`

	// exitCode is the exit code. Unset if a signal terminated the process or the exit status is unknown.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// signal is the signal that terminated the process, such as SIGKILL. Unset if the process exited with an exit code, or if the exit status is
	// unknown.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Signal string `json:"signal,omitempty"`

	// reason is one of Completed, Failed, Stopped (a stop was requested), Lost (the Pod was removed, or the host was declared lost), Unknown (the exit
	// status is unknown), Unhealthy (or Hung, ProtocolError, MemoryLimit, CanaryFailed, TimedOut), or the reason for which the process could not be
	// started.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// message contains details, for example that a container exceeded its memory limit.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// finishTime is when the process ended, as far as that is known.
	// +optional
	FinishTime *metav1.MicroTime `json:"finishTime,omitempty"`

	// logTail is the end of the output of a process that failed, if spec.process.logTail permits it: at most 1024 bytes and 16 lines, without escape sequences,
	// stack frames and lines without a letter or a digit. It can contain output of earlier incarnations. The runtime Pod does not set it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LogTail string `json:"logTail,omitempty"`
}

// SessionStart is how an incarnation of an Instance is started.
// +kubebuilder:validation:Enum=New;Resumed;Fallback;Adopted
type SessionStart string

const (
	// SessionNew starts the session with command, because no earlier incarnation of this session has run.
	SessionNew SessionStart = "New"
	// SessionResumed resumes the session with resumeCommand, or with command if resumeCommand is unset.
	SessionResumed SessionStart = "Resumed"
	// SessionFallback starts the program with command, because resumeCommand failed at once.
	SessionFallback SessionStart = "Fallback"
	// SessionAdopted means that Berth did not start the program: it adopted an existing session or container.
	SessionAdopted SessionStart = "Adopted"
)

// ResumeStatus describes how the current incarnation of an Instance was started, and how the next one will be.
type ResumeStatus struct {
	// sessionID is the ID of the session of the current incarnation. The first start with another ID is New.
	// +required
	// +kubebuilder:validation:MaxLength=64
	SessionID string `json:"sessionID"`

	// start is how the current incarnation was started: New, Resumed, Fallback, or Adopted if Berth did not start it.
	// +required
	Start SessionStart `json:"start"`

	// next is how the next incarnation is started. If the current incarnation runs, Berth determines the value again when it exits.
	// +required
	Next SessionStart `json:"next"`

	// commandHash is a hash of the resumeCommand with which the current incarnation was started. Unset if it was started with command.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	CommandHash string `json:"commandHash,omitempty"`

	// fallbackIncarnation is the number of the incarnation that was the last fallback. While it is set, Berth does not fall back again. Berth clears it
	// after an incarnation that has run, and when it forgets failures, for example for a restart request.
	// +optional
	FallbackIncarnation int64 `json:"fallbackIncarnation,omitempty"`
}

// BreakerStatus is the state of the circuit breaker of a process.
type BreakerStatus struct {
	// state is Closed, Open or HalfOpen.
	// +required
	State BreakerState `json:"state"`

	// failureTimes lists the times of the failures that count toward failureThreshold, oldest first. At most 64.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	FailureTimes []metav1.MicroTime `json:"failureTimes,omitempty"`

	// openTime is when the breaker last opened.
	// +optional
	OpenTime *metav1.MicroTime `json:"openTime,omitempty"`
}
