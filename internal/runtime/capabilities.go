// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/terminal"
)

// Capabilities is what a backend can do beyond Runtime. A nil field is a group of functions that the backend lacks entirely. In a group that is not nil, a
// method that the backend lacks returns an error that wraps errors.ErrUnsupported; the types No... implement such methods.
type Capabilities struct {
	Logs       Logs
	Terminals  Terminals
	Adoption   Adoption
	Inspection Inspection
	Results    ResultStore

	// KeepsOrigin reports that Origin is set for every incarnation that was started with one, for as long as the incarnation is known.
	KeepsOrigin bool
	// KeepsBefore reports that Before is set whenever the previous incarnation had exited when the next one was started. If that start had no effect, Observe
	// continues to return the previous incarnation.
	KeepsBefore bool
	// Disabled is why the backend starts nothing in this manager, and what a user can do about it. Empty means that it starts processes.
	Disabled string
}

// Logs is access to the output of processes.
type Logs interface {
	// OpenLog opens the output of a UID, across all of its incarnations. It returns ErrNotFound if there is none.
	OpenLog(ctx context.Context, uid types.UID) (Log, error)
	// LastActivity returns the time at which a UID last wrote output, across all of its incarnations, or last received input where the backend knows that.
	// The time is exact to at least one second. The call costs no more than reading the metadata of a file. It returns ErrNotFound if nothing is known.
	LastActivity(ctx context.Context, uid types.UID) (time.Time, error)
	// Watch sends the UID on Events once, when LastActivity next changes. An error means that nothing will be sent.
	Watch(ctx context.Context, uid types.UID) error
}

// Log is append-only output whose oldest part may have been removed. Offsets are bytes since the first output of the UID and stay valid forever.
type Log interface {
	// Bounds returns the offset of the first available byte and the offset of the end.
	Bounds() (first, end int64, err error)
	// ReadAt reads like io.ReaderAt. For removed bytes it returns an error that wraps io.ErrUnexpectedEOF; the caller then resumes at the first offset of
	// Bounds.
	io.ReaderAt
	// Wait returns when there is output beyond the offset, when the log is closed (ErrNotFound), or when the context ends.
	Wait(ctx context.Context, offset int64) error
	io.Closer
}

// Terminals is access to the terminals of processes.
type Terminals interface {
	// Attach connects to the terminal of a running incarnation until the context ends, the process ends, or in returns an error. It returns ErrNoTerminal if
	// the process was started without a terminal, and ErrNotFound if no incarnation is running.
	Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan Terminal) error
	// Type writes bytes to the terminal of the running incarnation, like a keyboard; 0x03 is Ctrl-C. It returns the same errors as Attach.
	Type(ctx context.Context, uid types.UID, input []byte) error
	// Capture returns the current content of the terminal of a UID and the position of its cursor. It returns ErrNotFound if there is no terminal.
	Capture(ctx context.Context, uid types.UID) (terminal.View, error)
	// Input returns how the foreground processes of the terminal of a UID read that terminal. The zero value and every error mean that this is unknown. Input
	// takes up to a few milliseconds, so callers use it once for a decision, not in a loop.
	Input(ctx context.Context, uid types.UID) (facts.Input, error)
	// AttachCommand returns a shell command that attaches to the terminal of a UID without Berth; empty if there is none.
	AttachCommand(uid types.UID) string
	// Tidy removes what the backend keeps for users after the process of a UID has ended, such as a tmux session.
	Tidy(ctx context.Context, uid types.UID) error
	// Keep sets whether the backend keeps the session of a UID between two incarnations, as its object requests.
	Keep(uid types.UID, keep bool)
}

// Adoption is for backends that can manage sessions or containers that were started without Berth.
type Adoption interface {
	// Find returns the sessions of the tmux server on a socket. A container backend ignores socket and returns the running and paused containers. Find
	// changes nothing.
	Find(ctx context.Context, socket string) ([]Found, error)
	// Release stops managing the adopted session or container of the UID and leaves it running. It returns ErrNotFound if nothing was adopted.
	Release(ctx context.Context, uid types.UID) error
}

// Found is an existing session or container, regardless of its creator.
type Found struct {
	// ID is the identifier that the backend assigned and does not reuse, such as $3 or a container ID. Name is the name for users.
	ID, Name string
	// Created is the creation time, to the second.
	Created time.Time
	// Command is the program in the foreground of the session, or the command that the container was started with. It may be shortened.
	Command string
	// Image and Labels are those of a container.
	Image  string
	Labels map[string]string
	// Owned reports that a Berth installation started or adopted the session or container. Owner is the object that it belongs to, or empty if the owner is
	// another Berth installation.
	Owned bool
	Owner types.UID
	// Unfit explains to users why the session or container cannot be adopted. It is empty if an adoption is possible.
	Unfit string
}

