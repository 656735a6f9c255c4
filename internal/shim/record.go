// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
)

// Files in the directory of a UID.
const (
	// LockFile is the file whose lock (F_OFD_SETLK) the shim holds for its whole life, so a check whether the shim is alive needs no PID.
	LockFile = "lock"
	// RecordFile is written by the manager before it starts the shim. It contains the Record.
	RecordFile = "spec.json"
	// IdentityFile is written by the shim: first before it forks, then again when the program runs. It contains the Identity.
	IdentityFile = "id.json"
	// EndFile is written by the shim when no process is left, or by the manager if the shim can no longer write it. It contains the End.
	EndFile = "exit.json"
	// RequestFile is written by the manager before it sends a signal to the program. If the program does not run yet, the shim reads the file once the program
	// runs, and sends the signal. It contains the Request.
	RequestFile = "stop.json"
	// StoppedFile is written by the manager when it has sent the stop signal, or when the shim will send it once the program runs.
	StoppedFile = "stopped.json"
	// SocketFile is the socket on which the shim listens.
	SocketFile = "sock"
	// LogFile contains the output of all incarnations.
	LogFile = "out.log"
	// DiagnosticsFile is the stderr of the shim. It is empty unless the shim itself failed.
	DiagnosticsFile = "shim.log"
)

// eventsSocket is the datagram socket of the manager, relative to the directory of a UID. The shim sends the UID of its object there when a file has changed.
const eventsSocket = "../../events"

// MarkVariable is set in the environment of every workload. It identifies the processes of a tree if the shim is gone and there is no cgroup.
const MarkVariable = "BERTH_MARK"

// Containment tiers: how the processes of a tree are tracked.
const (
	Cgroup    = "Cgroup"
	Subreaper = "Subreaper"
)

// Record is the intent to start one incarnation. It does not contain the environment, so no secret is written to disk.
type Record struct {
	Version     int       `json:"version"`
	UID         string    `json:"uid"`
	Name        string    `json:"name,omitempty"`
	Incarnation int64     `json:"incarnation"`
	Token       string    `json:"token"`
	BootID      string    `json:"bootID"`
	Containment string    `json:"containment"`
	Cgroup      string    `json:"cgroup,omitempty"` // directory of the workload's cgroup
	StopSignal  string    `json:"stopSignal,omitempty"`
	Terminal    bool      `json:"terminal,omitempty"`
	CreatedAt   time.Time `json:"createdAt"`
	// Origin identifies the spec from which this incarnation was started.
	Origin facts.Origin `json:"origin,omitzero"`
	// Before is the exit of the previous incarnation, for a manager that has not recorded it yet.
	Before *facts.Ended `json:"before,omitempty"`
}

// Launch is what the manager passes to the shim in memory, never on disk.
type Launch struct {
	Record    Record   `json:"record"`
	Command   []string `json:"command"`
	Dir       string   `json:"dir,omitempty"`
	Inherited []string `json:"inherited,omitempty"` // the part of the manager's environment that the program inherits
	RunAs     *User    `json:"runAs,omitempty"`     // nil means the user of the shim
	Env       []string `json:"env,omitempty"`       // the environment from the spec; takes precedence
	Columns   int32    `json:"columns,omitempty"`
	Rows      int32    `json:"rows,omitempty"`
	LogLimit  int64    `json:"logLimit"` // bytes on disk
}

// Identity identifies the shim and its workload. Child is zero until the program was executed.
type Identity struct {
	Version     int              `json:"version"`
	Incarnation int64            `json:"incarnation"`
	Token       string           `json:"token"`
	Shim        procstat.Process `json:"shim"`
	Child       procstat.Process `json:"child,omitzero"`
	StartedAt   time.Time        `json:"startedAt,omitzero"`
	// LeaderExit is set after the program itself exited, while the rest of the tree is being terminated.
	LeaderExit *facts.Exit `json:"leaderExit,omitempty"`
}

// End is the final result of an incarnation. Exactly one of Exit and Failure is set.
type End struct {
	Version     int               `json:"version"`
	Incarnation int64             `json:"incarnation"`
	Token       string            `json:"token"`
	Exit        *facts.Exit       `json:"exit,omitempty"`
	Failure     *facts.StartError `json:"failure,omitempty"`
	// Columns and Rows are the last size of the terminal; 0 if there was none, or if an earlier version wrote the End.
	Columns int32 `json:"columns,omitempty"`
	Rows    int32 `json:"rows,omitempty"`
}

// Request requests the end of an incarnation; Kill omits the grace period.
type Request struct {
	Incarnation int64 `json:"incarnation"`
	Kill        bool  `json:"kill,omitempty"`
}

// NewToken returns a random token for one start.
func NewToken() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Mark returns the value of MarkVariable for a token. The token itself is known only to the manager and the shim.
func Mark(token string) string {
	sum := sha256.Sum256([]byte("mark " + token))
	return hex.EncodeToString(sum[:8])
}
