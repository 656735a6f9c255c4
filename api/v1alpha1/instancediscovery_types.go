// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LabelDiscoveredBy is the label of an Instance that an InstanceDiscovery has made; its value is the name of that.
const LabelDiscoveredBy = "berth.dev/discovered-by"

// DiscoveryState says whether anything is looked for.
// +kubebuilder:validation:Enum=Running;Stopped
type DiscoveryState string

const (
	// DiscoveryRunning looks again and again.
	DiscoveryRunning DiscoveryState = "Running"
	// DiscoveryStopped looks for nothing; what was found stays as it is.
	DiscoveryStopped DiscoveryState = "Stopped"
)

// InstanceDiscoverySpec says where sessions and containers are looked for, and what becomes of those that are found.
type InstanceDiscoverySpec struct {
	// Whether anything is looked for: Running, or Stopped (what was found stays). Defaults to Running.
	// +optional
	// +kubebuilder:default=Running
	State DiscoveryState `json:"state,omitempty"`

	// Where to look. What several sources find belongs to the first of them.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Sources []DiscoverySource `json:"sources"`

	// Seconds from one look to the next. Defaults to 30.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=86400
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`

	// Any change of this text is one request to look at once.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RefreshToken string `json:"refreshToken,omitempty"`

	// What the Instances that are made have beside what was found.
	// +optional
	Template DiscoveryTemplate `json:"template,omitzero"`
}

// DiscoverySource is one place to look, and what of it is meant. All that is given has to be true of a session or container.
// +kubebuilder:validation:XValidation:rule="self.type in ['Tmux', 'Docker']",message="sessions are found in Tmux and containers in Docker; nothing else can be looked through"
// +kubebuilder:validation:XValidation:rule="has(self.tmux) ? self.type == 'Tmux' : true",message="tmux is for the type Tmux"
// +kubebuilder:validation:XValidation:rule="has(self.docker) ? self.type == 'Docker' : true",message="docker is for the type Docker"
type DiscoverySource struct {
	// Names the source in status.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Tmux: the sessions of a tmux server of the manager's user. Docker: the containers of the Docker Engine that run.
	// +required
	// +unionDiscriminator
	Type RuntimeType `json:"type"`

	// Which sessions, of the type Tmux. Defaults to all of the user's own tmux server.
	// +optional
	Tmux *TmuxSource `json:"tmux,omitempty"`

	// Which containers, of the type Docker. Defaults to all that run.
	// +optional
	Docker *DockerSource `json:"docker,omitempty"`

	// Programs, such as claude, of which one has to run: the command in the foreground of the session, or the program that the container was
	// started with, without its directory. Empty: any.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Processes []string `json:"processes,omitempty"`
}

// TmuxSource says which sessions are meant.
type TmuxSource struct {
	// Name of the tmux server's socket, as in tmux -L. Defaults to default, the server that tmux itself uses when nothing is said.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9_]*$`
	// +kubebuilder:validation:MaxLength=64
	Socket string `json:"socket,omitempty"`

	// How the name of the session begins. Empty: any way.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Prefix string `json:"prefix,omitempty"`

	// A regular expression (RE2) that matches somewhere in the name of the session: use ^ and $ for the whole. Empty: any. All patterns of the
	// object together may compile to 2,048 instructions; larger ones are reported by the condition Stalled.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.contains('{') || ''.matches(self) || !''.matches(self)",message="must be a valid regular expression (RE2)"
	Pattern string `json:"pattern,omitempty"`
}

// DockerSource says which containers are meant.
type DockerSource struct {
	// Labels that the container has, each with this value. Empty: any.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.size() <= 317)",message="the name of a label must have at most 317 characters"
	MatchLabels map[string]LabelText `json:"matchLabels,omitempty"`

	// The image as it was named when the container was made, such as agent:2; * stands for any text. Empty: any.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
}

// LabelText is the value of a label or an annotation.
// +kubebuilder:validation:MaxLength=4096
type LabelText string

