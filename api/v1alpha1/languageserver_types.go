// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// LanguageServerSpec is the desired state of a LanguageServer.
// +kubebuilder:validation:XValidation:rule=`(has(self.session) ? self.session : "") == (has(oldSelf.session) ? oldSelf.session : "")`,message="session is immutable; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="has(self.runtime) == has(oldSelf.runtime) && (!has(self.runtime) || self.runtime.type == oldSelf.runtime.type)",message="runtime is immutable, except for the fields of pod; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="has(self.instanceRef) == has(oldSelf.instanceRef) && (!has(self.instanceRef) || self.instanceRef == oldSelf.instanceRef)",message="instanceRef is immutable; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="has(self.process.command)",fieldPath=".process.command",reason="FieldValueRequired",message="command is required, also in a Pod, because the multiplexer of a LanguageServer starts the server; set process.command"
// +kubebuilder:validation:XValidation:rule="!has(self.process.resumeCommand)",fieldPath=".process.resumeCommand",reason="FieldValueForbidden",message="only Instances support resumeCommand; remove process.resumeCommand"
type LanguageServerSpec struct {
	ProcessSpec `json:",inline"`

	// runtime selects where the process runs. Immutable, except for the fields of pod. Defaults to the runtime with which the manager was started.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`

	// language is the language identifier of the Language Server Protocol, such as go, python or typescript. At most 64 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-+.#_a-zA-Z0-9]*)$`
	Language string `json:"language"`

	// workspace contains the directories that the server analyzes.
	// +required
	Workspace Workspace `json:"workspace"`

	// initializationOptions is an object that Berth passes to the server, unchanged, in the initialize request. A change restarts the server. At most
	// 256 keys.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=256
	InitializationOptions *runtime.RawExtension `json:"initializationOptions,omitempty"`

	// settings are the configuration of the server, by section. The server receives them after it has answered initialize, and whenever it requests its
	// configuration. A change restarts the server. At most 256 sections.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=256
	Settings *runtime.RawExtension `json:"settings,omitempty"`

	// limits restrict the messages, documents and requests of clients, and the messages and the memory of the server.
	// +optional
	// +kubebuilder:default={}
	Limits LanguageServerLimits `json:"limits,omitzero"`

	// hold limits the requests of each client that wait while the server restarts.
	// +optional
	// +kubebuilder:default={}
	Hold HoldPolicy `json:"hold,omitzero"`

	// health states when Berth treats a running server as failed and restarts it.
	// +optional
	// +kubebuilder:default={}
	Health LanguageServerHealth `json:"health,omitzero"`

	// startupTimeoutSeconds is the time that the server may take to answer initialize, in seconds. A server that sends other messages in the meantime
	// may take up to six times as long. 1 to 3600. Defaults to 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	StartupTimeoutSeconds *int32 `json:"startupTimeoutSeconds,omitempty"`

	// whileIndexing states what happens to requests while the server indexes its workspace: Forward forwards them immediately, Hold holds them until the
	// server has finished. Defaults to Forward.
	// +optional
	// +kubebuilder:default=Forward
	WhileIndexing WhileIndexing `json:"whileIndexing,omitempty"`

	// replayMethods lists additional methods that Berth may send to the server again after a crash. Berth already knows the read methods of the
	// protocol. List only methods that change nothing. At most 32 methods of at most 128 characters.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[$a-zA-Z][-$/._a-zA-Z0-9]*$`
	// +listType=set
	ReplayMethods []string `json:"replayMethods,omitempty"`

	// idleTimeoutSeconds is the time without a client, in seconds, after which Berth stops a server with the state OnDemand until a client connects. It
	// has no effect with other states. 1 to 604800 (one week). Defaults to 1800.
	// +optional
	// +kubebuilder:default=1800
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	IdleTimeoutSeconds *int32 `json:"idleTimeoutSeconds,omitempty"`

	// instanceRef names the Instance that owns this server: deleting the Instance deletes the server. Immutable.
	// +optional
	InstanceRef *LocalReference `json:"instanceRef,omitempty"`
}

// Workspace contains the directories that a language server analyzes.
type Workspace struct {
	// folders are the directories of the workspace, 1 to 16 absolute paths of at most 4096 characters. The first is the root of the workspace, and the
	// directory in which the server is started unless spec.process.workingDir is set. A change of the other folders restarts the server only if the server
	// cannot change its folders while it runs, or if updatePolicy is OnRestart.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.all(folder, folder.startsWith('/'))",message="every folder must be an absolute path"
	// +listType=set
	Folders []string `json:"folders"`
}

