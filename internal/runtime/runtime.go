// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtime is the interface to what really runs: one backend each for the host, and later tmux, Docker and Pods.
//
// Everything outside carries the UID of its object and the number of its incarnation. No call waits for a process to live or die:
// a backend says on Events that something happened to a UID, and whoever wants to know what looks with Observe.
package runtime

import (
	"context"
	"errors"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/screen"
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
}

// Originator is implemented by backends that tell of each incarnation with what it was started.
type Originator interface {
	// KeepsOrigin says whether Origin is set for every incarnation that was started with one, for as long as it is known.
	KeepsOrigin() bool
}

// Chronicler is implemented by backends that still tell how an incarnation ended after the next one was started.
type Chronicler interface {
	// KeepsBefore says whether Before is set whenever the incarnation before had exited when the next one was started. Should that start have come to
	// nothing, Observe goes on giving the one before.
	KeepsBefore() bool
}

// Disabled is implemented by a backend that starts nothing, by decision of whoever runs the manager.
type Disabled interface {
	// Disabled says why, and what to do about it, for people.
	Disabled() string
}

// Inspector is implemented by backends that can tell which sockets a process tree listens on.
type Inspector interface {
	// Listeners gives the TCP sockets that processes of the newest incarnation of the UID listen on.
	Listeners(ctx context.Context, uid types.UID) ([]Listener, error)
	// PortOwner says who listens on a TCP port of this machine: nil when nobody does.
	PortOwner(ctx context.Context, port int32) (*PortOwner, error)
}

// Listener is a listening TCP socket.
type Listener struct {
	Address string // the IP address, such as 127.0.0.1 or ::
	Port    int32
	PID     int64
}

// PortOwner is a process that listens on a port. PID is 0 and Command empty when the process cannot be seen (another user's).
type PortOwner struct {
	PID     int64
	Command string
	UID     types.UID // the object that the process belongs to, when it is one of ours
}

// Executor is implemented by backends that can run a command beside a process, such as a probe.
type Executor interface {
	// Exec runs p.Command in p.Dir with p.Env beside the incarnation p.Incarnation of p.UID, waits for it, until the context ends at most, and returns
	// its exit. The output is dropped. The command and everything that it started has been killed when Exec returns without ErrNotEnded.
	// Errors: ErrNotFound when that incarnation does not run, a *StartError, the context's error, or ErrNotEnded.
	Exec(ctx context.Context, p Process) (facts.Exit, error)
}

// Logger is implemented by backends that keep the output.
type Logger interface {
	// OpenLog opens the output of a UID, over all of its incarnations. ErrNotFound when there is none.
	OpenLog(ctx context.Context, uid types.UID) (Log, error)
}

// Log is output that only grows; its old part may be gone. Offsets are bytes since the first output of the UID and stay valid for ever.
type Log interface {
	// Bounds gives the offset of the first byte still there and of the end.
	Bounds() (first, end int64, err error)
	// ReadAt reads like io.ReaderAt. Bytes that are gone read as an error that wraps io.ErrUnexpectedEOF: ask Bounds and resume.
	io.ReaderAt
	// Wait returns when there is output beyond the offset, when the log is closed (ErrNotFound), or when the context ends.
	Wait(ctx context.Context, offset int64) error
	io.Closer
}

// Attacher is implemented by backends whose processes can have a terminal.
type Attacher interface {
	// Attach connects to the terminal of a running incarnation until the context ends, the process ends, or in returns an error.
	// ErrNoTerminal when it was started without one; ErrNotFound when nothing runs.
	Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan Terminal) error
}

// Releaser is implemented by backends that take over what was there before.
type Releaser interface {
	// Release lets go of what was adopted for the UID and leaves it as it is: neither ended nor marked as ours. ErrNotFound when nothing was adopted.
	Release(ctx context.Context, uid types.UID) error
}

// Tidier is implemented by backends that keep something for people to look at between two incarnations.
type Tidier interface {
	// Tidy ends what is kept of a UID of which nothing runs; the next incarnation begins anew. Nothing there is success.
	Tidy(ctx context.Context, uid types.UID) error
}

// Namespaced is implemented by backends whose incarnations are in namespaces, where more people than the object's may make what looks like one.
type Namespaced interface {
	// Belongs says in which namespace the object of a UID is. From then on, until Forget, nothing elsewhere is taken for one of its incarnations.
	Belongs(uid types.UID, namespace string)
}

