// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// LanguageServerSpec says what language server is wanted.
// +kubebuilder:validation:XValidation:rule=`(has(self.session) ? self.session : "") == (has(oldSelf.session) ? oldSelf.session : "")`,message="session is immutable: delete the object and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.runtime) == has(oldSelf.runtime) && (!has(self.runtime) || self.runtime.type == oldSelf.runtime.type)",message="runtime is immutable, but for what is in pod: delete the object and create it anew"
// +kubebuilder:validation:XValidation:rule="has(self.instanceRef) == has(oldSelf.instanceRef) && (!has(self.instanceRef) || self.instanceRef == oldSelf.instanceRef)",message="instanceRef is immutable: delete the object and create it anew"
type LanguageServerSpec struct {
	ProcessSpec `json:",inline"`

	// Where the process runs. Immutable, but for what is in pod. Defaults to the runtime that the manager was started with.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`

	// The id of the language as the Language Server Protocol has it, such as go, python or typescript.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-+.#_a-zA-Z0-9]*)$`
	Language string `json:"language"`

	// What the server works on.
	// +required
	Workspace Workspace `json:"workspace"`

	// Passed to the server in initialize, as it is. A change restarts the server.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=256
	InitializationOptions *runtime.RawExtension `json:"initializationOptions,omitempty"`

	// What the server is told when it asks for its configuration, by section. A change restarts the server.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=256
	Settings *runtime.RawExtension `json:"settings,omitempty"`

	// The bounds of what clients and the server may send, keep open and ask for.
	// +optional
	// +kubebuilder:default={}
	Limits LanguageServerLimits `json:"limits,omitzero"`

	// What waits while the server restarts, for each client.
	// +optional
	// +kubebuilder:default={}
	Hold HoldPolicy `json:"hold,omitzero"`

	// When a server that runs is given up and restarted.
	// +optional
	// +kubebuilder:default={}
	Health LanguageServerHealth `json:"health,omitzero"`

	// Seconds that the server may take to answer initialize; progress that it reports prolongs them up to six times. Defaults to 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	StartupTimeoutSeconds *int32 `json:"startupTimeoutSeconds,omitempty"`

	// What becomes of requests while the server still reads its workspace: Forward passes them on, Hold keeps them until it has read it.
	// Defaults to Forward.
	// +optional
	// +kubebuilder:default=Forward
	WhileIndexing WhileIndexing `json:"whileIndexing,omitempty"`

	// Methods, beyond the reads that Berth knows, that may be sent to the server a second time after a crash. Name only what changes nothing.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[$a-zA-Z][-$/._a-zA-Z0-9]*$`
	// +listType=set
	ReplayMethods []string `json:"replayMethods,omitempty"`

	// With state OnDemand: seconds without a client after which the server is put to sleep. Defaults to 1800.
	// +optional
	// +kubebuilder:default=1800
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	IdleTimeoutSeconds *int32 `json:"idleTimeoutSeconds,omitempty"`

	// The Instance that this server belongs to: when that is deleted, so is this. Immutable.
	// +optional
	InstanceRef *LocalReference `json:"instanceRef,omitempty"`
}

// Workspace is what a language server works on.
type Workspace struct {
	// Directories of the workspace, absolute. The first is its root, and the directory that the server is started in unless
	// spec.process.workingDir says another.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.all(folder, folder.startsWith('/'))",message="every folder must be an absolute path"
	// +listType=set
	Folders []string `json:"folders"`
}

// WhileIndexing says what becomes of requests before the server has read its workspace.
// +kubebuilder:validation:Enum=Forward;Hold
type WhileIndexing string

const (
	// IndexingForward passes them on; the answers may be incomplete.
	IndexingForward WhileIndexing = "Forward"
	// IndexingHold keeps them until the server has read its workspace.
	IndexingHold WhileIndexing = "Hold"
)