// Inspection is what a backend can find out about processes and about future starts.
type Inspection interface {
	// Listeners returns the TCP sockets that processes of the newest incarnation of the UID listen on.
	Listeners(ctx context.Context, uid types.UID) ([]Listener, error)
	// PortOwner returns the process that listens on a TCP port of this machine, or nil.
	PortOwner(ctx context.Context, port int32) (*PortOwner, error)
	// Members returns the living processes of the newest incarnation of a UID, the program itself first; empty if there are none.
	Members(ctx context.Context, uid types.UID) ([]Member, error)
	// Exec runs p.Command in p.Dir with p.Env beside the incarnation p.Incarnation of p.UID, waits until it exits or the context ends, and returns its exit.
	// The output is dropped. Unless Exec returns ErrNotEnded, the command and everything that it started are dead when Exec returns. Errors: ErrNotFound if
	// that incarnation is not running, a *StartError, the context's error, or ErrNotEnded.
	Exec(ctx context.Context, p Process) (facts.Exit, error)
	// Check returns the *StartError that Start would return, nil if a start would succeed, or another error if this cannot be determined. It changes
	// nothing.
	Check(ctx context.Context, p Process) error
	// CheckProgram returns the failure that a start would have now because of its program or working directory, or nil. known is false if the backend cannot
	// check this program. CheckProgram changes nothing and costs a few system calls.
	CheckProgram(p Process) (failure *facts.StartError, known bool)
}

// Listener is a listening TCP socket.
type Listener struct {
	Address string // the IP address, such as 127.0.0.1 or ::
	Port    int32
	PID     int64
}

// PortOwner is a process that listens on a port. PID is 0 and Command empty if the process cannot be inspected because it belongs to another user.
type PortOwner struct {
	PID     int64
	Command string
	UID     types.UID // the object that the process belongs to, if Berth started the process
}

// Member is a process of a tree. Name is the name of its program, without arguments, because those may contain secrets.
type Member struct {
	PID  int64
	Name string
}

// NoLogs is embedded by backends that implement only some methods of Logs.
type NoLogs struct{}

// OpenLog implements Logs.
func (NoLogs) OpenLog(context.Context, types.UID) (Log, error) { return nil, errors.ErrUnsupported }

// LastActivity implements Logs.
func (NoLogs) LastActivity(context.Context, types.UID) (time.Time, error) {
	return time.Time{}, errors.ErrUnsupported
}

// Watch implements Logs.
func (NoLogs) Watch(context.Context, types.UID) error { return errors.ErrUnsupported }

// NoTerminals is embedded by backends that implement only some methods of Terminals.
type NoTerminals struct{}

// Attach implements Terminals.
func (NoTerminals) Attach(context.Context, types.UID, io.Reader, io.Writer, <-chan Terminal) error {
	return errors.ErrUnsupported
}

// Type implements Terminals.
func (NoTerminals) Type(context.Context, types.UID, []byte) error { return errors.ErrUnsupported }

// Capture implements Terminals.
func (NoTerminals) Capture(context.Context, types.UID) (terminal.View, error) {
	return terminal.View{}, errors.ErrUnsupported
}

// Input implements Terminals.
func (NoTerminals) Input(context.Context, types.UID) (facts.Input, error) {
	return facts.Input{}, errors.ErrUnsupported
}

// AttachCommand implements Terminals.
func (NoTerminals) AttachCommand(types.UID) string { return "" }

// Tidy implements Terminals. The backend keeps nothing.
func (NoTerminals) Tidy(context.Context, types.UID) error { return nil }

// Keep implements Terminals. The backend keeps nothing.
func (NoTerminals) Keep(types.UID, bool) {}

// NoInspection is embedded by backends that implement only some methods of Inspection.
type NoInspection struct{}

// Listeners implements Inspection.
func (NoInspection) Listeners(context.Context, types.UID) ([]Listener, error) {
	return nil, errors.ErrUnsupported
}

// PortOwner implements Inspection.
func (NoInspection) PortOwner(context.Context, int32) (*PortOwner, error) {
	return nil, errors.ErrUnsupported
}

// Members implements Inspection.
func (NoInspection) Members(context.Context, types.UID) ([]Member, error) {
	return nil, errors.ErrUnsupported
}

// Exec implements Inspection.
func (NoInspection) Exec(context.Context, Process) (facts.Exit, error) {
	return facts.Exit{}, errors.ErrUnsupported
}

// Check implements Inspection.
func (NoInspection) Check(context.Context, Process) error { return errors.ErrUnsupported }

// CheckProgram implements Inspection.
func (NoInspection) CheckProgram(Process) (*facts.StartError, bool) { return nil, false }
