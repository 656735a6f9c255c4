// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lsp

import (
	"time"

	"github.com/berth-dev/berth/internal/facts"
)

// Protocol is the version of what is said over the control socket. A manager understands this version and the one before.
const Protocol = 1

// None is the phase of a multiplexer before the first request for an incarnation.
const None facts.Phase = "None"

// Why a server that runs has to be restarted; the same words as the condition reasons.
const (
	ReasonHung          = "Hung"
	ReasonProtocolError = "ProtocolError"
	ReasonMemoryLimit   = "MemoryLimit"
	ReasonCanaryFailed  = "CanaryFailed"
	// ReasonQuarantined says that a document or request is kept from the server, as it was there at repeated crashes.
	ReasonQuarantined = "Quarantined"
	// ReasonCapabilityLost says that a restarted server offers less than the one that clients know.
	ReasonCapabilityLost = "CapabilityMismatch"
)

// Report is all that the multiplexer knows. It is sent on every change, at most ten times a second but for the end of the server and the
// need to restart it, which are told at once.
type Report struct {
	Protocol int `json:"protocol"`
	// Number counts the reports of one multiplexer; 0 for one that does not count.
	Number int64 `json:"number,omitempty"`

	// Incarnation is the newest one that was asked for; 0 when none was.
	Incarnation int64       `json:"incarnation"`
	Phase       facts.Phase `json:"phase"`
	PID         int64       `json:"pid,omitempty"`
	StartTicks  int64       `json:"startTicks,omitempty"`
	BootID      string      `json:"bootID,omitempty"`
	// StartedAt is when the server was executed.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// Exit is set when the phase is Exited; LeaderExit when the server has ended while others of its tree still live.
	Exit       *facts.Exit       `json:"exit,omitempty"`
	LeaderExit *facts.Exit       `json:"leaderExit,omitempty"`
	StartError *facts.StartError `json:"startError,omitempty"`
	// StopSent says that a stop was asked for of this incarnation.
	StopSent bool `json:"stopSent,omitempty"`

	// Initialized says that the server has answered initialize and was given all that it has to know: it serves.
	Initialized bool `json:"initialized,omitempty"`
	// Indexed says that the server has no work in progress that it began at its start; IndexedBy is Settled or ProgressTimeout.
	Indexed   bool   `json:"indexed,omitempty"`
	IndexedBy string `json:"indexedBy,omitempty"`
	// ServerName and ServerVersion are what initialize said.
	ServerName    string `json:"serverName,omitempty"`
	ServerVersion string `json:"serverVersion,omitempty"`

	// Unhealthy is empty or one of the reasons above; what to do about it is for the manager. Message says more.
	Unhealthy string `json:"unhealthy,omitempty"`
	Message   string `json:"message,omitempty"`
	// Restart says that Unhealthy is bad enough to restart the server for.
	Restart bool `json:"restart,omitempty"`

	Clients       int `json:"clients"`
	OpenDocuments int `json:"openDocuments"`
	// Held counts requests that wait for a restart, InFlight those that the server owes; OldestRequest is when the oldest of those came.
	Held          int       `json:"held"`
	InFlight      int       `json:"inFlight"`
	OldestRequest time.Time `json:"oldestRequest,omitzero"`
	// IdleSince is when the last client left, or when the multiplexer began if none came; zero while there are clients.
	IdleSince time.Time `json:"idleSince,omitzero"`
	// MemoryBytes is what the server's tree holds; 0: not known.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`

	Counters Counters `json:"counters"`
}

// Counters only grow while one multiplexer lives.
type Counters struct {
	Requests     int64 `json:"requests,omitempty"`     // that clients made
	HeldTotal    int64 `json:"heldTotal,omitempty"`    // of them, that waited for a restart
	Replayed     int64 `json:"replayed,omitempty"`     // of them, that were sent to a second incarnation
	Failed       int64 `json:"failed,omitempty"`       // of them, that the multiplexer answered with an error of its own
	Frames       int64 `json:"frames,omitempty"`       // messages relayed, both ways
	Bytes        int64 `json:"bytes,omitempty"`        // of them
	Rejected     int64 `json:"rejected,omitempty"`     // messages that broke a bound or the protocol
	SlowClients  int64 `json:"slowClients,omitempty"`  // connections closed because they did not read
	ViewSwitches int64 `json:"viewSwitches,omitempty"` // times the server was given another client's text
	CanaryFailed int64 `json:"canaryFailed,omitempty"` // canary requests without an answer of use
	Cancelled    int64 `json:"cancelled,omitempty"`    // requests that were too old
	HeldNanos    int64 `json:"heldNanos,omitempty"`    // time that held requests waited, in nanoseconds
	StartupNanos int64 `json:"startupNanos,omitempty"` // from execution to serving, of the last start, in nanoseconds
	Incarnations int64 `json:"incarnations,omitempty"` // servers that were executed
}