// LanguageServerLimits bound what one language server and its clients may take.
type LanguageServerLimits struct {
	// Bytes of the header of a message. Defaults to 8192.
	// +optional
	// +kubebuilder:default=8192
	// +kubebuilder:validation:Minimum=256
	// +kubebuilder:validation:Maximum=65536
	HeaderBytes *int32 `json:"headerBytes,omitempty"`

	// Bytes of a message from the server. Defaults to 67108864 (64 MiB).
	// +optional
	// +kubebuilder:default=67108864
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	MessageBytes *int32 `json:"messageBytes,omitempty"`

	// Bytes of a message from a client. Defaults to 33554432 (32 MiB).
	// +optional
	// +kubebuilder:default=33554432
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	ClientMessageBytes *int32 `json:"clientMessageBytes,omitempty"`

	// Clients at once. Defaults to 64.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	Clients *int32 `json:"clients,omitempty"`

	// Documents that one client may have open. Defaults to 1000.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	OpenDocuments *int32 `json:"openDocuments,omitempty"`

	// Bytes of the text of all documents that one client has open. Defaults to 67108864 (64 MiB).
	// +optional
	// +kubebuilder:default=67108864
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	DocumentBytes *int32 `json:"documentBytes,omitempty"`

	// Requests of one client that the server may owe an answer at once. Defaults to 64.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	InFlight *int32 `json:"inFlight,omitempty"`

	// Bytes that may wait to be read by one client; one that lets more pile up is disconnected. Defaults to 8388608 (8 MiB).
	// +optional
	// +kubebuilder:default=8388608
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	QueueBytes *int32 `json:"queueBytes,omitempty"`

	// Seconds after which a request that has no answer is cancelled. Defaults to 120.
	// +optional
	// +kubebuilder:default=120
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	RequestTimeoutSeconds *int32 `json:"requestTimeoutSeconds,omitempty"`

	// Bytes of memory of the server and all that it has started, beyond which it is restarted. Unset: not watched.
	// +optional
	// +kubebuilder:validation:Minimum=16777216
	// +kubebuilder:validation:Maximum=1099511627776
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`
}

// HoldPolicy bounds the requests of one client that wait while the server restarts.
type HoldPolicy struct {
	// Seconds that a request waits before it fails with an error that says when to try again. 0: nothing waits. Defaults to 30.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=600
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// How many may wait. Defaults to 256.
	// +optional
	// +kubebuilder:default=256
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Requests *int32 `json:"requests,omitempty"`

	// How many bytes they may have together. Defaults to 16777216 (16 MiB).
	// +optional
	// +kubebuilder:default=16777216
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	Bytes *int32 `json:"bytes,omitempty"`
}

// LanguageServerHealth says when a server that runs is given up.
type LanguageServerHealth struct {
	// Seconds of silence after which a server that was ready is asked whether it still answers. Defaults to 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	PingAfterSeconds *int32 `json:"pingAfterSeconds,omitempty"`

	// Seconds that the server may owe that answer; five times as long while it computes. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	HangTimeoutSeconds *int32 `json:"hangTimeoutSeconds,omitempty"`

	// A request that is made regularly and whose answer has to hold something, to notice a server that answers without being of use. Unset: none.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
}

// Canary is a request whose answer has to hold something: neither null nor empty.
type Canary struct {
	// The method, such as workspace/symbol. It must change nothing.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[$a-zA-Z][-$/._a-zA-Z0-9]*$`
	Method string `json:"method"`

	// Its parameters, passed as they are.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=64
	Params *runtime.RawExtension `json:"params,omitempty"`

	// Seconds between two of them. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	PeriodSeconds *int32 `json:"periodSeconds,omitempty"`
}

// LanguageServer is a language server that editors and agents share, at an address that stays while the server behind it restarts.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=lsv
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Language",type=string,JSONPath=`.spec.language`
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.status.serverInfo.name`
// +kubebuilder:printcolumn:name="Clients",type=integer,JSONPath=`.status.clients`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restartCount`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`,priority=1
// +kubebuilder:printcolumn:name="Session",type=string,JSONPath=`.spec.session`,priority=1
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.hostName`,priority=1
// +kubebuilder:printcolumn:name="PID",type=integer,JSONPath=`.status.process.pid`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.session`
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
type LanguageServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is wanted.
	// +required
	Spec LanguageServerSpec `json:"spec"`

	// What is; written by Berth alone.
	// +optional
	Status LanguageServerStatus `json:"status,omitempty"`
}

// GetProcessSpec gives the part of the spec that all process kinds share.
func (l *LanguageServer) GetProcessSpec() *ProcessSpec { return &l.Spec.ProcessSpec }

// GetProcessStatus gives the part of the status that all process kinds share.
func (l *LanguageServer) GetProcessStatus() *ProcessStatus { return &l.Status.ProcessStatus }

// LanguageServerList is a list of LanguageServers.
// +kubebuilder:object:root=true
type LanguageServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LanguageServer `json:"items"`
}