// WhileIndexing states what happens to requests while the server indexes its workspace.
// +kubebuilder:validation:Enum=Forward;Hold
type WhileIndexing string

const (
	// IndexingForward forwards requests immediately; the answers may be incomplete.
	IndexingForward WhileIndexing = "Forward"
	// IndexingHold holds requests until the server has indexed its workspace.
	IndexingHold WhileIndexing = "Hold"
)

// LanguageServerLimits limits the resources that one language server and its clients may use.
type LanguageServerLimits struct {
	// maxHeaderSize is the maximum size of a message header, such as 8Ki. 256 bytes to 64Ki. Defaults to 8Ki.
	// +optional
	// +kubebuilder:default="8Ki"
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][-+]?[0-9.]{3}') && quantity(string(self)).compareTo(quantity('256')) >= 0 && quantity(string(self)).compareTo(quantity('64Ki')) <= 0",message="must be between 256 and 64Ki"
	MaxHeaderSize *resource.Quantity `json:"maxHeaderSize,omitempty"`

	// maxMessageSize is the maximum size of a message from the server. 4Ki to 1Gi. Defaults to 64Mi.
	// +optional
	// +kubebuilder:default="64Mi"
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][-+]?[0-9.]{3}') && quantity(string(self)).compareTo(quantity('4Ki')) >= 0 && quantity(string(self)).compareTo(quantity('1Gi')) <= 0",message="must be between 4Ki and 1Gi"
	MaxMessageSize *resource.Quantity `json:"maxMessageSize,omitempty"`

	// maxClientMessageSize is the maximum size of a message from a client. 4Ki to 1Gi. Defaults to 32Mi.
	// +optional
	// +kubebuilder:default="32Mi"
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][-+]?[0-9.]{3}') && quantity(string(self)).compareTo(quantity('4Ki')) >= 0 && quantity(string(self)).compareTo(quantity('1Gi')) <= 0",message="must be between 4Ki and 1Gi"
	MaxClientMessageSize *resource.Quantity `json:"maxClientMessageSize,omitempty"`

	// maxClients is the maximum number of simultaneous clients. 1 to 1024. Defaults to 64.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	MaxClients *int32 `json:"maxClients,omitempty"`

	// maxOpenDocuments is the maximum number of documents that one client may have open. 1 to 100000. Defaults to 1000.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxOpenDocuments *int32 `json:"maxOpenDocuments,omitempty"`

	// maxDocumentsSize is the maximum total size of the text of all documents that one client has open. 4Ki to 1Gi. Defaults to 64Mi.
	// +optional
	// +kubebuilder:default="64Mi"
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][-+]?[0-9.]{3}') && quantity(string(self)).compareTo(quantity('4Ki')) >= 0 && quantity(string(self)).compareTo(quantity('1Gi')) <= 0",message="must be between 4Ki and 1Gi"
	MaxDocumentsSize *resource.Quantity `json:"maxDocumentsSize,omitempty"`

	// maxInFlight is the maximum number of requests of one client that the server has not answered yet. 1 to 10000. Defaults to 64.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxInFlight *int32 `json:"maxInFlight,omitempty"`

	// maxQueueSize is the maximum amount of data that one client has not read yet. Berth disconnects a client that exceeds it. 4Ki to 1Gi. Defaults to 8Mi.
	// +optional
	// +kubebuilder:default="8Mi"
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][-+]?[0-9.]{3}') && quantity(string(self)).compareTo(quantity('4Ki')) >= 0 && quantity(string(self)).compareTo(quantity('1Gi')) <= 0",message="must be between 4Ki and 1Gi"
	MaxQueueSize *resource.Quantity `json:"maxQueueSize,omitempty"`

	// requestTimeoutSeconds is the time after which Berth cancels a request that the server has not answered, in seconds. 1 to 3600. Defaults to 120.
	// +optional
	// +kubebuilder:default=120
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	RequestTimeoutSeconds *int32 `json:"requestTimeoutSeconds,omitempty"`

	// maxMemory is the maximum amount of memory of the server and its child processes, such as 4Gi. Berth restarts a server that exceeds it. 16Mi to 1Ti.
	// Unset: no limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][-+]?[0-9.]{3}') && quantity(string(self)).compareTo(quantity('16Mi')) >= 0 && quantity(string(self)).compareTo(quantity('1Ti')) <= 0",message="must be between 16Mi and 1Ti"
	MaxMemory *resource.Quantity `json:"maxMemory,omitempty"`
}

