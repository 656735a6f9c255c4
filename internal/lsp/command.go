// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lsp

// Verb is what the manager asks for.
type Verb string

const (
	// Start makes Launch.Incarnation run. Again for the same incarnation it does nothing and succeeds, whatever became of it.
	Start Verb = "Start"
	// HoldRequests admits no more requests to the server: it is about to be ended, to be started again.
	HoldRequests Verb = "Hold"
	// Stop begins the ladder that ends Incarnation: shutdown, exit, stdin closed, signal. It does not wait, and does not end in a kill.
	Stop Verb = "Stop"
	// Kill ends the whole tree of Incarnation with SIGKILL.
	Kill Verb = "Kill"
	// Quit ends the multiplexer once nothing of a server lives: clients are told why, and their connections closed.
	Quit Verb = "Quit"
)

// Command is one request of the manager.
type Command struct {
	ID          int64   `json:"id"`
	Verb        Verb    `json:"verb"`
	Incarnation int64   `json:"incarnation,omitempty"`
	Launch      *Launch `json:"launch,omitempty"`
	// Reason is told to clients: why the server restarts or the multiplexer quits.
	Reason string `json:"reason,omitempty"`
}

// Answer is what a command comes back with. Code is empty on success.
type Answer struct {
	ID    int64  `json:"id"`
	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
}

// Codes of answers; the manager's side turns them into the errors of the runtime.
const (
	CodeStale    = "Stale"    // a newer incarnation was started already
	CodeOldAlive = "OldAlive" // an older incarnation is still alive
	CodeInvalid  = "Invalid"
	// CodeUnavailable is something of the environment, such as a full disk: to be tried again.
	CodeUnavailable = "Unavailable"
)

// Message is one line on the control socket, from the multiplexer: an answer or a report.
type Message struct {
	Answer *Answer `json:"answer,omitempty"`
	Report *Report `json:"report,omitempty"`
}

// The files of one multiplexer, in its directory (mode 0700).
const (
	ClientSocket  = "lsp.sock"
	ControlSocket = "control.sock"
	// StateFile holds a Report, written before an incarnation is executed and when it has ended: what is known of it when the multiplexer is gone.
	StateFile = "state.json"
)
