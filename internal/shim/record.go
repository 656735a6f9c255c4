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
	// LockFile is locked (F_OFD_SETLK) by the shim for its whole life, so "is the shim alive" needs no PID.
	LockFile = "lock"
	// RecordFile is written by the manager before it starts the shim.
	RecordFile = "spec.json"
	// IdentityFile is written by the shim: first before it forks, then again when the program runs.
	IdentityFile = "id.json"
	// EndFile is written by the shim when nothing is left, or by the manager when the shim was killed.
	EndFile = "exit.json"
	// RequestFile is written by the manager before it signals, so that a request made before the program runs is not lost.
	RequestFile = "stop.json"
	// StoppedFile is written by the manager when the stop signal was sent, or is the shim's to send once the program runs.
	StoppedFile = "stopped.json"
	// SocketFile is where the shim listens.
	SocketFile = "sock"
	// LogFile is the output of all incarnations.
	LogFile = "out.log"
	// DiagnosticsFile is the shim's own stderr: empty unless the shim itself failed.
	DiagnosticsFile = "shim.log"
)

// EventsSocket is the datagram socket of the manager, as seen from the directory of a UID: the shim sends the UID there when a file has changed.
const EventsSocket = "../../events"

// MarkVariable is set in the environment of every workload: with the shim gone and no cgroup, processes of the tree are found by it.
const MarkVariable = "BERTH_MARK"

// Containment tiers.
const (
	Cgroup    = "Cgroup"
	Subreaper = "Subreaper"
)

// Record is the intent to start one incarnation. It holds no environment, so no secret is ever on disk.
type Record struct {
	Version     int       `json:"version"`
	UID         string    `json:"uid"`
	Name        string    `json:"name,omitempty"`
	Incarnation int64     `json:"incarnation"`
	Token       string    `json:"token"`
	BootID      string    `json:"bootID"`
	Containment string    `json:"containment"`
	Cgroup      string    `json:"cgroup,omitempty"` // the cgroup of the workload
	StopSignal  string    `json:"stopSignal,omitempty"`
	Terminal    bool      `json:"terminal,omitempty"`
	CreatedAt   time.Time `json:"createdAt"`
	// Origin is what of the spec of its object it was started with.
	Origin Origin `json:"origin,omitzero"`
	// Before is how the incarnation before it ended, for whoever has not heard of that yet.
	Before *Before `json:"before,omitempty"`
}

// Origin is what a manager wants to be told again of a start.
type Origin struct {
	SpecHash     string `json:"specHash,omitempty"`
	RestartToken string `json:"restartToken,omitempty"`
}

// Before is the end of an incarnation that was followed by another.
type Before struct {
	Incarnation int64      `json:"incarnation"`
	Exit        facts.Exit `json:"exit"`
}

// Launch is what the shim is given in memory, never on disk.
type Launch struct {
	Record    Record   `json:"record"`
	Command   []string `json:"command"`
	Dir       string   `json:"dir,omitempty"`
	Inherited []string `json:"inherited,omitempty"` // the environment of the manager
	RunAs     *User    `json:"runAs,omitempty"`     // nil: the user of the shim
	Env       []string `json:"env,omitempty"`       // what the object asks for; wins
	Columns   int32    `json:"columns,omitempty"`
	Rows      int32    `json:"rows,omitempty"`
	LogLimit  int64    `json:"logLimit"` // bytes on disk
}

// Process identifies a process on this boot: a PID alone never does.
type Process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // start time in clock ticks since boot
}

// Identity says who holds and who is the workload. Child is zero until the program was executed.
type Identity struct {
	Version     int       `json:"version"`
	Incarnation int64     `json:"incarnation"`
	Token       string    `json:"token"`
	Shim        Process   `json:"shim"`
	Child       Process   `json:"child,omitzero"`
	StartedAt   time.Time `json:"startedAt,omitzero"`
	// LeaderExit is set while others of the tree are being ended after the program itself.
	LeaderExit *facts.Exit `json:"leaderExit,omitempty"`
}

// End is the last word on an incarnation: exactly one of Exit and Failure is set.
type End struct {
	Version     int               `json:"version"`
	Incarnation int64             `json:"incarnation"`
	Token       string            `json:"token"`
	Exit        *facts.Exit       `json:"exit,omitempty"`
	Failure     *facts.StartError `json:"failure,omitempty"`
}

// Request asks an incarnation to end; Kill asks without grace.
type Request struct {
	Incarnation int64 `json:"incarnation"`
	Kill        bool  `json:"kill,omitempty"`
}

// NewToken gives a random token for one start.
func NewToken() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Mark is the value of MarkVariable for a token. The token itself stays between manager and shim.
func Mark(token string) string {
	sum := sha256.Sum256([]byte("mark " + token))
	return hex.EncodeToString(sum[:8])
}

// ValidUID says whether a UID can be the name of a directory and of a cgroup.
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

// WriteFile writes a value as JSON so that a reader sees the old or the new file, never a part. With sync it also survives a power failure.
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

// ErrDamaged means: a file is not what WriteFile wrote.
var ErrDamaged = errors.New("the file is damaged")

// maxFile bounds what is read of a file of ours, in bytes; the largest of them take a few KiB.
const maxFile = 1 << 20

// ReadFile reads what WriteFile wrote; false when there is no such file. The error wraps ErrDamaged when the file is there and holds something else.
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
