// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// FinalizerProcess keeps an object until its process is seen to be gone.
	FinalizerProcess = "berth.dev/process"
	// LabelSession is the label that mirrors spec.session.
	LabelSession = "berth.dev/session"
)

// ProcessState is what is wanted of a process.
// +kubebuilder:validation:Enum=Running;Stopped;OnDemand
type ProcessState string

const (
	// StateRunning wants the process to run.
	StateRunning ProcessState = "Running"
	// StateStopped wants no process; the object stays.
	StateStopped ProcessState = "Stopped"
	// StateOnDemand wants a process while somebody uses it. Only a LanguageServer may be so.
	StateOnDemand ProcessState = "OnDemand"
)

// RestartPolicy says after which exits a process is started again.
// +kubebuilder:validation:Enum=Always;OnFailure;Never
type RestartPolicy string

const (
	// RestartAlways starts again after every exit that nobody asked for.
	RestartAlways RestartPolicy = "Always"
	// RestartOnFailure starts again after an exit code other than 0, a signal, or an exit that nobody could observe.
	RestartOnFailure RestartPolicy = "OnFailure"
	// RestartNever never starts again by itself.
	RestartNever RestartPolicy = "Never"
)

// UpdatePolicy says what a changed spec does to the process that runs.
// +kubebuilder:validation:Enum=Recreate;OnRestart
type UpdatePolicy string

const (
	// UpdateRecreate restarts the process when its spec changes.
	UpdateRecreate UpdatePolicy = "Recreate"
	// UpdateOnRestart leaves the process as it is until its next restart, and shows the difference as DriftDetected.
	UpdateOnRestart UpdatePolicy = "OnRestart"
)

// RuntimeType is where a process runs.
// +kubebuilder:validation:Enum=Host;Tmux;Docker;Pod
type RuntimeType string

const (
	// RuntimeHost runs the process on the machine of the manager, held by a berth-shim.
	RuntimeHost RuntimeType = "Host"
	// RuntimeTmux runs the process in a tmux session. Not available yet.
	RuntimeTmux RuntimeType = "Tmux"
	// RuntimeDocker runs the process in a container. Not available yet.
	RuntimeDocker RuntimeType = "Docker"
	// RuntimePod runs the process in a Pod. Not available yet.
	RuntimePod RuntimeType = "Pod"
)

// ProcessSpec is what all kinds that are a process share.
type ProcessSpec struct {
	// What is wanted: Running, Stopped (the object stays) or, of a LanguageServer only, OnDemand (it sleeps while no client is connected).
	// Defaults to Running.
	// +optional
	// +kubebuilder:default=Running
	State ProcessState `json:"state,omitempty"`

	// Any change of this text is one request to restart. Changes made before the new incarnation starts are one restart.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RestartToken string `json:"restartToken,omitempty"`

	// Groups objects for clean-up; also set as the label berth.dev/session. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Session string `json:"session,omitempty"`

	// The program to run.
	// +required
	Process ProcessTemplate `json:"process"`

	// After which exits the process is started again. Defaults to Always.
	// +optional
	// +kubebuilder:default=Always
	RestartPolicy RestartPolicy `json:"restartPolicy,omitempty"`

	// How long to wait before a process that failed is started again.
	// +optional
	// +kubebuilder:default={}
	Backoff BackoffPolicy `json:"backoff,omitzero"`

	// When to stop trying.
	// +optional
	// +kubebuilder:default={}
	Breaker BreakerPolicy `json:"breaker,omitzero"`

	// Any change of this text closes the breaker and forgets the back-off.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ResetToken string `json:"resetToken,omitempty"`

	// What a changed spec does to the process that runs. Defaults to Recreate.
	// +optional
	// +kubebuilder:default=Recreate
	UpdatePolicy UpdatePolicy `json:"updatePolicy,omitempty"`

	// Delete the object this many seconds after its process was stopped or has ended for good. Unset: never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterStopped *int32 `json:"ttlSecondsAfterStopped,omitempty"`

	// Where the process runs. Immutable. Defaults to the runtime that the manager was started with.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`
}

