// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/internal/facts"
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
	// runs, and sends the signal. The shim itself writes the file on a shutdown request. It contains the Request.
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

// EventsSocket is the datagram socket of the manager, relative to the directory of a UID. The shim sends the UID of its object there when a file has changed.
const EventsSocket = "../../events"

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
	Origin Origin `json:"origin,omitzero"`
	// Before is the exit of the previous incarnation, for a manager that has not recorded it yet.
	Before *Before `json:"before,omitempty"`
}

// Origin is the information that a manager stores with a start and reads back later.
type Origin struct {
	SpecHash     string `json:"specHash,omitempty"`
	RestartToken string `json:"restartToken,omitempty"`
}

// Before is the number and the exit of the previous incarnation.
type Before struct {
	Incarnation int64      `json:"incarnation"`
	Exit        facts.Exit `json:"exit"`
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

// Process identifies a process within the current boot. A PID alone is not unique, because PIDs are reused.
type Process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // start time in clock ticks since boot
}

// Identity identifies the shim and its workload. Child is zero until the program was executed.
type Identity struct {
	Version     int       `json:"version"`
	Incarnation int64     `json:"incarnation"`
	Token       string    `json:"token"`
	Shim        Process   `json:"shim"`
	Child       Process   `json:"child,omitzero"`
	StartedAt   time.Time `json:"startedAt,omitzero"`
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

// ValidUID reports whether a UID can be used as the name of a directory and of a cgroup.
func ValidUID(uid string) bool {
	if uid == "" || len(uid) > 128 || uid[0] == '.' {
		return false
	}
	for _, c := range []byte(uid) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// WriteFile replaces a file with the JSON of value atomically: a reader sees the old or the new contents. With sync the new contents also survive a power
// failure.
func WriteFile(path string, value any, sync bool) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = replace(f.Name(), path, sync)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// ErrDamaged is the error for a file with invalid contents.
var ErrDamaged = errors.New("the file is damaged")

// maxFile is the maximum number of bytes that ReadFile reads. The largest file has a few KiB.
const maxFile = 1 << 20

// ReadFile reads a file written by WriteFile. It returns false if the file does not exist. The error wraps ErrDamaged if the contents are invalid.
func ReadFile(path string, value any) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	_ = f.Close()
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	return true, nil
}
