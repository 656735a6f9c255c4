// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelDiscoveredBy is the label of Instances that an InstanceDiscovery created. Its value is the name of the InstanceDiscovery.
const LabelDiscoveredBy = "berth.dev/discovered-by"

// DiscoveryState states whether an InstanceDiscovery scans its sources.
// +kubebuilder:validation:Enum=Running;Stopped
type DiscoveryState string

const (
	// DiscoveryRunning requests a scan of the sources at every interval.
	DiscoveryRunning DiscoveryState = "Running"
	// DiscoveryStopped requests that the sources are not scanned. Existing Instances and results stay.
	DiscoveryStopped DiscoveryState = "Stopped"
)

// InstanceDiscoverySpec is the desired state of an InstanceDiscovery.
type InstanceDiscoverySpec struct {
	// state determines whether Berth scans the sources: Running or Stopped. While it is Stopped, existing Instances and results stay. Defaults to Running.
	// +optional
	// +kubebuilder:default=Running
	State DiscoveryState `json:"state,omitempty"`

	// sources are the places to scan, 1 to 16. A session or container that matches several sources belongs to the first of these sources.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Sources []DiscoverySource `json:"sources"`

	// intervalSeconds is the time between two scans, in seconds. 5 to 86400. Defaults to 30.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=86400
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`

	// refreshToken requests a scan. Any new value requests one immediate scan. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RefreshToken string `json:"refreshToken,omitempty"`

	// template contains additional fields of the Instances that this discovery creates.
	// +optional
	Template DiscoveryTemplate `json:"template,omitzero"`
}

// DiscoverySource is one place to scan, with criteria for sessions or containers. A session or container must match all criteria.
// +kubebuilder:validation:XValidation:rule="self.type in ['Tmux', 'Docker']",message="the type of a source must be Tmux or Docker"
// +kubebuilder:validation:XValidation:rule="has(self.tmux) ? self.type == 'Tmux' : true",message="tmux is only allowed if type is Tmux"
// +kubebuilder:validation:XValidation:rule="has(self.docker) ? self.type == 'Docker' : true",message="docker is only allowed if type is Docker"
type DiscoverySource struct {
	// name identifies the source in status.found. At most 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// type selects what to scan: Tmux (the sessions of a tmux server of the user that runs programs) or Docker (the running containers of the Docker Engine).
	// +required
	// +unionDiscriminator
	Type RuntimeType `json:"type"`

	// tmux selects sessions, if type is Tmux. Defaults to all sessions of the default tmux server of the user that runs programs.
	// +optional
	Tmux *TmuxSource `json:"tmux,omitempty"`

	// docker selects containers, if type is Docker. Defaults to all running containers.
	// +optional
	Docker *DockerSource `json:"docker,omitempty"`

	// processes are names of programs, such as claude. A session matches if its foreground command has one of these names. A container matches if the
	// program with which it was started has one of these names; the directory of the program is ignored. At most 32 names of at most 256 characters.
	// Empty: any program.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Processes []string `json:"processes,omitempty"`
}

// TmuxSource selects sessions of a tmux server.
type TmuxSource struct {
	// socket is the socket name of the tmux server, as in tmux -L, at most 64 characters. Defaults to default, the server that tmux uses without -L.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_]*$`
	// +kubebuilder:validation:MaxLength=64
	Socket string `json:"socket,omitempty"`

	// prefix is the text with which the name of the session must begin. At most 128 characters. Empty: any name.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Prefix string `json:"prefix,omitempty"`

	// pattern is a regular expression (RE2) that matches any part of the name of the session; use ^ and $ to match the whole name. At most 256
	// characters. All patterns of the object together may compile to at most 2,048 instructions; the condition Stalled reports a pattern that exceeds
	// this limit. Empty: any name.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.contains('{') || ''.matches(self) || !''.matches(self)",message="must be a valid regular expression (RE2)"
	Pattern string `json:"pattern,omitempty"`
}

// DockerSource selects containers.
type DockerSource struct {
	// matchLabels are labels that the container must have with these values. At most 32. Empty: any labels.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.size() <= 317)",message="each key must have at most 317 characters"
	MatchLabels map[string]LabelText `json:"matchLabels,omitempty"`

	// image is the name of the image, as it was given when the container was created, such as agent:2. * matches any text. At most 512 characters.
	// Empty: any image.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
}

// LabelText is the value of a label or an annotation.
// +kubebuilder:validation:MaxLength=4096
type LabelText string

