// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// RuntimeSpec selects where a process runs.
// +kubebuilder:validation:XValidation:rule="self.type in ['Host', 'Pod']",message="type must be Host or Pod; only Instances support Tmux and Docker"
// +kubebuilder:validation:XValidation:rule="has(self.pod) == (self.type == 'Pod')",message="pod is required if type is Pod, and not allowed otherwise"
type RuntimeSpec struct {
	// type is the runtime: Host (on the machine of the manager, under a berth-shim) or Pod (in a Pod of the cluster).
	// +required
	// +unionDiscriminator
	Type RuntimeType `json:"type"`

	// pod describes the Pod. Required if type is Pod, and not allowed otherwise.
	// +optional
	Pod *PodRuntime `json:"pod,omitempty"`
}

// InstanceRuntime selects where a session runs.
// +kubebuilder:validation:XValidation:rule="has(self.pod) == (self.type == 'Pod')",message="pod is required if type is Pod, and not allowed otherwise"
// +kubebuilder:validation:XValidation:rule="has(self.tmux) ? self.type == 'Tmux' : true",message="tmux is only allowed if type is Tmux"
// +kubebuilder:validation:XValidation:rule="has(self.docker) == (self.type == 'Docker')",message="docker is required if type is Docker, and not allowed otherwise"
type InstanceRuntime struct {
	// type is the runtime: Host (on the machine of the manager, under a berth-shim), Tmux (like Host, shown in a tmux session), Docker (in a container
	// of a Docker Engine) or Pod (in a Pod of the cluster).
	// +required
	// +unionDiscriminator
	Type RuntimeType `json:"type"`

	// tmux describes the tmux session, if type is Tmux. Defaults to a session with the name of the object.
	// +optional
	Tmux *TmuxRuntime `json:"tmux,omitempty"`

	// docker describes the container. Required if type is Docker, and not allowed otherwise.
	// +optional
	Docker *DockerRuntime `json:"docker,omitempty"`

	// pod describes the Pod. Required if type is Pod, and not allowed otherwise.
	// +optional
	Pod *PodRuntime `json:"pod,omitempty"`
}

// TmuxRuntime names a tmux session: one of the manager's user that Berth creates, or one of the user that runs programs that Berth adopts.
type TmuxRuntime struct {
	// session is the name of the session, at most 128 characters. Defaults to the name of the object, with each dot replaced by a hyphen. In a namespace
	// other than default, the default name begins with the namespace and a slash.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.contains(':') && !self.contains('.')",message="tmux does not allow ':' and '.' in the name of a session"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]') && !self.matches('^[=@$%+{-]') && self.trim() == self",message="the name of a session must not begin with one of = @ $ % + { -, which have a special meaning in tmux, contain control characters, or begin or end with spaces"
	Session string `json:"session,omitempty"`

	// socket is the socket name of the tmux server, as in tmux -L, at most 64 characters. Defaults to berth, a separate server that loads no user's tmux
	// configuration.
	// +optional
	// +kubebuilder:default=berth
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_]*$`
	// +kubebuilder:validation:MaxLength=64
	Socket string `json:"socket,omitempty"`
}

// PullPolicy states when an image is pulled.
type PullPolicy string

const (
	// PullNever uses only images that the engine or the node already has.
	PullNever PullPolicy = "Never"
	// PullIfNotPresent pulls an image that the engine or the node does not have.
	PullIfNotPresent PullPolicy = "IfNotPresent"
	// PullAlways queries the registry whenever a container is created. Only Pods support it.
	PullAlways PullPolicy = "Always"
)

// DockerRuntime describes a container. At least one of image and container must be set.
// +kubebuilder:validation:XValidation:rule="has(self.image) || has(self.container)",message="set image to start a container, or container to adopt an existing one"
type DockerRuntime struct {
	// image is the image from which Berth creates the container, at most 512 characters. Required unless spec.adoption is Required.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// container is the name or the ID, of 12 or 64 characters, of an existing container to adopt; at most 128 characters. It requires spec.adoption IfExists or Required.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_.]*$`
	Container string `json:"container,omitempty"`

	// pull states whether Berth may pull the image: Never, or IfNotPresent, which pulls the image if the engine does not have it. Defaults to Never.
	// +optional
	// +kubebuilder:default=Never
	// +kubebuilder:validation:Enum=Never;IfNotPresent
	Pull PullPolicy `json:"pull,omitempty"`

	// network is the name of an existing network that the container joins, at most 128 characters. Unset: the default network of the engine.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_.]*$`
	Network string `json:"network,omitempty"`

	// user is the user in the container, as a name or as uid[:gid], at most 64 characters. Defaults to the user that the image specifies.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][-A-Za-z0-9_.:]*$`
	User string `json:"user,omitempty"`

	// mounts are directories of the machine that Berth mounts in the container. At most 32.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=target
	Mounts []DockerMount `json:"mounts,omitempty"`
}

// DockerMount is one mounted directory.
type DockerMount struct {
	// source is an existing directory on the machine of the engine; an absolute path of at most 4096 characters.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/`
	Source string `json:"source"`

	// target is the path in the container; an absolute path of at most 4096 characters.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/`
	Target string `json:"target"`

	// access states whether the container may write to the directory: ReadWrite or ReadOnly. Defaults to ReadWrite.
	// +optional
	// +kubebuilder:default=ReadWrite
	Access MountAccess `json:"access,omitempty"`
}

// MountAccess states how a container may access a directory.
// +kubebuilder:validation:Enum=ReadWrite;ReadOnly
type MountAccess string

const (
	// MountReadWrite permits the container to read and write.
	MountReadWrite MountAccess = "ReadWrite"
	// MountReadOnly permits the container to read only.
	MountReadOnly MountAccess = "ReadOnly"
)
