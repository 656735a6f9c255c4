// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// LanguageServerSpec is the desired state of a LanguageServer.
// +kubebuilder:validation:XValidation:rule=`(has(self.session) ? self.session : "") == (has(oldSelf.session) ? oldSelf.session : "")`,message="session is immutable; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="has(self.runtime) == has(oldSelf.runtime) && (!has(self.runtime) || self.runtime.type == oldSelf.runtime.type)",message="runtime is immutable, except for the fields of pod; delete and recreate the object"
// +kubebuilder:validation:XValidation:rule="has(self.instanceRef) == has(oldSelf.instanceRef) && (!has(self.instanceRef) || self.instanceRef == oldSelf.instanceRef)",message="instanceRef is immutable; delete and recreate the object"
type LanguageServerSpec struct {
	ProcessSpec `json:",inline"`

	// runtime is where the process runs. Immutable, except for the fields of pod. Defaults to the runtime with which the manager was started.
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

	// initializationOptions is an object that Berth passes to the server in initialize, unchanged. A change restarts the server. At most 256 keys.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=256
	InitializationOptions *runtime.RawExtension `json:"initializationOptions,omitempty"`

	// settings are the configuration that the server receives when it requests it, by section. A change restarts the server. At most 256 sections.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:MaxProperties=256
	Settings *runtime.RawExtension `json:"settings,omitempty"`

	// limits are the limits for the messages, documents and requests of clients and of the server.
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

	// startupTimeoutSeconds is the time that the server may take to answer initialize, in seconds. If the server reports progress, it may take up to six
	// times as long. 1 to 3600. Defaults to 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	StartupTimeoutSeconds *int32 `json:"startupTimeoutSeconds,omitempty"`

	// whileIndexing is what happens to requests while the server indexes its workspace: Forward passes them on, Hold holds them until the server has
	// finished. Defaults to Forward.
	// +optional
	// +kubebuilder:default=Forward
	WhileIndexing WhileIndexing `json:"whileIndexing,omitempty"`

	// replayMethods lists methods, in addition to the read methods that Berth knows, that Berth may send to the server a second time after a crash. List
	// only methods that change nothing. At most 32 methods of at most 128 characters.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[$a-zA-Z][-$/._a-zA-Z0-9]*$`
	// +listType=set
	ReplayMethods []string `json:"replayMethods,omitempty"`

	// idleTimeoutSeconds is, with the state OnDemand, the time without a client after which the server sleeps, in seconds. 1 to 604800 (one week).
	// Defaults to 1800.
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
	// directory in which the server is started unless spec.process.workingDir is set.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.all(folder, folder.startsWith('/'))",message="every folder must be an absolute path"
	// +listType=set
	Folders []string `json:"folders"`
}

// WhileIndexing is what happens to requests while the server indexes its workspace.
// +kubebuilder:validation:Enum=Forward;Hold
type WhileIndexing string

const (
	// IndexingForward passes requests on; the answers may be incomplete.
	IndexingForward WhileIndexing = "Forward"
	// IndexingHold holds requests until the server has indexed its workspace.
	IndexingHold WhileIndexing = "Hold"
)

// LanguageServerLimits limits the resources that one language server and its clients may use.
type LanguageServerLimits struct {
	// headerBytes is the maximum size of a message header, in bytes. 256 to 65536. Defaults to 8192.
	// +optional
	// +kubebuilder:default=8192
	// +kubebuilder:validation:Minimum=256
	// +kubebuilder:validation:Maximum=65536
	HeaderBytes *int32 `json:"headerBytes,omitempty"`

	// messageBytes is the maximum size of a message from the server, in bytes. 4096 to 1073741824 (1 GiB). Defaults to 67108864 (64 MiB).
	// +optional
	// +kubebuilder:default=67108864
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	MessageBytes *int32 `json:"messageBytes,omitempty"`

	// clientMessageBytes is the maximum size of a message from a client, in bytes. 4096 to 1073741824 (1 GiB). Defaults to 33554432 (32 MiB).
	// +optional
	// +kubebuilder:default=33554432
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	ClientMessageBytes *int32 `json:"clientMessageBytes,omitempty"`

	// clients is the maximum number of simultaneous clients. 1 to 1024. Defaults to 64.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	Clients *int32 `json:"clients,omitempty"`

	// openDocuments is the maximum number of documents that one client may have open. 1 to 100000. Defaults to 1000.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	OpenDocuments *int32 `json:"openDocuments,omitempty"`

	// documentBytes is the maximum total size of the text of all documents that one client has open, in bytes. 4096 to 1073741824 (1 GiB). Defaults to
	// 67108864 (64 MiB).
	// +optional
	// +kubebuilder:default=67108864
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	DocumentBytes *int32 `json:"documentBytes,omitempty"`

	// inFlight is the maximum number of unanswered requests of one client at the server. 1 to 10000. Defaults to 64.
	// +optional
	// +kubebuilder:default=64
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	InFlight *int32 `json:"inFlight,omitempty"`

	// queueBytes is the maximum amount of data that may wait for one client to read it, in bytes. A client with more unread data is disconnected. 4096
	// to 1073741824 (1 GiB). Defaults to 8388608 (8 MiB).
	// +optional
	// +kubebuilder:default=8388608
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	QueueBytes *int32 `json:"queueBytes,omitempty"`

	// requestTimeoutSeconds is the time after which Berth cancels a request that has no answer, in seconds. 1 to 3600. Defaults to 120.
	// +optional
	// +kubebuilder:default=120
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	RequestTimeoutSeconds *int32 `json:"requestTimeoutSeconds,omitempty"`

	// memoryBytes is the maximum amount of memory of the server and its child processes, in bytes. Above this limit Berth restarts the server. 16777216
	// (16 MiB) to 1099511627776 (1 TiB). Unset: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=16777216
	// +kubebuilder:validation:Maximum=1099511627776
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`
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

	// requests is the maximum number of requests that wait. 1 to 10000. Defaults to 256.
	// +optional
	// +kubebuilder:default=256
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Requests *int32 `json:"requests,omitempty"`

	// bytes is the maximum total size of the requests that wait, in bytes. 4096 to 1073741824 (1 GiB). Defaults to 16777216 (16 MiB).
	// +optional
	// +kubebuilder:default=16777216
	// +kubebuilder:validation:Minimum=4096
	// +kubebuilder:validation:Maximum=1073741824
	Bytes *int32 `json:"bytes,omitempty"`
}

// LanguageServerHealth states when Berth treats a running server as failed.
type LanguageServerHealth struct {
	// pingAfterSeconds is the time without a message after which Berth pings a server that was ready, in seconds. 1 to 3600. Defaults to 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	PingAfterSeconds *int32 `json:"pingAfterSeconds,omitempty"`

	// hangTimeoutSeconds is the time that the server may take to answer the ping, in seconds; five times as long while the server uses the CPU. 1 to
	// 3600. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	HangTimeoutSeconds *int32 `json:"hangTimeoutSeconds,omitempty"`

	// canary is a request that Berth sends regularly to detect a server that answers but is not usable. Unset: no request.
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

	// params is an object with the parameters of the request, passed unchanged. At most 64 keys.
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
