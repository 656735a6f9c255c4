// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lsp

// Verb is the name of a command of the manager.
type Verb string

const (
	// Start starts Launch.Incarnation. It succeeds and does nothing if that incarnation was already started, whatever its state.
	Start Verb = "Start"
	// Stop begins the graceful stop of Incarnation: the multiplexer sends the shutdown request and the exit notification, closes stdin, and sends the stop
	// signal. The answer does not wait for these steps. Stop never kills the server.
	Stop Verb = "Stop"
	// Kill sends SIGKILL to the whole process tree of Incarnation.
	Kill Verb = "Kill"
	// SetFolders sets the folders of the workspace to Folders, for this and the next servers. A server that does not support that ignores it.
	SetFolders Verb = "SetFolders"
	// Quit makes the multiplexer exit if no server is alive. Clients receive the reason, and their connections are closed.
	Quit Verb = "Quit"
)

// Command is one request of the manager.
type Command struct {
	ID          int64   `json:"id"`
	Verb        Verb    `json:"verb"`
	Incarnation int64   `json:"incarnation,omitempty"`
	Launch      *Launch `json:"launch,omitempty"`
	// Folders are absolute paths; the first one is the root, which must not change.
	Folders []string `json:"folders,omitempty"`
	// Reason is sent to clients: why the server restarts or the multiplexer exits.
	Reason string `json:"reason,omitempty"`
}

// Answer is the response to a command. Code is empty on success.
type Answer struct {
	ID    int64  `json:"id"`
	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
}

// Codes of answers; the manager converts them to errors of the runtime.
const (
	CodeStale    = "Stale"    // a newer incarnation was already started
	CodeOldAlive = "OldAlive" // an incarnation is still alive, or the multiplexer is shutting down
	CodeInvalid  = "Invalid"
	// CodeUnavailable is an environment problem, such as a full disk; the command can be retried.
	CodeUnavailable = "Unavailable"
)

// Message is one line from the multiplexer on the control socket: an answer or a report.
type Message struct {
	Answer *Answer `json:"answer,omitempty"`
	Report *Report `json:"report,omitempty"`
}

// Files of one multiplexer, in its directory (mode 0700).
const (
	ClientSocket  = "lsp.sock"
	ControlSocket = "control.sock"
	// StateFile contains a Report. The multiplexer writes it before it executes a server, and whenever the state of the server process changes. The manager
	// reads it when the multiplexer no longer runs.
	StateFile = "state.json"
)
