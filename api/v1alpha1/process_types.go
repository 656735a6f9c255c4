// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// FinalizerProcess keeps an object until its process is seen to be gone.
	FinalizerProcess = "berth.dev/process"
	// LabelSession is the label that mirrors spec.session.
	LabelSession = "berth.dev/session"
	// LabelHost names the host that an object belongs to. The manager of a host sets it on objects that have none. Set it at creation to choose a host;
	// change it to move the object: the old host stops the process, then the new host starts it. Objects of the runtime Pod ignore it.
	LabelHost = "berth.dev/host"
	// LabelAllowRuntime is the label of a namespace that permits one more runtime there, such as Host.
	LabelAllowRuntime = "berth.dev/allow-runtime"
	// AnnotationLostHost declares that the host it names is gone and does not come back. The host of LabelHost then takes the object over without
	// waiting for that host to stop the process. A lost host that takes the object back removes the annotation first.
	AnnotationLostHost = "berth.dev/lost-host"
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

// RuntimeType is where a process runs.
// +kubebuilder:validation:Enum=Host;Tmux;Docker;Pod
type RuntimeType string

const (
	// RuntimeHost runs the process on the machine of the manager, held by a berth-shim.
	RuntimeHost RuntimeType = "Host"
	// RuntimeTmux shows the process in a tmux session. Of an Instance only.
	RuntimeTmux RuntimeType = "Tmux"
	// RuntimeDocker runs the process in a container of a Docker Engine. Of an Instance only.
	RuntimeDocker RuntimeType = "Docker"
	// RuntimePod runs the process in a Pod of the cluster. Not of a LanguageServer yet.
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

	// Delete the object this many seconds after its process was stopped or has ended for good, or what it was to adopt was not there. Unset: never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterStopped *int32 `json:"ttlSecondsAfterStopped,omitempty"`
}

// LocalReference names an object of the same namespace.
type LocalReference struct {
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}
