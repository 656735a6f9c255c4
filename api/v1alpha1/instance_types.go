// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InstanceSpec is the desired state of an Instance.
// +kubebuilder:validation:XValidation:rule=`(has(self.session) ? self.session : "") == (has(oldSelf.session) ? oldSelf.session : "")`,message="session is immutable; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="has(self.runtime) == has(oldSelf.runtime) && (!has(self.runtime) || self.runtime.type == oldSelf.runtime.type && has(self.runtime.tmux) == has(oldSelf.runtime.tmux) && (!has(self.runtime.tmux) || self.runtime.tmux == oldSelf.runtime.tmux) && has(self.runtime.docker) == has(oldSelf.runtime.docker) && (!has(self.runtime.docker) || self.runtime.docker == oldSelf.runtime.docker))",message="runtime is immutable, except for the fields of pod; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="!has(self.state) || self.state != 'OnDemand'",message="only LanguageServers support the state OnDemand; use Running or Stopped"
// +kubebuilder:validation:XValidation:rule="!has(self.adoption) || self.adoption == 'Never' || has(self.runtime) && self.runtime.type in ['Tmux', 'Docker']",message="adoption requires the runtime Tmux or Docker; set spec.runtime, or set adoption to Never"
// +kubebuilder:validation:XValidation:rule="!has(self.deletionPolicy) || self.deletionPolicy != 'Orphan' || has(self.adoption) && self.adoption != 'Never'",message="deletionPolicy Orphan requires adoption; set spec.adoption to IfExists or Required"
// +kubebuilder:validation:XValidation:rule="!has(self.runtime) || !has(self.runtime.docker) || has(self.runtime.docker.image) || has(self.adoption) && self.adoption == 'Required'",message="spec.runtime.docker.image is required unless spec.adoption is Required"
// +kubebuilder:validation:XValidation:rule="!has(self.runtime) || !has(self.runtime.docker) || !has(self.runtime.docker.container) || has(self.adoption) && self.adoption != 'Never'",message="spec.runtime.docker.container names a container to adopt; set spec.adoption to IfExists or Required"
// +kubebuilder:validation:XValidation:rule="has(self.process.command) || has(self.runtime) && (has(self.runtime.pod) || has(self.runtime.docker) && has(self.runtime.docker.image))",fieldPath=".process.command",reason="FieldValueRequired",message="command is required unless runtime.pod.image or runtime.docker.image names an image whose entrypoint runs instead; set process.command"
type InstanceSpec struct {
	ProcessSpec `json:",inline"`

	// runtime selects where the session runs. Immutable, except for the fields of pod. Defaults to the runtime with which the manager was started.
	// +optional
	Runtime *InstanceRuntime `json:"runtime,omitempty"`

	// adoption states what Berth does with an existing session or container. With Never, Berth reports a conflict. With IfExists, Berth adopts the
	// session or container, and starts a new one if there is none. With Required, Berth adopts it, and never starts a new one. IfExists and Required
	// need the runtime Tmux or Docker. Defaults to Never.
	// +optional
	// +kubebuilder:default=Never
	Adoption AdoptionPolicy `json:"adoption,omitempty"`

	// deletionPolicy states what happens to the process when the object is deleted. With Terminate, Berth stops it. With Orphan, an adopted session or
	// container keeps running. Defaults to Orphan for an adopted session or container, and to Terminate for a process that Berth started.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// interruptToken requests an interrupt. Any new value sends one Ctrl-C to the terminal. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	InterruptToken string `json:"interruptToken,omitempty"`

	// displayName is a human-readable name of the session, at most 256 characters. It need not be a valid object name.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	DisplayName string `json:"displayName,omitempty"`

	// terminal describes the terminal in which the program is started.
	// +optional
	// +kubebuilder:default={}
	Terminal TerminalSpec `json:"terminal,omitzero"`

	// idleTimeoutSeconds is the time without new output or input, in seconds, after which Berth stops the program. The next use starts the program again:
	// berth attach, berth send, a new restartToken, or any other change of the spec. Berth stops an idle adopted session or container only if
	// deletionPolicy is Terminate. 0 to 31536000 (one year). 0: Berth never stops an idle program. Defaults to 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	IdleTimeoutSeconds *int32 `json:"idleTimeoutSeconds,omitempty"`
}

