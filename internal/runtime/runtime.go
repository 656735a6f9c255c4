// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtime is the contract between controllers and what runs processes. Each backend (host, tmux, Docker, Pods, language servers) implements Runtime
// and lists in Capabilities what else it can do. A Registry holds the backends of a manager.
//
// All processes carry the UID of their object and the number of their incarnation. No call waits for a process to start or end: a backend sends the UID on
// Events when something has changed, and the controller calls Observe.
package runtime

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
)

// Errors that a backend wraps, to be told apart with errors.Is.
var (
	// ErrStale refuses to start an incarnation with a number lower than one that was started before.
	ErrStale = errors.New("a newer incarnation was started already")
	// ErrOldAlive refuses to start an incarnation while an older one lives.
	ErrOldAlive = errors.New("an older incarnation is still alive")
	// ErrNotFound: nothing is known of the UID, or of that incarnation.
	ErrNotFound = errors.New("no such incarnation")
	// ErrNotEnded: a command was killed and has not ended yet. The backend goes on ending it.
	ErrNotEnded = errors.New("the command does not end after SIGKILL")
	// ErrNoTerminal: the process was not started in a terminal.
	ErrNoTerminal = errors.New("the process has no terminal")
)

// Process is all that a backend needs to know to start an incarnation.
type Process struct {
	UID         types.UID
	Incarnation int64
	// Name is what people know the object by, such as devservers/default/web. For messages only: nothing is found by it.
	Name string
	// Command is argv, already expanded. Never empty.
	Command []string
	// Dir is absolute; empty means the home directory.
	Dir string
	// Env is added to the environment of the manager, as NAME=value; later entries win. It may hold secrets.
	Env []string
	// AsManager asks for the user of the manager, whatever user programs run as: the process is a part of Berth.
	AsManager bool
	// Open are the names of variables in Env that many may read, as nobody's secret can be in them. A backend need not hide these.
	Open []string
	// Terminal asks for a PTY; nil means that the output goes straight to the log and stdin stays open and silent.
	Terminal *Terminal
	// StopSignal is the signal that Stop sends to every process of the tree, such as SIGTERM.
	StopSignal string
	// Grace is how long after a Stop the Kill follows. A backend that ends a process in steps of its own cuts them to fit; others ignore it.
	Grace time.Duration
	// Config is what a backend that holds more than a process needs beyond it, as JSON: an lsp.Config for a language server, a docker.Config
	// for a container. Others ignore it.
	Config []byte
	// Origin is kept and given back, for whoever finds the incarnation.
	Origin facts.Origin
	// Results asks for a place for results, and Inputs are files that the program finds there, by name; both need a Keeper. No secrets belong there.
	Results bool
	Inputs  map[string][]byte
}

// Terminal is the size of a terminal in characters.
type Terminal struct {
	Columns, Rows int32
}

// Runtime starts, ends and observes incarnations. All methods are safe for concurrent use and none waits for a process.
type Runtime interface {
	// Start makes incarnation p.Incarnation of p.UID run. Called again for the same incarnation it does nothing and succeeds, whatever became
	// of it. It returns before the program is known to run; a program that cannot be executed is observed as Failed.
	// Errors: ErrStale, ErrOldAlive, or one of the environment (disk full, no more processes), to be tried again.
	Start(ctx context.Context, p Process) error

	// Stop asks every process of that incarnation to end, with the stop signal that it was started with. It is sent once per call, to that
	// incarnation alone; nothing there to stop is success. Kill always has to follow after a grace period: Stop does not escalate by itself.
	Stop(ctx context.Context, uid types.UID, incarnation int64) error

	// Kill ends the whole tree of that incarnation with SIGKILL. Nothing there is success.
	Kill(ctx context.Context, uid types.UID, incarnation int64) error

	// Observe says what is there of a UID: none, or the newest incarnation, and older ones only while they live.
	// The exit of the newest incarnation stays known until Forget.
	Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error)

	// List says what is there of all UIDs, for adoption and leftovers. What is Adopted in it is nobody's to end without its object.
	List(ctx context.Context) ([]facts.Incarnation, error)

	// Forget removes every trace of a UID: records, log, sockets. It fails while anything of it lives.
	Forget(ctx context.Context, uid types.UID) error

	// Events carries the UIDs that something happened to. Events may be merged or repeated, never lost.
	Events() <-chan types.UID

	// Belongs tells the backend the namespace of the object with the UID, before any other call for this UID. Until Forget, the backend ignores objects of
	// other namespaces that look like its incarnations.
	Belongs(uid types.UID, namespace string)

	// Settle tells the backend that the end of that incarnation, and of all before it, is recorded in the status. The backend may then remove what it kept
	// of them. Settle changes nothing that lives.
	Settle(ctx context.Context, uid types.UID, incarnation int64) error

	// Capabilities returns what else the backend can do. It is always the same.
	Capabilities() Capabilities
}

// Local is embedded by backends whose incarnations are in no namespace and are kept until Forget.
type Local struct{}

// Belongs implements Runtime. It does nothing.
func (Local) Belongs(types.UID, string) {}

// Settle implements Runtime. It does nothing.
func (Local) Settle(context.Context, types.UID, int64) error { return nil }
