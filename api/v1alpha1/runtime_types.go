// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// RuntimeSpec chooses where a process runs.
// +kubebuilder:validation:XValidation:rule="self.type in ['Host', 'Pod']",message="this runs in the runtimes Host and Pod; Tmux and Docker are for Instances"
// +kubebuilder:validation:XValidation:rule="has(self.pod) == (self.type == 'Pod')",message="pod, with an image, belongs to the type Pod, and to no other"
type RuntimeSpec struct {
	// Host: on the machine of the manager, held by a berth-shim. Pod: in a Pod of the cluster.
	// +required
	// +unionDiscriminator
	Type RuntimeType `json:"type"`

	// The Pod, of the type Pod.
	// +optional
	Pod *PodRuntime `json:"pod,omitempty"`
}

// InstanceRuntime chooses where a session runs.
// +kubebuilder:validation:XValidation:rule="has(self.pod) == (self.type == 'Pod')",message="pod, with an image, belongs to the type Pod, and to no other"
// +kubebuilder:validation:XValidation:rule="has(self.tmux) ? self.type == 'Tmux' : true",message="tmux is for the type Tmux"
// +kubebuilder:validation:XValidation:rule="has(self.docker) == (self.type == 'Docker')",message="docker, an image or a container that is there, belongs to the type Docker, and to no other"
type InstanceRuntime struct {
	// Host: on the machine of the manager, held by a berth-shim. Tmux: the same, and a tmux session shows it. Docker: in a container.
	// Pod: in a Pod of the cluster.
	// +required
	// +unionDiscriminator
	Type RuntimeType `json:"type"`

	// The session, of the type Tmux. Defaults to a session with the name of the object.
	// +optional
	Tmux *TmuxRuntime `json:"tmux,omitempty"`

	// The container, of the type Docker.
	// +optional
	Docker *DockerRuntime `json:"docker,omitempty"`

	// The Pod, of the type Pod.
	// +optional
	Pod *PodRuntime `json:"pod,omitempty"`
}

// TmuxRuntime names a tmux session of the manager's user.
type TmuxRuntime struct {
	// Name of the session. Defaults to the name of the object, with its namespace before it outside of "default", and - in place of a dot.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.contains(':') && !self.contains('.')",message="tmux itself does not allow ':' and '.' in the name of a session"
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]') && !self.matches('^[=@$%+{-]') && self.trim() == self",message="the name of a session must not begin with one of = @ $ % + { -, which tmux gives a meaning, nor hold control characters or spaces at its ends"
	Session string `json:"session,omitempty"`

	// Name of the tmux server's socket, as in tmux -L. Defaults to berth, a server of Berth's own that loads no user's configuration.
	// +optional
	// +kubebuilder:default=berth
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_]*$`
	// +kubebuilder:validation:MaxLength=64
	Socket string `json:"socket,omitempty"`
}

// PullPolicy is whether an image may be fetched.
type PullPolicy string

const (
	// PullNever uses only images that the engine has.
	PullNever PullPolicy = "Never"
	// PullIfNotPresent fetches an image that the engine does not have.
	PullIfNotPresent PullPolicy = "IfNotPresent"
	// PullAlways asks the registry whenever a container is made; of a Pod only.
	PullAlways PullPolicy = "Always"
)

// DockerRuntime says what container.
// +kubebuilder:validation:XValidation:rule="has(self.image) || has(self.container)",message="set an image to start, or a container that is there to adopt"
type DockerRuntime struct {
	// The image to start.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// Name or id of a container that is there already; spec.adoption says whether it is taken over.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_.]*$`
	Container string `json:"container,omitempty"`

	// Whether the image may be fetched. Defaults to Never.
	// +optional
	// +kubebuilder:default=Never
	// +kubebuilder:validation:Enum=Never;IfNotPresent
	Pull PullPolicy `json:"pull,omitempty"`

	// Name of the network that the container joins; it has to be there. Defaults to the engine's own choice.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_.]*$`
	Network string `json:"network,omitempty"`

	// User in the container, as name or uid[:gid]. Defaults to what the image says.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][-A-Za-z0-9_.:]*$`
	User string `json:"user,omitempty"`

	// Directories of the machine that the container sees.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=target
	Mounts []DockerMount `json:"mounts,omitempty"`
}

// DockerMount is one directory.
type DockerMount struct {
	// Absolute path on the machine of the engine; it has to be there.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/`
	Source string `json:"source"`

	// Absolute path in the container.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/`
	Target string `json:"target"`

	// Whether the container may write there. Defaults to ReadWrite.
	// +optional
	// +kubebuilder:default=ReadWrite
	Access MountAccess `json:"access,omitempty"`
}

// MountAccess is what a container may do with a directory.
// +kubebuilder:validation:Enum=ReadWrite;ReadOnly
type MountAccess string

const (
	// MountReadWrite lets the container write.
	MountReadWrite MountAccess = "ReadWrite"
	// MountReadOnly lets it read only.
	MountReadOnly MountAccess = "ReadOnly"
)
