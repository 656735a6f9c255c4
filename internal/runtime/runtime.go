// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtime is the contract between controllers and the backends that run processes. Each backend (host, tmux, Docker, Pods, language servers)
// implements Runtime and lists in Capabilities what else it can do. A Registry holds the backends of a manager.
//
// All processes carry the UID of their object and the number of their incarnation. No method of Runtime waits for the exit of a process: a backend sends the
// UID on Events when something has changed, and the controller calls Observe.
//
// docs/extending.md lists what a new backend needs.
package runtime

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
)

// Errors that backends wrap. Callers check for them with errors.Is.
var (
	// ErrStale is returned for a start of an incarnation if an incarnation with a higher number was already started.
	ErrStale = errors.New("a newer incarnation was started already")
	// ErrOldAlive is returned for a start of an incarnation while an older one is alive.
	ErrOldAlive = errors.New("an older incarnation is still alive")
	// ErrNotFound means that the backend has no record of the UID, or of that incarnation.
	ErrNotFound = errors.New("no such incarnation")
	// ErrNotEnded means that a command was killed and has not exited yet. The backend continues to kill it.
	ErrNotEnded = errors.New("the command does not exit after SIGKILL")
	// ErrNoTerminal means that the process was not started in a terminal.
	ErrNoTerminal = errors.New("the process has no terminal")
)

// UnavailableError is the error of a backend whose engine does not respond, so that its processes cannot be observed.
type UnavailableError struct {
	// Message is for users: it states what does not respond and what to do.
	Message string
	// Err is the cause.
	Err error
}

func (e *UnavailableError) Error() string { return e.Message + ": " + e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// Process describes an incarnation to start.
type Process struct {
	UID         types.UID
	Incarnation int64
	// Name is the display name of the object, such as devservers/default/web. It is used in messages, and to find the
	// processes of deleted objects with that name.
	Name string
	// Command is argv, already expanded. Empty: a container runs the entrypoint and the command of its image; other backends report the StartError CommandNotFound.
	Command []string
	// Dir is the absolute working directory; empty means the home directory.
	Dir string
	// Env is added to the environment of the manager, as NAME=value; later entries override earlier ones. It may contain secrets.
	Env []string
	// AsManager runs the program as the user of the manager even if other programs run as another user. It is for processes that are part of Berth.
	AsManager bool
	// Open lists the names of variables in Env that never contain secrets. A backend need not hide their values from other users.
	Open []string
	// Terminal requests a PTY; nil means that output goes directly to the log, and that stdin stays open without input.
	Terminal *Terminal
	// StopSignal is the signal that Stop sends to every process of the tree, such as SIGTERM.
	StopSignal string
	// Grace is the time between Stop and the Kill that follows. A backend that stops a process in several steps fits them into this time; others ignore Grace.
	Grace time.Duration
	// Config is the configuration, as JSON, for backends that need more than the other fields: for example, an lsp.Config for a language server or a
	// pod.Config for a Pod. Backends without such a configuration ignore it.
	Config []byte
	// Origin is stored and reported with the incarnation, for a manager that has no record of the start, or the record of another one.
	Origin facts.Origin
	// Results requests that the program can use the paths that ResultStore.Place returns. Inputs are the files, by name, that the backend puts into
	// ResultPaths.Inputs. Both fields require a backend with a ResultStore. Inputs must not contain secrets.
	Results bool
	Inputs  map[string][]byte
}

// Terminal is the size of a terminal in characters.
type Terminal struct {
	Columns, Rows int32
}

// EachSize calls set with each size until the channel is closed or the context ends.
func EachSize(ctx context.Context, sizes <-chan Terminal, set func(Terminal)) {
	for {
		select {
		case size, open := <-sizes:
			if !open {
				return
			}
			set(size)
		case <-ctx.Done():
			return
		}
	}
}

// Runtime starts, ends and observes incarnations. All methods are safe for concurrent use, and none waits for a process.
type Runtime interface {
	// Start starts incarnation p.Incarnation of p.UID. A repeated call for the same incarnation does nothing and returns nil, regardless of its state. Start
	// returns before the program is known to run; Observe reports a program that cannot be executed as Failed. Errors: ErrStale, ErrOldAlive, or an error of
	// the environment (disk full, no more processes), which the caller retries.
	Start(ctx context.Context, p Process) error

	// Stop sends the stop signal of the incarnation to each of its processes, once per call. It does not affect other incarnations. It returns nil if none is
	// running. Stop does not escalate by itself: the caller must call Kill after a grace period. With Docker and Pod, only the program of the container receives
	// the signal, and the kubelet kills a Pod after its grace period by itself. While a new container of Docker cannot receive the signal, Stop
	// returns nil without sending it, for at most 5 s, and Observe reports StopDeferred. The caller must then call Stop again.
	Stop(ctx context.Context, uid types.UID, incarnation int64) error

	// Kill kills all processes of that incarnation with SIGKILL. It returns nil if none is running.
	Kill(ctx context.Context, uid types.UID, incarnation int64) error

	// Observe returns the newest incarnation of a UID and those older incarnations that are still alive. The list is empty if the backend knows no incarnation
	// of the UID. The exit of the newest incarnation stays available until Forget.
	Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error)

	// List returns the incarnations of all UIDs, for adoption and for the collection of orphans. The caller must not stop an Adopted incarnation that has no
	// object.
	List(ctx context.Context) ([]facts.Incarnation, error)

	// Forget removes every trace of a UID: records, log, sockets. It returns an error while any of its processes is alive.
	Forget(ctx context.Context, uid types.UID) error

	// Events delivers the UIDs whose incarnations have changed. Events may be merged or repeated, but are never lost.
	Events() <-chan types.UID

	// SetNamespace sets the namespace of the object with the UID; an empty namespace removes it. Only the reconciler of an object calls it, for this object,
	// before any other call for the UID. Until Forget, the backend ignores API objects in other namespaces, such as Pods, whose labels claim that they are
	// incarnations of this UID. Without a namespace, Observe and List report all of them, with Incarnation.Namespace, and Stop, Kill and Forget affect all of
	// them, because orphans have no object; other methods ignore them.
	SetNamespace(uid types.UID, namespace string)

	// ReleaseExited reports to the backend that the status records the exit of that incarnation and of all earlier ones. The backend may then remove what it has
	// stored about them. ReleaseExited does not affect living processes.
	ReleaseExited(ctx context.Context, uid types.UID, incarnation int64) error

	// Capabilities returns what else the backend can do. The result never changes.
	Capabilities() Capabilities
}

// Newest returns the newest incarnation of a UID that the backend knows, or nil.
func Newest(ctx context.Context, backend Runtime, uid types.UID) (*facts.Incarnation, error) {
	found, err := backend.Observe(ctx, uid)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	newest := slices.MaxFunc(found, func(a, b facts.Incarnation) int { return cmp.Compare(a.Number, b.Number) })
	return &newest, nil
}

// Local is embedded by backends whose incarnations are in no namespace and are kept until Forget.
type Local struct{}

// SetNamespace implements Runtime. It does nothing.
func (Local) SetNamespace(types.UID, string) {}

// ReleaseExited implements Runtime. It does nothing.
func (Local) ReleaseExited(context.Context, types.UID, int64) error { return nil }