// Settler is implemented by backends that hold on to what was taken away until its end is on record.
type Settler interface {
	// Settle says that the end of that incarnation, and of all before it, is on record: what of them was taken away may go. It touches nothing that
	// lives, and costs nothing when there is nothing.
	Settle(ctx context.Context, uid types.UID, incarnation int64) error
}

// Found is a session or container that is there, whoever has made it.
type Found struct {
	// ID is the backend's own name of it, which is not used again: such as $3, or a container's id. Name is that of people.
	ID, Name string
	// Created is when it was made, to the second.
	Created time.Time
	// Command is the program in its foreground, or the command that it was started with; it may be shortened.
	Command string
	// Image and Labels are those of a container.
	Image  string
	Labels map[string]string
	// Owned says that a Berth has started or adopted it; Owner is for which object, and empty when that is another Berth.
	Owned bool
	Owner types.UID
	// Unfit says why it cannot be adopted, for people; empty when it can.
	Unfit string
}

// SessionFinder is implemented by backends that can tell which sessions there are.
type SessionFinder interface {
	// FindSessions gives the sessions of the server on a socket, none when nobody serves it. It changes nothing.
	FindSessions(ctx context.Context, socket string) ([]Found, error)
}

// ContainerFinder is implemented by backends that can tell which containers there are.
type ContainerFinder interface {
	// FindContainers gives the containers that run. It changes nothing.
	FindContainers(ctx context.Context) ([]Found, error)
}

// Checker is implemented by backends that can say beforehand that a start would be refused.
type Checker interface {
	// Check gives the *StartError that Start would, nil when it would start, or an error when that can't be told. It changes nothing.
	Check(ctx context.Context, p Process) error
}

// ProgramChecker is implemented by backends that can check a program before a start.
type ProgramChecker interface {
	// CheckProgram returns the failure that a start would have now because of its program or working directory, or nil. known is false if the backend cannot
	// check this program. CheckProgram changes nothing and costs a few system calls.
	CheckProgram(p Process) (failure *facts.StartError, known bool)
}

// Keyboard is implemented by backends whose processes can have a terminal.
type Keyboard interface {
	// Type writes bytes into the terminal of what runs, as if somebody had typed them; 0x03 is Ctrl-C. ErrNoTerminal and ErrNotFound as for Attach.
	Type(ctx context.Context, uid types.UID, input []byte) error
}

// Watcher is implemented by backends that can tell when something last happened in a terminal.
type Watcher interface {
	// LastActivity gives when a UID last put something out, over all of its incarnations, or was typed to where that can be told; to the second at
	// least. It costs no more than a look at a file. ErrNotFound when nothing is known.
	LastActivity(ctx context.Context, uid types.UID) (time.Time, error)
	// Watch has the UID told on Events once, when that moves next. An error means that nobody will tell.
	Watch(ctx context.Context, uid types.UID) error
}

// Screen is implemented by backends that know what a terminal shows.
type Screen interface {
	// Capture returns what the terminal of a UID shows now, and where its cursor is. It returns ErrNotFound if there is no terminal.
	Capture(ctx context.Context, uid types.UID) (screen.View, error)
}

// Foreground is implemented by backends that can inspect the processes in the foreground of a terminal.
type Foreground interface {
	// Input returns how the processes in the foreground of the terminal of a UID read it. The zero value and every error mean that this is not known.
	// Input takes up to a few milliseconds, so callers use it once for a decision, not in a loop.
	Input(ctx context.Context, uid types.UID) (screen.Input, error)
}

// Handle is implemented by backends whose terminals people can take without Berth.
type Handle interface {
	// AttachCommand is what to paste into a shell to take the terminal of a UID; empty when there is nothing to attach to.
	AttachCommand(uid types.UID) string
}

// Census is implemented by backends that can list the processes of a tree.
type Census interface {
	// Members gives the processes of the newest incarnation of a UID that live, the program itself first. Nothing there is an empty list.
	Members(ctx context.Context, uid types.UID) ([]Member, error)
}

// Member is a process of a tree. Name is that of its program, without arguments: those may hold secrets.
type Member struct {
	PID  int64
	Name string
}
