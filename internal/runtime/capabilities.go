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
	"github.com/berth-dev/berth/internal/screen"
)

// Capabilities is what a backend can do beyond Runtime. A nil field is something that it cannot do at all. A method of a field that the backend does not have
// returns an error that wraps errors.ErrUnsupported; the types No... implement such methods.
type Capabilities struct {
	Logs       Logs
	Terminals  Terminals
	Adoption   Adoption
	Inspection Inspection
	Results    Keeper

	// KeepsOrigin reports that Origin is set for every incarnation that was started with one, for as long as the incarnation is known.
	KeepsOrigin bool
	// KeepsBefore reports that Before is set whenever the previous incarnation had exited when the next one was started. If that start had no effect, Observe
	// continues to return the previous incarnation.
	KeepsBefore bool
	// Disabled is why the backend starts nothing in this manager, and what a person can do about it. Empty: it starts processes.
	Disabled string
}

// Logs is the output of processes.
type Logs interface {
	// OpenLog opens the output of a UID, over all of its incarnations. ErrNotFound when there is none.
	OpenLog(ctx context.Context, uid types.UID) (Log, error)
	// LastActivity returns when a UID last wrote output, over all of its incarnations, or was typed to where that is known; at least to the second. It costs
	// no more than reading the metadata of a file. ErrNotFound when nothing is known.
	LastActivity(ctx context.Context, uid types.UID) (time.Time, error)
	// Watch sends the UID on Events once, when LastActivity next changes. An error means that nothing will be sent.
	Watch(ctx context.Context, uid types.UID) error
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

// Terminals is access to the terminals of processes.
type Terminals interface {
	// Attach connects to the terminal of a running incarnation until the context ends, the process ends, or in returns an error.
	// ErrNoTerminal when it was started without one; ErrNotFound when nothing runs.
	Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan Terminal) error
	// Type writes bytes into the terminal of the running incarnation, like a keyboard; 0x03 is Ctrl-C. Errors as for Attach.
	Type(ctx context.Context, uid types.UID, input []byte) error
	// Capture returns what the terminal of a UID shows now, and where its cursor is. ErrNotFound if there is no terminal.
	Capture(ctx context.Context, uid types.UID) (screen.View, error)
	// Input returns how the processes in the foreground of the terminal of a UID read it. The zero value and every error mean that this is not known.
	// Input takes up to a few milliseconds, so callers use it once for a decision, not in a loop.
	Input(ctx context.Context, uid types.UID) (facts.Input, error)
	// AttachCommand returns a shell command that attaches to the terminal of a UID without Berth; empty if there is none.
	AttachCommand(uid types.UID) string
	// Tidy removes what the backend keeps of a UID for people to look at after its process has ended, such as a tmux session.
	Tidy(ctx context.Context, uid types.UID) error
	// Keep tells the backend whether the object wants its session kept between two incarnations.
	Keep(uid types.UID, keep bool)
}

// Adoption is for backends that can manage what was started without Berth.
type Adoption interface {
	// Find returns the sessions of the tmux server on a socket, or the running containers (which have no socket). It changes nothing.
	Find(ctx context.Context, socket string) ([]Found, error)
	// Release stops managing what was adopted for the UID and leaves it running. ErrNotFound when nothing was adopted.
	Release(ctx context.Context, uid types.UID) error
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

// Inspection is what a backend can find out about processes, and about starts to come.
type Inspection interface {
	// Listeners returns the TCP sockets that processes of the newest incarnation of the UID listen on.
	Listeners(ctx context.Context, uid types.UID) ([]Listener, error)
	// PortOwner returns the process that listens on a TCP port of this machine, or nil.
	PortOwner(ctx context.Context, port int32) (*PortOwner, error)
	// Members returns the living processes of the newest incarnation of a UID, the program itself first; none if there is nothing.
	Members(ctx context.Context, uid types.UID) ([]Member, error)
	// Exec runs p.Command in p.Dir with p.Env beside the incarnation p.Incarnation of p.UID, waits for it, until the context ends at most, and returns
	// its exit. The output is dropped. The command and everything that it started has been killed when Exec returns without ErrNotEnded.
	// Errors: ErrNotFound when that incarnation does not run, a *StartError, the context's error, or ErrNotEnded.
	Exec(ctx context.Context, p Process) (facts.Exit, error)
	// Check returns the *StartError that Start would, nil when it would start, or another error when this cannot be found out. It changes nothing.
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

// PortOwner is a process that listens on a port. PID is 0 and Command empty when the process cannot be seen (another user's).
type PortOwner struct {
	PID     int64
	Command string
	UID     types.UID // the object that the process belongs to, when it is one of ours
}

// Member is a process of a tree. Name is that of its program, without arguments: those may hold secrets.
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
func (NoTerminals) Capture(context.Context, types.UID) (screen.View, error) {
	return screen.View{}, errors.ErrUnsupported
}

// Input implements Terminals.
func (NoTerminals) Input(context.Context, types.UID) (facts.Input, error) {
	return facts.Input{}, errors.ErrUnsupported
}

// AttachCommand implements Terminals.
func (NoTerminals) AttachCommand(types.UID) string { return "" }

// Tidy implements Terminals: nothing is kept.
func (NoTerminals) Tidy(context.Context, types.UID) error { return nil }

// Keep implements Terminals: nothing is kept.
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
