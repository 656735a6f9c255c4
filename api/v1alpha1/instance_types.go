// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InstanceSpec says what session is wanted.
// +kubebuilder:validation:XValidation:rule=`(has(self.session) ? self.session : "") == (has(oldSelf.session) ? oldSelf.session : "")`,message="session is immutable: delete the object and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.runtime) == has(oldSelf.runtime) && (!has(self.runtime) || self.runtime.type == oldSelf.runtime.type && has(self.runtime.tmux) == has(oldSelf.runtime.tmux) && (!has(self.runtime.tmux) || self.runtime.tmux == oldSelf.runtime.tmux) && has(self.runtime.docker) == has(oldSelf.runtime.docker) && (!has(self.runtime.docker) || self.runtime.docker == oldSelf.runtime.docker))",message="runtime is immutable, but for what is in pod: delete the object and create it anew"
// +kubebuilder:validation:XValidation:rule="!has(self.state) || self.state != 'OnDemand'",message="state OnDemand is for LanguageServers only: use Running or Stopped"
// +kubebuilder:validation:XValidation:rule="!has(self.adoption) || self.adoption == 'Never' || has(self.runtime) && self.runtime.type in ['Tmux', 'Docker']",message="only what runs in tmux or Docker can be adopted: set spec.runtime, or adoption to Never"
// +kubebuilder:validation:XValidation:rule="!has(self.deletionPolicy) || self.deletionPolicy != 'Orphan' || has(self.adoption) && self.adoption != 'Never'",message="deletionPolicy Orphan is for what was adopted: set spec.adoption to IfExists or Required"
// +kubebuilder:validation:XValidation:rule="!has(self.runtime) || !has(self.runtime.docker) || has(self.runtime.docker.image) || has(self.adoption) && self.adoption == 'Required'",message="without an image there is nothing to start: set spec.runtime.docker.image, or spec.adoption to Required"
// +kubebuilder:validation:XValidation:rule="!has(self.runtime) || !has(self.runtime.docker) || !has(self.runtime.docker.container) || has(self.adoption) && self.adoption != 'Never'",message="spec.runtime.docker.container names a container to adopt: set spec.adoption to IfExists or Required"
type InstanceSpec struct {
	ProcessSpec `json:",inline"`

	// Where the session runs. Immutable, but for what is in pod. Defaults to the runtime that the manager was started with.
	// +optional
	Runtime *InstanceRuntime `json:"runtime,omitempty"`

	// Whether a session or container that is there already is taken over. Defaults to Never.
	// +optional
	// +kubebuilder:default=Never
	Adoption AdoptionPolicy `json:"adoption,omitempty"`

	// What becomes of the process when the object is deleted. Defaults to Orphan for what was adopted, to Terminate for what Berth started.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// Any change of this text sends one Ctrl-C to the terminal.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	InterruptToken string `json:"interruptToken,omitempty"`

	// The name that people know the session by; it need not be a legal object name.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	DisplayName string `json:"displayName,omitempty"`

	// The terminal that the program is started in.
	// +optional
	// +kubebuilder:default={}
	Terminal TerminalSpec `json:"terminal,omitzero"`

	// After so many seconds without output or input the program is ended until it is asked for again: by berth attach or send, a restartToken or any
	// edit of the spec. What was adopted is ended so only with the deletionPolicy Terminate. 0: never. Defaults to 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	IdleTimeoutSeconds *int32 `json:"idleTimeoutSeconds,omitempty"`
}

// AdoptionPolicy is whether something that is there already is taken over.
// +kubebuilder:validation:Enum=Never;IfExists;Required
type AdoptionPolicy string

const (
	// AdoptionNever starts an own one; what has the name already is a conflict.
	AdoptionNever AdoptionPolicy = "Never"
	// AdoptionIfExists takes over what is there, and else starts an own one.
	AdoptionIfExists AdoptionPolicy = "IfExists"
	// AdoptionRequired takes over what is there, and never starts an own one.
	AdoptionRequired AdoptionPolicy = "Required"
)

