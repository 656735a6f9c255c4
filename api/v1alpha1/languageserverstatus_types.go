// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LanguageServerStatus is the observed state of a LanguageServer.
type LanguageServerStatus struct {
	ProcessStatus `json:",inline"`

	// endpoint is the address to which clients connect: unix:// and the path of a socket or, for a server in a Pod, https:// and an address in the
	// cluster. In a Pod, clients need the token from the Secret that has the same name as the Service in that address. The endpoint stays the same, and
	// connections stay open, while the server restarts. berth lsp connect NAME connects an editor to the server.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Endpoint string `json:"endpoint,omitempty"`

	// serverInfo is the name and version that the server reports.
	// +optional
	ServerInfo *ServerInfo `json:"serverInfo,omitempty"`

	// clients is the number of connected clients. Berth updates clients, openDocuments, heldRequests, oldestRequestSeconds and memory at least
	// every few seconds while they change.
	// +optional
	// +kubebuilder:default=0
	Clients int32 `json:"clients,omitempty"`

	// openDocuments is the number of documents that clients have open. A document that several clients have open counts once.
	// +optional
	OpenDocuments int32 `json:"openDocuments,omitempty"`

	// heldRequests is the number of requests that wait until the server is available again.
	// +optional
	HeldRequests int32 `json:"heldRequests,omitempty"`

	// oldestRequestSeconds is the age of the oldest unanswered request, in seconds.
	// +optional
	OldestRequestSeconds int32 `json:"oldestRequestSeconds,omitempty"`

	// memory is the memory of the server and its child processes, rounded to a multiple of 16Mi.
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`

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

// Restart describes one restart of a language server.
type Restart struct {
	// incarnation is the number of the incarnation that was started.
	// +required
	Incarnation int64 `json:"incarnation"`

	// time is when the previous incarnation exited, or when its stop was requested.
	// +required
	Time metav1.MicroTime `json:"time"`

	// reason is why the server was restarted: Requested, SpecChanged, Crashed, Lost, Hung, ProtocolError, MemoryLimit, CanaryFailed, FolderReplaced
	// or Unhealthy.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// tookMilliseconds is the duration from time until the new incarnation served requests, in milliseconds. Unset until then.
	// +optional
	TookMilliseconds *int64 `json:"tookMilliseconds,omitempty"`

	// message contains details of the reason.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
