// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LanguageServerStatus is the observed state of a LanguageServer.
type LanguageServerStatus struct {
	ProcessStatus `json:",inline"`

	// endpoint is where clients connect: unix:// and the path of a socket or, for a server in a Pod, https:// and an address in the cluster, with the
	// token in the Secret that has the same name as the Service in that address. The endpoint stays the same, and connections stay open, while the
	// server restarts. berth lsp connect NAME connects an editor to it.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Endpoint string `json:"endpoint,omitempty"`

	// serverInfo is the name and version that the server reports.
	// +optional
	ServerInfo *ServerInfo `json:"serverInfo,omitempty"`

	// clients is the number of connected clients. This count and those below are at most a few seconds old while they change.
	// +optional
	// +kubebuilder:default=0
	Clients int32 `json:"clients,omitempty"`

	// openDocuments is the number of documents that clients have open, each counted once.
	// +optional
	OpenDocuments int32 `json:"openDocuments,omitempty"`

	// heldRequests is the number of requests that wait until the server is available again.
	// +optional
	HeldRequests int32 `json:"heldRequests,omitempty"`

	// oldestRequestSeconds is the age of the oldest unanswered request, in seconds.
	// +optional
	OldestRequestSeconds int32 `json:"oldestRequestSeconds,omitempty"`

	// memoryBytes is the memory of the server and its child processes, in bytes, in steps of 16 MiB.
	// +optional
	MemoryBytes int64 `json:"memoryBytes,omitempty"`

	// recentRestarts are the last ten restarts, oldest first.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	RecentRestarts []Restart `json:"recentRestarts,omitempty"`
}

// ServerInfo is what a language server reports about itself.
type ServerInfo struct {
	// name is the name of the server.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`

	// version is the version of the server.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`
}

// Restart is one restart of a language server.
type Restart struct {
	// incarnation is the incarnation that was started.
	// +required
	Incarnation int64 `json:"incarnation"`

	// time is when the previous incarnation was lost, or was requested to stop.
	// +required
	Time metav1.MicroTime `json:"time"`

	// reason is why the server was restarted: Requested, SpecChanged, Crashed, Lost, Hung, ProtocolError, MemoryLimit, CanaryFailed or Unhealthy.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// tookMilliseconds is the duration from time until the new incarnation served, in milliseconds. Unset until it serves.
	// +optional
	TookMilliseconds *int64 `json:"tookMilliseconds,omitempty"`

	// message contains details.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