// DiscoveryTemplate is what the Instances that are made have beside what was found: adoption Required, deletionPolicy Orphan, restartPolicy Never.
type DiscoveryTemplate struct {
	// Labels of the Instances.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.size() <= 317)",message="the name of a label must have at most 317 characters"
	Labels map[string]LabelText `json:"labels,omitempty"`

	// Annotations of the Instances.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(key, key.size() <= 317)",message="the name of a label must have at most 317 characters"
	Annotations map[string]LabelText `json:"annotations,omitempty"`

	// Groups the Instances: their spec.session.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Session string `json:"session,omitempty"`

	// Instances are deleted this many seconds after what they stand for has ended. Defaults to 3600.
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterStopped *int32 `json:"ttlSecondsAfterStopped,omitempty"`
}

// InstanceDiscoveryStatus is what was found by the last look.
type InstanceDiscoveryStatus struct {
	// The generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// The refreshToken that was carried out last.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRefreshToken string `json:"observedRefreshToken,omitempty"`

	// The last look that found something else than the one before it, or that was asked for. A look that finds the same writes nothing.
	// +optional
	LastDiscoveryTime *metav1.MicroTime `json:"lastDiscoveryTime,omitempty"`

	// What was found, in numbers.
	// +optional
	Totals DiscoveryTotals `json:"totals,omitzero"`

	// What was found, in the order of the sources and their names; the first 256 of it.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=atomic
	Found []DiscoveredInstance `json:"found,omitempty"`

	// What is true of the discovery: Ready, Reconciling, Stalled.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DiscoveryTotals counts what the last look has found.
type DiscoveryTotals struct {
	// Sessions and containers that are meant.
	// +optional
	// +kubebuilder:default=0
	Found int32 `json:"found"`
	// Of them, those whose Instance was made by this discovery.
	// +optional
	// +kubebuilder:default=0
	Created int32 `json:"created"`
	// Of them, those that another Instance stands for.
	// +optional
	// +kubebuilder:default=0
	Known int32 `json:"known"`
	// Of them, those that no Instance is made for.
	// +optional
	// +kubebuilder:default=0
	Skipped int32 `json:"skipped"`
	// Of them, those that their Instance has adopted.
	// +optional
	// +kubebuilder:default=0
	Adopted int32 `json:"adopted"`
}

// DiscoveryOutcome is what became of something that was found.
// +kubebuilder:validation:Enum=Created;Known;Skipped
type DiscoveryOutcome string

const (
	// DiscoveryCreated says that its Instance was made by this discovery.
	DiscoveryCreated DiscoveryOutcome = "Created"
	// DiscoveryKnown says that another Instance stands for it.
	DiscoveryKnown DiscoveryOutcome = "Known"
	// DiscoverySkipped says that no Instance is made for it.
	DiscoverySkipped DiscoveryOutcome = "Skipped"
)

// DiscoveredInstance is one session or container.
type DiscoveredInstance struct {
	// The source that found it.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Source string `json:"source"`

	// Name of the session or container.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`

	// What tmux or Docker itself calls it: such as $3, or the beginning of the container's id.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id,omitempty"`

	// The Instance that stands for it, with its namespace if that is another one.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	Instance string `json:"instance,omitempty"`

	// What became of it.
	// +required
	Outcome DiscoveryOutcome `json:"outcome"`

	// Why, in one word: such as AlreadyClaimed, BerthsOwn, NameTaken.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// Why, for people.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`
}

// InstanceDiscovery looks for sessions and containers that are there already, and makes an Instance of each that has none. It never changes or deletes one.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=disc
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Found",type=integer,JSONPath=`.status.totals.found`
// +kubebuilder:printcolumn:name="Created",type=integer,JSONPath=`.status.totals.created`
// +kubebuilder:printcolumn:name="Known",type=integer,JSONPath=`.status.totals.known`
// +kubebuilder:printcolumn:name="Skipped",type=integer,JSONPath=`.status.totals.skipped`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name must have at most 63 characters: it is the value of a label of what it makes"
type InstanceDiscovery struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is wanted.
	// +required
	Spec InstanceDiscoverySpec `json:"spec"`

	// What is; written by Berth alone.
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