// ProcessTemplate says what to execute. It is argv: no shell takes part.
type ProcessTemplate struct {
	// The program and its arguments. $(NAME) is replaced by the variable NAME as Kubernetes does; $$(NAME) is left as $(NAME).
	// A program without a slash is looked for in PATH.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self[0].size() > 0",message="the program, command[0], must not be empty"
	// +listType=atomic
	Command []string `json:"command"`

	// The directory to start in, absolute. Defaults to the home directory of the manager's user.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self == '' || self.startsWith('/')",message="workingDir must be an absolute path"
	WorkingDir string `json:"workingDir,omitempty"`

	// Environment variables, added to those of the manager.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	Env []EnvVar `json:"env,omitempty"`

	// How the process is asked to end.
	// +optional
	// +kubebuilder:default={}
	Stop StopPolicy `json:"stop,omitzero"`
}

// EnvVar is one environment variable.
// +kubebuilder:validation:XValidation:rule="!(has(self.value) && has(self.valueFrom))",message="set value or valueFrom, not both"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['LD_PRELOAD','LD_AUDIT','LD_LIBRARY_PATH','DYLD_INSERT_LIBRARIES','DYLD_LIBRARY_PATH','DYLD_FRAMEWORK_PATH'])",message="this variable changes how every program is loaded and is refused"
type EnvVar struct {
	// Name of the variable.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z][-._a-zA-Z0-9]*$`
	Name string `json:"name"`

	// The value; $(NAME) refers to a variable that stands earlier in the list.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Value string `json:"value,omitempty"`

	// Where the value comes from instead.
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty"`
}

// EnvVarSource names a key of a Secret or a ConfigMap of the same namespace.
// +kubebuilder:validation:XValidation:rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",message="set exactly one of secretKeyRef and configMapKeyRef"
type EnvVarSource struct {
	// A key of a Secret.
	// +optional
	SecretKeyRef *KeyRef `json:"secretKeyRef,omitempty"`

	// A key of a ConfigMap.
	// +optional
	ConfigMapKeyRef *KeyRef `json:"configMapKeyRef,omitempty"`
}

