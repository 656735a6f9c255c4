// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lsp

import (
	"time"

	"github.com/berth-dev/berth/internal/facts"
)

// Protocol is the version of the control protocol. A manager accepts this version and the previous one.
const Protocol = 1

// None is the phase of a multiplexer before the first start.
const None facts.Phase = "None"

// Reasons why a running server is unhealthy. They equal the condition reasons of the API.
const (
	ReasonHung          = "Hung"
	ReasonProtocolError = "ProtocolError"
	ReasonMemoryLimit   = "MemoryLimit"
	ReasonCanaryFailed  = "CanaryFailed"
	// ReasonQuarantined: a document or request is withheld from the server, because it was present at repeated crashes.
	ReasonQuarantined = "Quarantined"
	// ReasonCapabilityLost: a restarted server offers less than the one that clients know.
	ReasonCapabilityLost = "CapabilityMismatch"
)

// Report is the state of the multiplexer. It is sent on every change, at most ten times a second, except that the exit of the server and the need to restart it
// are sent at once.
type Report struct {
	Protocol int `json:"protocol"`
	// Number counts the reports of one multiplexer; 0 if it does not count them.
	Number int64 `json:"number,omitempty"`

	// Incarnation is the newest requested incarnation; 0 if there is none.
	Incarnation int64       `json:"incarnation"`
	Phase       facts.Phase `json:"phase"`
	PID         int64       `json:"pid,omitempty"`
	StartTicks  int64       `json:"startTicks,omitempty"`
	BootID      string      `json:"bootID,omitempty"`
	// StartedAt is when the server was executed.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// Exit is set in phase Exited; LeaderExit when the server has exited while other processes of its tree are alive.
	Exit       *facts.Exit       `json:"exit,omitempty"`
	LeaderExit *facts.Exit       `json:"leaderExit,omitempty"`
	StartError *facts.StartError `json:"startError,omitempty"`
	// StopSent is true if a stop of this incarnation was requested.
	StopSent bool `json:"stopSent,omitempty"`

	// Initialized is true when the server has answered initialize and has received the settings and documents: it serves.
	Initialized bool `json:"initialized,omitempty"`
	// Indexed is true when the work that the server began at its start has ended. IndexedBy is Settled or ProgressTimeout.
	Indexed   bool   `json:"indexed,omitempty"`
	IndexedBy string `json:"indexedBy,omitempty"`
	// ServerName and ServerVersion are from the initialize result.
	ServerName    string `json:"serverName,omitempty"`
	ServerVersion string `json:"serverVersion,omitempty"`

	// Unhealthy is empty or one of the reasons above; the manager decides what to do about it. Message has details.
	Unhealthy string `json:"unhealthy,omitempty"`
	Message   string `json:"message,omitempty"`
	// Restart is true if Unhealthy requires a restart of the server.
	Restart bool `json:"restart,omitempty"`

	Clients       int `json:"clients"`
	OpenDocuments int `json:"openDocuments"`
	// Held is the number of requests that wait for a restart, InFlight of those sent to the server; OldestRequest is when the oldest of the latter arrived.
	Held          int       `json:"held"`
	InFlight      int       `json:"inFlight"`
	OldestRequest time.Time `json:"oldestRequest,omitzero"`
	// IdleSince is when the last client disconnected, or when the multiplexer started if none has connected; zero while there are clients.
	IdleSince time.Time `json:"idleSince,omitzero"`
	// MemoryBytes is the memory of the server's tree; 0: unknown.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`

	Counters Counters `json:"counters"`
}

// Counters only increase while a multiplexer is running.
type Counters struct {
	Requests     int64 `json:"requests,omitempty"`     // requests of clients
	HeldTotal    int64 `json:"heldTotal,omitempty"`    // requests that waited for a restart
	Replayed     int64 `json:"replayed,omitempty"`     // requests that were sent to a second incarnation
	Failed       int64 `json:"failed,omitempty"`       // requests that the multiplexer answered with its own error
	Frames       int64 `json:"frames,omitempty"`       // messages relayed, both directions
	Bytes        int64 `json:"bytes,omitempty"`        // bytes of the relayed messages
	Rejected     int64 `json:"rejected,omitempty"`     // messages that exceeded a limit or broke the protocol
	SlowClients  int64 `json:"slowClients,omitempty"`  // connections closed because the client did not read
	ViewSwitches int64 `json:"viewSwitches,omitempty"` // times the server was switched to another client's text
	CanaryFailed int64 `json:"canaryFailed,omitempty"` // canary requests without a useful answer
	Cancelled    int64 `json:"cancelled,omitempty"`    // requests that timed out
	HeldNanos    int64 `json:"heldNanos,omitempty"`    // time that held requests waited, in nanoseconds
	StartupNanos int64 `json:"startupNanos,omitempty"` // from execution to serving, of the last start, in nanoseconds
	Incarnations int64 `json:"incarnations,omitempty"` // servers that were executed
}