// AdoptionPolicy states what Berth does with an existing session or container.
// +kubebuilder:validation:Enum=Never;IfExists;Required
type AdoptionPolicy string

const (
	// AdoptionNever starts a new session or container. An existing one with the same name is a conflict.
	AdoptionNever AdoptionPolicy = "Never"
	// AdoptionIfExists adopts an existing session or container. If there is none, Berth starts a new one.
	AdoptionIfExists AdoptionPolicy = "IfExists"
	// AdoptionRequired adopts an existing session or container, and never starts a new one.
	AdoptionRequired AdoptionPolicy = "Required"
)

// DeletionPolicy states what happens to a process when its object is deleted.
// +kubebuilder:validation:Enum=Terminate;Orphan
type DeletionPolicy string

const (
	// DeletionTerminate stops the process.
	DeletionTerminate DeletionPolicy = "Terminate"
	// DeletionOrphan leaves an adopted session or container running.
	DeletionOrphan DeletionPolicy = "Orphan"
)

// TerminalSpec describes a terminal. columns and rows are its initial size; berth attach changes the size to that of the window of the client.
type TerminalSpec struct {
	// columns is the width in characters. 1 to 1000. Defaults to 120.
	// +optional
	// +kubebuilder:default=120
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Columns *int32 `json:"columns,omitempty"`

	// rows is the height in lines. 1 to 1000. Defaults to 40.
	// +optional
	// +kubebuilder:default=40
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Rows *int32 `json:"rows,omitempty"`

	// awaitingInput states how Berth recognizes from the content of the terminal that the program waits for an answer.
	// +optional
	AwaitingInput AwaitingInputSpec `json:"awaitingInput,omitzero"`
}

// AwaitingInputSpec states how Berth recognizes that a program waits for an answer.
type AwaitingInputSpec struct {
	// patterns are regular expressions (RE2) that match a screen on which the program waits for an answer. Berth matches them against the last 20 lines
	// of the terminal once its content has not changed for two seconds, and each second while it changes; then lines that have just changed do not
	// count. Spaces at the end of lines and empty lines at the end of the text are removed,
	// so $ matches at the cursor. At most 16 patterns of at most 256 characters. If the list is not empty, only these patterns decide. Empty: Berth
	// checks how the program reads the terminal, if the runtime reports that, and uses built-in patterns for common coding agents, menus and passwords.
	// All patterns together may compile to at most 2,048 instructions; the condition AwaitingInput reports patterns that exceed this limit. If these
	// lines have more than 2,047 characters, large patterns may be matched only against the last of these lines.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="self.contains('{') || ''.matches(self) || !''.matches(self)",message="must be a valid regular expression (RE2)"
	// +listType=atomic
	Patterns []string `json:"patterns,omitempty"`
}

// InstanceStatus is the observed state of an Instance.
type InstanceStatus struct {
	ProcessStatus `json:",inline"`

	// attachCommand is the command that attaches to the terminal of the session.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	AttachCommand string `json:"attachCommand,omitempty"`

	// sessionID identifies the conversation and stays the same for as long as the Instance exists. The program gets it as the environment variable
	// SESSION_ID.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SessionID string `json:"sessionID,omitempty"`

	// observedInterruptToken is the last interruptToken that Berth acted on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedInterruptToken string `json:"observedInterruptToken,omitempty"`

	// agent is what the program of the running incarnation does, as far as Berth knows: what the hooks of a coding agent report (berth hook) and, if they
	// report nothing, whether the terminal shows a question. Unset while no program is running, and while nothing is known.
	// +optional
	Agent *AgentStatus `json:"agent,omitempty"`

	// lastActivityTime is when the terminal last had new output or input through Berth, or when the program was started, whichever was last. Berth
	// writes it at most every 30 seconds. It has whole seconds. Other times in the status have the type MicroTime, which cannot decode a time without
	// microseconds; with that type, clients could not read Instances that are already stored.
	// +optional
	LastActivityTime *metav1.Time `json:"lastActivityTime,omitempty"`
}

// AgentState is what a coding agent does.
// +kubebuilder:validation:Enum=Working;Waiting;Done;Failed
type AgentState string

