// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// FinalizerProcess keeps an object until Berth has observed that its process has ended.
	FinalizerProcess = "berth.dev/process"
	// LabelSession is the label that mirrors spec.session.
	LabelSession = "berth.dev/session"
	// LabelHost names the host that an object belongs to. The manager of a host sets it on objects that do not have it. Set it at creation to choose a
	// host; change it to move the object: the old host stops the process, then the new host starts it. Objects of the runtime Pod ignore it.
	LabelHost = "berth.dev/host"
	// LabelAllowRuntime is the label of a namespace that permits one more runtime there, such as Host.
	LabelAllowRuntime = "berth.dev/allow-runtime"
	// AnnotationLostHost declares that the host that it names is lost and will not come back. The host of LabelHost then takes the object over without
	// waiting for the lost host to stop the process. If the lost host nevertheless takes the object back, it removes the annotation first.
	AnnotationLostHost = "berth.dev/lost-host"
)

// ProcessState is the desired state of a process.
// +kubebuilder:validation:Enum=Running;Stopped;OnDemand
type ProcessState string

const (
	// StateRunning requests that the process runs.
	StateRunning ProcessState = "Running"
	// StateStopped requests that no process runs. The object stays.
	StateStopped ProcessState = "Stopped"
	// StateOnDemand requests that the process runs while clients use it. Only LanguageServers support it.
	StateOnDemand ProcessState = "OnDemand"
)

// RuntimeType is where a process runs.
// +kubebuilder:validation:Enum=Host;Tmux;Docker;Pod
type RuntimeType string

const (
	// RuntimeHost runs the process on the machine of the manager, under a berth-shim.
	RuntimeHost RuntimeType = "Host"
	// RuntimeTmux runs the process as RuntimeHost does and shows it in a tmux session. Only Instances support it.
	RuntimeTmux RuntimeType = "Tmux"
	// RuntimeDocker runs the process in a container of a Docker Engine. Only Instances support it.
	RuntimeDocker RuntimeType = "Docker"
	// RuntimePod runs the process in a Pod of the cluster.
	RuntimePod RuntimeType = "Pod"
)

// ProcessSpec contains the fields that all process kinds share.
type ProcessSpec struct {
	// state is the desired state: Running, Stopped (no process runs, and the object stays) or, for a LanguageServer only, OnDemand (the server sleeps
	// while no client is connected). Defaults to Running.
	// +optional
	// +kubebuilder:default=Running
	State ProcessState `json:"state,omitempty"`

	// restartToken requests a restart. Any change of its value is one request; several changes before the new incarnation starts cause one restart. At
	// most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RestartToken string `json:"restartToken,omitempty"`

	// session groups objects, for example to delete them together. Berth copies it to the label berth.dev/session. It must be a valid label value of at
	// most 63 characters. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Session string `json:"session,omitempty"`

	// process is the program to run.
	// +required
	Process ProcessTemplate `json:"process"`

	// restartPolicy states after which exits Berth restarts the process: Always, OnFailure or Never. Defaults to Always.
	// +optional
	// +kubebuilder:default=Always
	RestartPolicy RestartPolicy `json:"restartPolicy,omitempty"`

	// backoff is how long Berth waits before it restarts a process that failed.
	// +optional
	// +kubebuilder:default={}
	Backoff BackoffPolicy `json:"backoff,omitzero"`

	// breaker states when Berth stops restarting a process that keeps failing.
	// +optional
	// +kubebuilder:default={}
	Breaker BreakerPolicy `json:"breaker,omitzero"`

	// resetToken requests a reset: any change of its value closes the breaker and resets the back-off. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ResetToken string `json:"resetToken,omitempty"`

	// updatePolicy is what happens to a running process when its spec changes: Recreate restarts it, OnRestart leaves it running until its next restart.
	// Defaults to Recreate.
	// +optional
	// +kubebuilder:default=Recreate
	UpdatePolicy UpdatePolicy `json:"updatePolicy,omitempty"`

	// ttlSecondsAfterStopped deletes the object this many seconds after its process was stopped or exited for good, or after Berth found nothing to
	// adopt. 0 to 31536000 (one year). Unset: the object is never deleted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterStopped *int32 `json:"ttlSecondsAfterStopped,omitempty"`
}

// LocalReference names an object in the same namespace.
type LocalReference struct {
	// name is the name of the object, at most 253 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}
