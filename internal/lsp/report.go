// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lsp

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/berth-dev/berth/internal/facts"
)

// Protocol is the version of the control protocol. A manager accepts this version and the previous one.
const Protocol = 1

// MethodDiagnostics is a request of the multiplexer for the diagnostics of a document that the client has open. Its parameters are uri and, optionally, contentHash
// and timeoutMs; its result is a Diagnosis.
const MethodDiagnostics = "berth/diagnostics"

// MethodSync is a request of the multiplexer that is answered, with null, after the server has received the changes on disk from before the request, at the latest
// after two seconds. A client that asks the server about files that other programs write sends it before each question.
const MethodSync = "berth/sync"

// Diagnosis is the result of MethodDiagnostics.
type Diagnosis struct {
	URI     string `json:"uri"`
	Version int64  `json:"version"` // the client's version of the text
	// ContentHash identifies the client's text; see the function of this name.
	ContentHash string `json:"contentHash"`
	// Settled reports whether Diagnostics are those of the text. If it is false, Reason explains why, and Diagnostics may be incomplete or those of an earlier text.
	Settled bool   `json:"settled"`
	Reason  string `json:"reason,omitempty"`
	// BasedOnUnsaved are the names of the other clients whose unsaved text of other documents the server had.
	BasedOnUnsaved []string        `json:"basedOnUnsaved,omitempty"`
	Diagnostics    json.RawMessage `json:"diagnostics"` // as the server has sent them
}

// MethodState is a request of the multiplexer for what the server is doing now. It has no parameters; its result is a State.
const MethodState = "berth/state"

// State is the result of MethodState.
type State struct {
	// Incarnation is the newest incarnation of the server. Serving reports whether it accepts requests; if not, Reason explains why.
	Incarnation int64  `json:"incarnation"`
	Serving     bool   `json:"serving"`
	Reason      string `json:"reason,omitempty"`
	// Indexed reports whether the server has finished the work that it began at its start, and Working whether it reports work in progress.
	Indexed bool `json:"indexed"`
	Working bool `json:"working"`
}

// ContentHash identifies a text: the first 16 hexadecimal digits of its SHA-256.
func ContentHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// None is the phase of a multiplexer before the first start.
const None facts.Phase = "None"

// Reasons why a running server is unhealthy. They equal the condition reasons of the API.
const (
	ReasonHung          = "Hung"
	ReasonProtocolError = "ProtocolError"
	ReasonMemoryLimit   = "MemoryLimit"
	ReasonCanaryFailed  = "CanaryFailed"
	// ReasonFolderReplaced: the folder of the workspace was away and exists again, so a server that has found it missing is restarted.
	ReasonFolderReplaced = "FolderReplaced"
	// ReasonQuarantined: a document is withheld from the server because its text makes the server crash, or a request because it was in flight at crashes.
	ReasonQuarantined = "Quarantined"
	// ReasonCapabilityLost: a restarted server lacks capabilities that were announced to clients.
	ReasonCapabilityLost = "CapabilityMismatch"
	// ReasonFilesUnseen: changes of files on disk may be missed, so no diagnostics are settled.
	ReasonFilesUnseen = "FilesUnseen"
)

// Values of Report.IndexedBy. They equal the condition reasons of the API.
const (
	// IndexedBySettled: no work is in progress.
	IndexedBySettled = "Settled"
	// IndexedByProgressTimeout: no progress was received for too long.
	IndexedByProgressTimeout = "ProgressTimeout"
)