// HoldPolicy limits the requests of one client that wait while the server restarts.
type HoldPolicy struct {
	// timeoutSeconds is how long a request waits, in seconds, before it fails with an error that states when to retry. 0 to 600. 0: no request waits.
	// Defaults to 30.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=600
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// maxRequests is the maximum number of requests that wait. 1 to 10000. Defaults to 256.
	// +optional
	// +kubebuilder:default=256
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxRequests *int32 `json:"maxRequests,omitempty"`

	// maxSize is the maximum total size of the requests that wait. 4Ki to 1Gi. Defaults to 16Mi.
	// +optional
	// +kubebuilder:default="16Mi"
	// +kubebuilder:validation:XValidation:rule="!string(self).matches('[eE][-+]?[0-9.]{3}') && quantity(string(self)).compareTo(quantity('4Ki')) >= 0 && quantity(string(self)).compareTo(quantity('1Gi')) <= 0",message="must be between 4Ki and 1Gi"
	MaxSize *resource.Quantity `json:"maxSize,omitempty"`
}

// LanguageServerHealth states when Berth treats a running server as failed.
type LanguageServerHealth struct {
	// pingAfterSeconds is how long a server that has finished indexing may send nothing before Berth pings it, in seconds; at most half of
	// hangTimeoutSeconds counts. 1 to 3600. Defaults to 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	PingAfterSeconds *int32 `json:"pingAfterSeconds,omitempty"`

	// hangTimeoutSeconds is how long a server with an unanswered request, such as the ping, may send nothing before Berth restarts it, in seconds. A
	// server that uses the CPU has five times as long. 1 to 3600. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	HangTimeoutSeconds *int32 `json:"hangTimeoutSeconds,omitempty"`

	// canary is a request that Berth sends regularly to detect a server that answers but is not usable. Unset: Berth sends no such request.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
}

// Canary is a request to which a healthy server returns an answer that is neither null nor empty.
type Canary struct {
	// method is the method of the request, such as workspace/symbol. It must not change anything. At most 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[$a-zA-Z][-$/._a-zA-Z0-9]*$`
	Method string `json:"method"`

	// params is an object with the parameters of the request, which Berth passes unchanged. At most 64 keys.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=64
	Params *runtime.RawExtension `json:"params,omitempty"`

	// periodSeconds is the time between two requests, in seconds. 1 to 86400. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	PeriodSeconds *int32 `json:"periodSeconds,omitempty"`
}

// LanguageServer is a language server that editors and agents share. Its address stays the same while the server restarts.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=lsv
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Status of the condition Ready"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Reason of the condition Ready"
// +kubebuilder:printcolumn:name="Language",type=string,JSONPath=`.spec.language`,description="Language identifier"
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.status.serverInfo.name`,description="Name that the server reports"
// +kubebuilder:printcolumn:name="Clients",type=integer,JSONPath=`.status.clients`,description="Number of connected clients"
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restartCount`,description="Number of restarts"
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`,description="Address for clients",priority=1
// +kubebuilder:printcolumn:name="Runtime",type=string,JSONPath=`.spec.runtime.type`,description="Runtime in the spec; empty: default of the manager",priority=1
// +kubebuilder:printcolumn:name="Session",type=string,JSONPath=`.spec.session`,description="Session that groups objects",priority=1
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.hostName`,description="Host that manages the process",priority=1
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.process.node`,description="Machine or cluster node on which the process runs",priority=1
// +kubebuilder:printcolumn:name="PID",type=integer,JSONPath=`.status.process.pid`,description="Process ID of the program",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:selectablefield:JSONPath=`.spec.instanceRef.name`
// +kubebuilder:selectablefield:JSONPath=`.spec.runtime.type`
// +kubebuilder:selectablefield:JSONPath=`.spec.session`
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
type LanguageServer struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata that all Kubernetes objects have.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec LanguageServerSpec `json:"spec"`

	// status is the observed state. Only Berth writes it.
	// +optional
	Status LanguageServerStatus `json:"status,omitempty"`
}

// GetProcessSpec returns the part of the spec that all process kinds share.
func (l *LanguageServer) GetProcessSpec() *ProcessSpec { return &l.Spec.ProcessSpec }

// GetProcessStatus returns the part of the status that all process kinds share.
func (l *LanguageServer) GetProcessStatus() *ProcessStatus { return &l.Status.ProcessStatus }

// LanguageServerList is a list of LanguageServers.
// +kubebuilder:object:root=true
type LanguageServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LanguageServer `json:"items"`
}