const (
	// AgentWorking means that the agent works on a request.
	AgentWorking AgentState = "Working"
	// AgentWaiting means that the agent waits for an answer to a question.
	AgentWaiting AgentState = "Waiting"
	// AgentDone means that the agent has finished its turn, and waits for its next request.
	AgentDone AgentState = "Done"
	// AgentFailed means that the agent has ended its turn because of an error.
	AgentFailed AgentState = "Failed"
)

// AgentSource is how Berth knows the state of a coding agent.
// +kubebuilder:validation:Enum=Hook;Terminal;Screen
type AgentSource string

const (
	// AgentSourceHook means that a hook of the agent reported the state.
	AgentSourceHook AgentSource = "Hook"
	// AgentSourceTerminal means that the program told its terminal, for example with the title of its window or a notification.
	AgentSourceTerminal AgentSource = "Terminal"
	// AgentSourceScreen means that Berth derived the state from the terminal: from what it shows, and from how the program reads it.
	AgentSourceScreen AgentSource = "Screen"
)

// AgentStatus is what the program of an incarnation does.
type AgentStatus struct {
	// incarnation is the number of the incarnation that the state belongs to.
	// +required
	Incarnation int64 `json:"incarnation"`

	// state is Working, Waiting, Done or Failed. Unset if only sessionID is known. More values may be added; clients must expect unknown values.
	// +optional
	State AgentState `json:"state,omitempty"`

	// question is the kind of the question that the agent waits for, such as permission, password or Codex. It never contains text of the question. Set
	// only with the state Waiting.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Question string `json:"question,omitempty"`

	// since is when the state was first known.
	// +optional
	Since *metav1.MicroTime `json:"since,omitempty"`

	// sessionID is the ID that the agent itself uses for its conversation, as its hooks report it. It can differ from status.sessionID.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	SessionID string `json:"sessionID,omitempty"`

	// source is how Berth knows the state: Hook (a hook of the agent reported it), Terminal (the program told its terminal, for example with the title of its
	// window or a notification) or Screen (the terminal shows a question). Set together with state. More values may be added; clients must expect unknown values.
	// +optional
	Source AgentSource `json:"source,omitempty"`
}

// Instance is a session of a coding agent: a program in a terminal that keeps running while no client is attached.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=inst
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Status of the condition Ready"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Reason of the condition Ready"
// +kubebuilder:printcolumn:name="Waiting",type=string,JSONPath=`.status.conditions[?(@.type=="AwaitingInput")].status`,description="Status of AwaitingInput"
// +kubebuilder:printcolumn:name="Attach",type=string,JSONPath=`.status.attachCommand`,description="Command that attaches to the terminal"
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restartCount`,description="Number of restarts"
// +kubebuilder:printcolumn:name="Runtime",type=string,JSONPath=`.spec.runtime.type`,description="Runtime in the spec; empty: default of the manager",priority=1
// +kubebuilder:printcolumn:name="Session",type=string,JSONPath=`.spec.session`,description="Session that groups objects",priority=1
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.hostName`,description="Host that manages the process",priority=1
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.process.node`,description="Machine or cluster node on which the process runs",priority=1
// +kubebuilder:printcolumn:name="PID",type=integer,JSONPath=`.status.process.pid`,description="Process ID of the program",priority=1
// +kubebuilder:printcolumn:name="Active",type=date,JSONPath=`.status.lastActivityTime`,description="Time since the last activity",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:selectablefield:JSONPath=`.spec.runtime.type`
// +kubebuilder:selectablefield:JSONPath=`.spec.session`
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
type Instance struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata that all Kubernetes objects have.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec InstanceSpec `json:"spec"`

	// status is the observed state. Only Berth writes it.
	// +optional
	Status InstanceStatus `json:"status,omitempty"`
}

// GetProcessSpec returns the part of the spec that all process kinds share.
func (i *Instance) GetProcessSpec() *ProcessSpec { return &i.Spec.ProcessSpec }

// GetProcessStatus returns the part of the status that all process kinds share.
func (i *Instance) GetProcessStatus() *ProcessStatus { return &i.Status.ProcessStatus }

// InstanceList is a list of Instances.
// +kubebuilder:object:root=true
type InstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Instance `json:"items"`
}
