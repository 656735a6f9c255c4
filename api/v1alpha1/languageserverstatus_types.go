// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LanguageServerStatus is what is known of a language server.
type LanguageServerStatus struct {
	ProcessStatus `json:",inline"`

	// Where clients connect: unix:// and the path of a socket, or https:// and an address in the cluster, with the token of the Secret of the same name.
	// It stays the same, and connections stay open, while the server restarts. berth lsp connect NAME gives an editor the other end.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Endpoint string `json:"endpoint,omitempty"`

	// What the server says that it is.
	// +optional
	ServerInfo *ServerInfo `json:"serverInfo,omitempty"`

	// Clients that are connected. The counts below are at most a few seconds old while something changes.
	// +optional
	// +kubebuilder:default=0
	Clients int32 `json:"clients,omitempty"`

	// Documents that clients have open, each counted once.
	// +optional
	OpenDocuments int32 `json:"openDocuments,omitempty"`

	// Requests that wait for the server to be back.
	// +optional
	HeldRequests int32 `json:"heldRequests,omitempty"`

	// How long the oldest request has no answer, in seconds.
	// +optional
	OldestRequestSeconds int32 `json:"oldestRequestSeconds,omitempty"`

	// Memory of the server and all that it has started, in bytes, in steps of 16 MiB.
	// +optional
	MemoryBytes int64 `json:"memoryBytes,omitempty"`

	// The last ten restarts, oldest first.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	RecentRestarts []Restart `json:"recentRestarts,omitempty"`
}

// ServerInfo is what a language server says of itself.
type ServerInfo struct {
	// Its name.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`

	// Its version.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`
}

// Restart is one restart: which incarnation it began, why, and how long nobody was served.
type Restart struct {
	// The incarnation that was started.
	// +required
	Incarnation int64 `json:"incarnation"`

	// When the one before was lost, or was asked to end.
	// +required
	Time metav1.MicroTime `json:"time"`

	// Why: Requested, SpecChanged, Crashed, Hung, ProtocolError, MemoryLimit, CanaryFailed or Unhealthy.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// Milliseconds from then until the new one served. Unset while it does not.
	// +optional
	TookMilliseconds *int64 `json:"tookMilliseconds,omitempty"`

	// What there is to say about it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