// KeyRef names a key of an object in the same namespace.
type KeyRef struct {
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Key in its data.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// StopPolicy says how a process is asked to end. SIGKILL to the whole tree always follows.
type StopPolicy struct {
	// The signal that every process of the tree gets first. Defaults to SIGTERM.
	// +optional
	// +kubebuilder:default=SIGTERM
	// +kubebuilder:validation:Enum=SIGTERM;SIGINT;SIGHUP;SIGQUIT;SIGUSR1;SIGUSR2;SIGKILL
	Signal string `json:"signal,omitempty"`

	// Seconds between that signal and SIGKILL. Defaults to 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	GracePeriodSeconds *int32 `json:"gracePeriodSeconds,omitempty"`
}

// BackoffPolicy is the wait before a failed process is started again: initialSeconds, doubled with every further failure up to maxSeconds, ± 25 %.
// +kubebuilder:validation:XValidation:rule="!has(self.initialSeconds) || !has(self.maxSeconds) || self.initialSeconds <= self.maxSeconds",message="initialSeconds must not be greater than maxSeconds"
type BackoffPolicy struct {
	// Seconds before the first try again. 0 tries at once. Defaults to 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	InitialSeconds *int32 `json:"initialSeconds,omitempty"`

	// The longest wait, in seconds. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	MaxSeconds *int32 `json:"maxSeconds,omitempty"`

	// A process that was ready and ran for this many seconds has earned a fresh start of the back-off. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	ResetAfterSeconds *int32 `json:"resetAfterSeconds,omitempty"`
}

// BreakerPolicy says when failures are too many: after failureThreshold failures within windowSeconds no start is tried for coolDownSeconds.
type BreakerPolicy struct {
	// Failures that open the breaker. Defaults to 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`

	// Only failures of the last so many seconds count. Defaults to 180.
	// +optional
	// +kubebuilder:default=180
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	WindowSeconds *int32 `json:"windowSeconds,omitempty"`

	// Seconds until one start is tried again. 0: open until spec.resetToken, spec.restartToken or the spec changes. Defaults to 600.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	CoolDownSeconds *int32 `json:"coolDownSeconds,omitempty"`
}

// RuntimeSpec chooses where a process runs.
// +kubebuilder:validation:XValidation:rule="self.type == 'Host'",message="this version of Berth has the runtime Host only; Tmux, Docker and Pod are not available yet"
type RuntimeSpec struct {
	// Host: on the machine of the manager, held by a berth-shim.
	// +required
	// +unionDiscriminator
	Type RuntimeType `json:"type"`
}

// BreakerState is the state of a circuit breaker.
// +kubebuilder:validation:Enum=Closed;Open;HalfOpen
type BreakerState string

const (
	// BreakerClosed lets starts through.
	BreakerClosed BreakerState = "Closed"
	// BreakerOpen keeps the process from being started.
	BreakerOpen BreakerState = "Open"
	// BreakerHalfOpen lets one start through, whose outcome decides.
	BreakerHalfOpen BreakerState = "HalfOpen"
)

// ProcessStatus is what all kinds that are a process report.
type ProcessStatus struct {
	// The generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Counts the starts of a process for this object. Recorded before the process is started.
	// +optional
	Incarnation int64 `json:"incarnation,omitempty"`

	// Fingerprint of the part of the spec that the current incarnation was started from.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SpecHash string `json:"specHash,omitempty"`

	// The restartToken that the current incarnation has answered.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRestartToken string `json:"observedRestartToken,omitempty"`

	// The resetToken that was carried out last.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedResetToken string `json:"observedResetToken,omitempty"`

	// How often a process was started again, for whatever reason.
	// +optional
	// +kubebuilder:default=0
	RestartCount int64 `json:"restartCount,omitempty"`

	// The process of the current incarnation; unset while there is none.
	// +optional
	Process *ProcessReference `json:"process,omitempty"`

	// The end that was asked for and is not seen yet.
	// +optional
	Stopping *StopRequest `json:"stopping,omitempty"`

	// How the last incarnation that ended did so.
	// +optional
	LastExit *ProcessExit `json:"lastExit,omitempty"`

	// Failures in a row that the back-off has counted.
	// +optional
	Failures int32 `json:"failures,omitempty"`

	// When the process is started again, while it waits for that.
	// +optional
	NextRestartTime *metav1.MicroTime `json:"nextRestartTime,omitempty"`

	// The circuit breaker.
	// +optional
	Breaker *BreakerStatus `json:"breaker,omitempty"`

	// What is true of the object; see the manual of its kind.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ProcessReference identifies a process of a host beyond the reuse of its PID: boot, PID and start time together.
type ProcessReference struct {
	// The incarnation that this process is.
	// +required
	Incarnation int64 `json:"incarnation"`

	// Name of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// Process id of the program.
	// +optional
	PID int64 `json:"pid,omitempty"`

	// Start of the process in clock ticks since boot (/proc/PID/stat, field 22). 0 where the system does not tell.
	// +optional
	StartTicks int64 `json:"startTicks,omitempty"`

	// Id of the boot that the PID belongs to.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID,omitempty"`

	// When it was started.
	// +optional
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`
}

// StopRequest is an end that was asked for: recorded before the first signal.
type StopRequest struct {
	// The incarnation that is to end; no other is touched.
	// +required
	Incarnation int64 `json:"incarnation"`

	// Why: Requested, SpecChanged, Unhealthy (or Hung, ProtocolError, MemoryLimit, CanaryFailed), Idle, Stopped, Deleting or Superseded.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// When the whole tree is killed. It may come closer, never move away.
	// +required
	Deadline metav1.MicroTime `json:"deadline"`
}

// ProcessExit is how a process ended.
type ProcessExit struct {
	// The incarnation that ended.
	// +required
	Incarnation int64 `json:"incarnation"`

	// The exit code; unset when a signal ended the process or nobody could observe the end.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// The signal that ended it, such as SIGKILL.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Signal string `json:"signal,omitempty"`

	// Completed, Failed, Stopped (it was asked to end), Unknown (nobody could observe the end), Unhealthy and its kin, or why it could not be started.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// What there is to say about it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// When it ended, as far as that is known.
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`
}

// BreakerStatus is the state of the circuit breaker.
type BreakerStatus struct {
	// Closed, Open or HalfOpen.
	// +required
	State BreakerState `json:"state"`

	// When the failures that count happened, oldest first.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Failures []metav1.MicroTime `json:"failures,omitempty"`

	// When it opened.
	// +optional
	OpenedAt *metav1.MicroTime `json:"openedAt,omitempty"`
}

// LocalReference names an object of the same namespace.
type LocalReference struct {
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}
