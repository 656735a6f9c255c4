// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// FinalizerProcess keeps an object until Berth has observed the exit of its process.
	FinalizerProcess = "berth.dev/process"
	// LabelSession is the label that mirrors spec.session.
	LabelSession = "berth.dev/session"
	// LabelHost names the host that an object belongs to. The manager of a host sets the label on objects that do not have it. To choose a host, set the
	// label when you create the object. To move the object, change the label: the old host stops the process, and then the new host starts it. Objects
	// with the runtime Pod ignore the label.
	LabelHost = "berth.dev/host"
	// LabelAllowRuntime is the label of a namespace whose objects may use a runtime on the machine of the manager. Its value is that runtime, such as Host.
	LabelAllowRuntime = "berth.dev/allow-runtime"
	// AnnotationLostHost declares that the host that it names is lost and will not come back. The host that LabelHost names then takes over the object
	// without waiting for the lost host to stop the process. If the lost host comes back and takes over the object again, it removes the annotation
	// first.
	AnnotationLostHost = "berth.dev/lost-host"
	// AnnotationUID records the UID that a Plan or a StrategyRun had when Berth first served it. A copy of the object, for example one that was restored from a
	// backup, has another UID. Berth does not execute the copy (reason Restored) until this annotation is removed.
	AnnotationUID = "berth.dev/uid"
)

// ProcessState is the desired state of a process.
// +kubebuilder:validation:Enum=Running;Stopped;OnDemand
type ProcessState string

const (
	// StateRunning requests that the process runs.
	StateRunning ProcessState = "Running"
	// StateStopped requests that no process runs. The object continues to exist.
	StateStopped ProcessState = "Stopped"
	// StateOnDemand requests that the process runs while clients use it. Only LanguageServers support it.
	StateOnDemand ProcessState = "OnDemand"
)

// RuntimeType states where a process runs.
// +kubebuilder:validation:Enum=Host;Tmux;Docker;Pod
type RuntimeType string

const (
	// RuntimeHost runs the process on the machine of the manager, under a berth-shim.
	RuntimeHost RuntimeType = "Host"
	// RuntimeTmux runs the process like RuntimeHost and shows its terminal in a tmux session. Only Instances support it.
	RuntimeTmux RuntimeType = "Tmux"
	// RuntimeDocker runs the process in a container of a Docker Engine. Only Instances support it.
	RuntimeDocker RuntimeType = "Docker"
	// RuntimePod runs the process in a Pod of the cluster.
	RuntimePod RuntimeType = "Pod"
)

// ProcessSpec contains the fields that all process kinds share.
type ProcessSpec struct {
	// state is the desired state: Running, Stopped, or OnDemand. Stopped keeps the object without a process. OnDemand, which only LanguageServers
	// support, runs the server only while clients use it. Defaults to Running.
	// +optional
	// +kubebuilder:default=Running
	State ProcessState `json:"state,omitempty"`

	// restartToken requests a restart. Any new value is one request, and an empty one is none. Several changes before the new incarnation starts cause one restart. At
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

	// process describes the program to run.
	// +required
	Process ProcessTemplate `json:"process"`

	// restartPolicy states after which exits Berth restarts the process: Always, OnFailure or Never. Defaults to Always.
	// +optional
	// +kubebuilder:default=Always
	RestartPolicy RestartPolicy `json:"restartPolicy,omitempty"`

	// backoff states how long Berth waits before it restarts a process that failed.
	// +optional
	// +kubebuilder:default={}
	Backoff BackoffPolicy `json:"backoff,omitzero"`

	// breaker states when Berth stops restarting a process that keeps failing.
	// +optional
	// +kubebuilder:default={}
	Breaker BreakerPolicy `json:"breaker,omitzero"`

	// resetToken requests a reset. Any new value closes the breaker and resets the back-off. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ResetToken string `json:"resetToken,omitempty"`

	// updatePolicy states what happens to a running process when its spec changes: Recreate restarts it, OnRestart leaves it running until its next
	// restart. Defaults to Recreate.
	// +optional
	// +kubebuilder:default=Recreate
	UpdatePolicy UpdatePolicy `json:"updatePolicy,omitempty"`

	// ttlSecondsAfterStopped is the time, in seconds, after which Berth deletes an object whose process was stopped or will not be restarted, or for
	// which Berth found nothing to adopt. 0 to 31536000 (one year). Unset: Berth never deletes the object.
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

// NamespacedReference names an object in any namespace.
type NamespacedReference struct {
	// namespace is the namespace of the object, at most 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`

	// name is the name of the object, at most 253 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}