// DiscoveryTemplate contains additional fields of the Instances that a discovery creates. All of these Instances have the adoption Required, the
// deletionPolicy Orphan and the restartPolicy Never.
type DiscoveryTemplate struct {
	// labels are labels of the Instances. At most 32.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.size() <= 317)",message="each key must have at most 317 characters"
	Labels map[string]LabelText `json:"labels,omitempty"`

	// annotations are annotations of the Instances. At most 32.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.size() <= 317)",message="each key must have at most 317 characters"
	Annotations map[string]LabelText `json:"annotations,omitempty"`

	// session is the spec.session of the Instances, by which users can group objects. It must be a valid label value of at most 63 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Session string `json:"session,omitempty"`

	// ttlSecondsAfterStopped is the time, in seconds, after which Berth deletes an Instance whose session or container has ended. 0 to 31536000 (one
	// year). Defaults to 3600.
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterStopped *int32 `json:"ttlSecondsAfterStopped,omitempty"`
}

// InstanceDiscoveryStatus is the result of the last scan.
type InstanceDiscoveryStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// observedRefreshToken is the last refreshToken that Berth acted on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRefreshToken string `json:"observedRefreshToken,omitempty"`

	// lastDiscoveryTime is the time of the last scan that found a change or was requested. A scan that finds no change writes nothing.
	// +optional
	LastDiscoveryTime *metav1.MicroTime `json:"lastDiscoveryTime,omitempty"`

	// totals are the numbers of sessions and containers that the last scan found.
	// +optional
	Totals DiscoveryTotals `json:"totals,omitzero"`

	// found lists the first 256 sessions and containers that the last scan found, in the order of the sources and then by name.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	Found []DiscoveredInstance `json:"found,omitempty"`

	// conditions describe the current state of the discovery: Ready, Reconciling and Stalled.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DiscoveryTotals counts what the last scan found.
type DiscoveryTotals struct {
	// found is the number of sessions and containers that match.
	// +optional
	// +kubebuilder:default=0
	Found int32 `json:"found"`
	// created is the number of found sessions and containers whose Instance this discovery created.
	// +optional
	// +kubebuilder:default=0
	Created int32 `json:"created"`
	// known is the number of found sessions and containers for which another Instance exists.
	// +optional
	// +kubebuilder:default=0
	Known int32 `json:"known"`
	// skipped is the number of found sessions and containers for which the discovery does not create an Instance.
	// +optional
	// +kubebuilder:default=0
	Skipped int32 `json:"skipped"`
	// adopted is the number of found sessions and containers that an Instance has adopted.
	// +optional
	// +kubebuilder:default=0
	Adopted int32 `json:"adopted"`
}

// DiscoveryOutcome states how a discovery handled a session or container.
// +kubebuilder:validation:Enum=Created;Known;Skipped
type DiscoveryOutcome string

const (
	// DiscoveryCreated means that this discovery created the Instance of the session or container.
	DiscoveryCreated DiscoveryOutcome = "Created"
	// DiscoveryKnown means that another Instance exists for the session or container.
	DiscoveryKnown DiscoveryOutcome = "Known"
	// DiscoverySkipped means that the discovery does not create an Instance for the session or container.
	DiscoverySkipped DiscoveryOutcome = "Skipped"
)

// DiscoveredInstance is one session or container that a scan found.
type DiscoveredInstance struct {
	// source is the name of the source that found the session or container.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Source string `json:"source"`

	// name is the name of the session or container.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`

	// id is the ID that tmux or Docker assigned, such as $3, or the beginning of the container ID.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id,omitempty"`

	// instanceRef names the Instance of the session or container or, if the reason is NameTaken, the Instance that has the name. Unset if there is none.
	// +optional
	InstanceRef *NamespacedReference `json:"instanceRef,omitempty"`

	// outcome states how the discovery handled the session or container: Created, Known or Skipped.
	// +required
	Outcome DiscoveryOutcome `json:"outcome"`

	// reason is the cause of the outcome, in one word, such as AlreadyClaimed, BerthsOwn or NameTaken. Empty if the outcome is Created.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message contains details of the cause.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`
}

// InstanceDiscovery finds existing tmux sessions and containers, and creates an Instance for each one that has none. It never changes or deletes an
// Instance.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=disc
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Status of the condition Ready"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Reason of the condition Ready"
// +kubebuilder:printcolumn:name="Found",type=integer,JSONPath=`.status.totals.found`,description="Number of sessions and containers that match"
// +kubebuilder:printcolumn:name="Created",type=integer,JSONPath=`.status.totals.created`,description="Matches for which this discovery created an Instance"
// +kubebuilder:printcolumn:name="Known",type=integer,JSONPath=`.status.totals.known`,description="Matches that already have another Instance"
// +kubebuilder:printcolumn:name="Skipped",type=integer,JSONPath=`.status.totals.skipped`,description="Number of skipped matches"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name must have at most 63 characters, because it is the value of a label of the Instances that it creates"
type InstanceDiscovery struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata that all Kubernetes objects have.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec InstanceDiscoverySpec `json:"spec"`

	// status is the observed state. Only Berth writes it.
	// +optional
	Status InstanceDiscoveryStatus `json:"status,omitempty"`
}

// InstanceDiscoveryList is a list of InstanceDiscoveries.
// +kubebuilder:object:root=true
type InstanceDiscoveryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InstanceDiscovery `json:"items"`
}