// Report is the state of the multiplexer. The multiplexer sends it on every change, at most ten times a second. It reports the exit of the server and the need
// for a restart immediately.
type Report struct {
	Protocol int `json:"protocol"`

	// Incarnation is the newest requested incarnation; 0 if there is none.
	Incarnation int64       `json:"incarnation"`
	Phase       facts.Phase `json:"phase"`
	PID         int64       `json:"pid,omitempty"`
	StartTicks  int64       `json:"startTicks,omitempty"`
	BootID      string      `json:"bootID,omitempty"`
	// StartedAt is when the server was executed.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// Exit is set in phase Exited. LeaderExit is set while the server itself has exited but other processes of its tree are alive.
	Exit       *facts.Exit       `json:"exit,omitempty"`
	LeaderExit *facts.Exit       `json:"leaderExit,omitempty"`
	StartError *facts.StartError `json:"startError,omitempty"`
	// StopSent is true if a stop of this incarnation was requested.
	StopSent bool `json:"stopSent,omitempty"`

	// Initialized is true once the server has answered initialize and was sent the settings and the open documents. From then on it receives requests.
	Initialized bool `json:"initialized,omitempty"`
	// Indexed is true once the server has finished the work that it began at its start, such as reading the workspace. IndexedBy is how this was determined:
	// IndexedBySettled or IndexedByProgressTimeout.
	Indexed   bool   `json:"indexed,omitempty"`
	IndexedBy string `json:"indexedBy,omitempty"`
	// StartFolders are the folders of the workspace with which the server was started, and Folders the current ones. FoldersChange is true if the server accepts
	// changes of its folders while it runs.
	StartFolders  []string `json:"startFolders,omitempty"`
	Folders       []string `json:"folders,omitempty"`
	FoldersChange bool     `json:"foldersChange,omitempty"`
	// ServerName and ServerVersion are from the initialize result.
	ServerName    string `json:"serverName,omitempty"`
	ServerVersion string `json:"serverVersion,omitempty"`

	// Unhealthy is empty or one of the reasons above; the manager decides how to react. Message has details.
	Unhealthy string `json:"unhealthy,omitempty"`
	Message   string `json:"message,omitempty"`
	// Restart is true if Unhealthy requires a restart of the server.
	Restart bool `json:"restart,omitempty"`

	Clients       int `json:"clients"`
	OpenDocuments int `json:"openDocuments"`
	// Held is the number of requests that wait until the server accepts requests, for example during a restart. InFlight is the number of requests that were sent
	// to the server and are not answered yet. OldestRequest is when the oldest request in flight arrived.
	Held          int       `json:"held"`
	InFlight      int       `json:"inFlight"`
	OldestRequest time.Time `json:"oldestRequest,omitzero"`
	// IdleSince is when the last client disconnected, or when the multiplexer started if none has connected; zero while there are clients.
	IdleSince time.Time `json:"idleSince,omitzero"`
	// MemoryBytes is the memory of the server's process tree; 0: unknown.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`

	Counters Counters `json:"counters"`
}

// Counters contains numbers that only increase while a multiplexer is running, except for StartupNanos.
type Counters struct {
	Requests     int64 `json:"requests,omitempty"`     // requests of clients
	HeldTotal    int64 `json:"heldTotal,omitempty"`    // requests that waited until the server accepted requests
	Replayed     int64 `json:"replayed,omitempty"`     // requests sent again, to another incarnation
	Failed       int64 `json:"failed,omitempty"`       // requests that the multiplexer answered with its own error
	Frames       int64 `json:"frames,omitempty"`       // messages relayed, both directions
	Bytes        int64 `json:"bytes,omitempty"`        // bytes of the relayed messages
	Rejected     int64 `json:"rejected,omitempty"`     // messages and connections that exceeded a limit or violated the protocol
	SlowClients  int64 `json:"slowClients,omitempty"`  // connections closed because the client did not read
	ViewSwitches int64 `json:"viewSwitches,omitempty"` // times the server was switched to another client's text
	CanaryFailed int64 `json:"canaryFailed,omitempty"` // canary requests without a usable response
	Cancelled    int64 `json:"cancelled,omitempty"`    // requests that timed out
	HeldNanos    int64 `json:"heldNanos,omitempty"`    // time that held requests waited, in nanoseconds
	StartupNanos int64 `json:"startupNanos,omitempty"` // time from the execution of the last server until it served, in nanoseconds
	Incarnations int64 `json:"incarnations,omitempty"` // servers that were executed
}

// Ending is why a language server has exited.
type Ending int

// Endings of a language server.
const (
	// Crashed: the server exited by itself.
	Crashed Ending = iota
	// Asked: Berth stopped it.
	Asked
	// Killed: another program ended it with a signal, for example the kernel because of memory, or a user with pkill.
	Killed
)