// DeletionPolicy is what becomes of a process whose object is deleted.
// +kubebuilder:validation:Enum=Terminate;Orphan
type DeletionPolicy string

const (
	// DeletionTerminate ends the process.
	DeletionTerminate DeletionPolicy = "Terminate"
	// DeletionOrphan leaves what was adopted as it is.
	DeletionOrphan DeletionPolicy = "Orphan"
)

// TerminalSpec is the size of a terminal at its start; berth attach changes it to that of the window.
type TerminalSpec struct {
	// Width in characters. Defaults to 120.
	// +optional
	// +kubebuilder:default=120
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Columns *int32 `json:"columns,omitempty"`

	// Height in lines. Defaults to 40.
	// +optional
	// +kubebuilder:default=40
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Rows *int32 `json:"rows,omitempty"`

	// How it is told from what the terminal shows that the program waits for an answer.
	// +optional
	AwaitingInput AwaitingInputSpec `json:"awaitingInput,omitzero"`
}

// AwaitingInputSpec is how it is told that a program waits for an answer.
type AwaitingInputSpec struct {
	// Regular expressions (RE2) that are looked for in the last 20 lines of the terminal, once nothing has moved for two seconds. Lines end in no spaces,
	// and the text in no empty lines, so $ is where the cursor is. If there are any, they alone decide. Empty: how the program reads the terminal, where
	// that is known, and patterns for the common coding agents, menus and passwords.
	// All patterns together may compile to 2,048 instructions; the condition AwaitingInput reports those that exceed it. The larger they are, the less
	// of a screen of more than 2,047 characters they are matched with.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="self.contains('{') || ''.matches(self) || !''.matches(self)",message="must be a valid regular expression (RE2)"
	// +listType=atomic
	Patterns []string `json:"patterns,omitempty"`
}

// InstanceStatus is what is known of a session.
type InstanceStatus struct {
	ProcessStatus `json:",inline"`

	// What to type to take the session's terminal.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	AttachCommand string `json:"attachCommand,omitempty"`

	// Names the conversation over all restarts; the program gets it as the variable SESSION_ID.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SessionID string `json:"sessionID,omitempty"`

	// The interruptToken that was carried out last.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedInterruptToken string `json:"observedInterruptToken,omitempty"`

	// When the terminal last showed something new, something was typed through Berth, or the program was started. Written at most every 30 seconds.
	// +optional
	LastActivityTime *metav1.Time `json:"lastActivityTime,omitempty"`
}

// Instance is a session of a coding agent: a program in a terminal that stays when nobody looks.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=inst
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Waiting",type=string,JSONPath=`.status.conditions[?(@.type=="AwaitingInput")].status`
// +kubebuilder:printcolumn:name="Attach",type=string,JSONPath=`.status.attachCommand`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restartCount`
// +kubebuilder:printcolumn:name="Session",type=string,JSONPath=`.spec.session`,priority=1
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.hostName`,priority=1
// +kubebuilder:printcolumn:name="PID",type=integer,JSONPath=`.status.process.pid`,priority=1
// +kubebuilder:printcolumn:name="Active",type=date,JSONPath=`.status.lastActivityTime`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.session`
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
type Instance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is wanted.
	// +required
	Spec InstanceSpec `json:"spec"`

	// What is; written by Berth alone.
	// +optional
	Status InstanceStatus `json:"status,omitempty"`
}

// GetProcessSpec gives the part of the spec that all process kinds share.
func (i *Instance) GetProcessSpec() *ProcessSpec { return &i.Spec.ProcessSpec }

// GetProcessStatus gives the part of the status that all process kinds share.
func (i *Instance) GetProcessStatus() *ProcessStatus { return &i.Status.ProcessStatus }

// InstanceList is a list of Instances.
// +kubebuilder:object:root=true
type InstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Instance `json:"items"`
}
