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

// Capabilities describes what a backend can do in addition to the methods of Runtime. Each interface field is a group of functions, and a nil field means that
// the backend has no function of that group. If a field is not nil, the backend may still lack single methods of the group. Such a method returns an error that
// wraps errors.ErrUnsupported, or a zero value if it returns no error. Backends embed NoLogs, NoTerminals or NoInspection for the methods that they lack.
type Capabilities struct {
	Logs       Logs
	Terminals  Terminals
	Adoption   Adoption
	Inspection Inspection
	Results    ResultStore

	// KeepsOrigin reports that the backend stores Process.Origin: while the backend knows an incarnation that was started with an origin, it sets
	// facts.Incarnation.Origin.
	KeepsOrigin bool
	// SlowStart reports that a start takes so long that the status must report it before it begins. Starts of such a backend are never reserved.
	SlowStart bool
	// KeepsPreviousExit reports that the backend sets facts.Incarnation.Before for every incarnation that was started after the previous incarnation had exited.
	// If a start had no effect, Observe continues to return the previous incarnation.
	KeepsPreviousExit bool
	// Disabled explains to users why the backend starts no processes in this manager, and what to do about it. Empty means that the backend starts processes.
	Disabled string
}

// Logs provides access to the output of processes.
type Logs interface {
	// OpenLog opens the output of a UID, across its incarnations as far as the backend keeps their output. It returns ErrNotFound if there is none.
	OpenLog(ctx context.Context, uid types.UID) (Log, error)
	// LastActivity returns the time at which the process of a UID last wrote output. If the backend knows that the process received input later, it returns the
	// time of that input. The resolution is one second or better. Usually the call only reads the metadata of a file, but a backend may query tmux, or a node
	// for up to a few seconds. It returns ErrNotFound if nothing is known.
	LastActivity(ctx context.Context, uid types.UID) (time.Time, error)
	// Watch sends the UID on Events once, when LastActivity next changes. An error means that nothing will be sent.
	Watch(ctx context.Context, uid types.UID) error
}

// IncarnationLog is the size of the range of offsets of one incarnation, in bytes, for a backend that keeps only the output of the newest incarnation: the output
// of incarnation n begins at offset n × IncarnationLog. No output is that long.
const IncarnationLog = 1 << 40

// Log is append-only output whose oldest part may have been removed. Offsets count bytes, increase with every output of the UID, and stay valid forever; a
// backend may leave a gap between incarnations.
type Log interface {
	// Bounds returns the offset of the first available byte and the offset of the end.
	Bounds() (first, end int64, err error)
	// ReadAt reads like io.ReaderAt. For removed bytes it returns an error that wraps io.ErrUnexpectedEOF; the caller then resumes at the first offset of
	// Bounds.
	io.ReaderAt
	// Wait returns when there is output beyond the offset, when the log is closed (ErrNotFound), or when the context ends. It returns errors.ErrUnsupported if
	// an open log does not change.
	Wait(ctx context.Context, offset int64) error
	io.Closer
}

// Terminals provides access to the terminals of processes.
type Terminals interface {
	// Attach connects to the terminal of a running incarnation until the context ends, the process ends, or in.Read returns an error. It returns
	// ErrNoTerminal if the process was started without a terminal, and ErrNotFound if no incarnation is running.
	Attach(ctx context.Context, uid types.UID, in io.Reader, out io.Writer, resize <-chan Terminal) error
	// Type types into the terminal of the running incarnation, like a user at a keyboard (see Typist). It returns the same errors as Attach, or an error that
	// wraps a *WithheldError. As an exception, a Docker container without a terminal receives the keystrokes on stdin.
	Type(ctx context.Context, uid types.UID, strokes Keystrokes) error
	// Capture returns the current content of the terminal of a UID and the position of its cursor. It returns ErrNotFound if there is no terminal.
	Capture(ctx context.Context, uid types.UID) (terminal.View, error)
	// Input returns how the foreground processes of the terminal of a UID read that terminal. The zero value and every error mean that this is unknown. Input
	// takes up to a few milliseconds, so callers use it once for a decision, not in a loop.
	Input(ctx context.Context, uid types.UID) (facts.Input, error)
	// Told returns what the running program of a UID has told its terminal since its start, beside its text. Signals that the backend cannot know are zero. Every
	// error means that nothing is known.
	Told(ctx context.Context, uid types.UID) (facts.Signals, error)
	// Size returns the size of the terminal of the newest incarnation of a UID: the one that its program was started with, or that a client has set since. After
	// the program has ended, it is the last size, if the backend knows it. A terminal has several clients; the one that attached or was resized last sets the
	// size, and when it leaves, the one before it. Size returns ErrNotFound if the size is not known. It takes up to a few milliseconds.
	Size(ctx context.Context, uid types.UID) (Terminal, error)
	// AttachCommand returns a shell command that attaches to the terminal of a UID without Berth; empty if there is none.
	AttachCommand(uid types.UID) string
	// Tidy removes what the backend keeps for users after the process of a UID has ended, such as a tmux session.
	Tidy(ctx context.Context, uid types.UID) error
	// Keep sets whether the backend keeps the session of a UID while no incarnation is running, for the next incarnation. The caller derives this from the
	// object with that UID.
	Keep(uid types.UID, keep bool)
}

// Adoption is for backends that can manage sessions or containers that were started without Berth.
type Adoption interface {
	// Find returns the sessions of the tmux server on a socket. A container backend ignores socket and returns the running and paused containers. Find
	// changes nothing.
	Find(ctx context.Context, socket string) ([]Found, error)
	// Release stops managing the adopted session or container of the UID and leaves it running. It returns nil or ErrNotFound if the UID has no session or
	// container.
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
	// Image and Labels are set only for containers.
	Image  string
	Labels map[string]string
	// Owned reports that a Berth installation started or adopted the session or container. Owner is the UID of the object that the session or container belongs
	// to. It is empty if the owner is an object of another Berth installation, or if there is no owner.
	Owned bool
	Owner types.UID
	// Unfit explains to users why the session or container cannot be adopted. It is empty if an adoption is possible.
	Unfit string
}

// Inspection is what a backend can find out about processes and about future starts.
type Inspection interface {
	// Listeners returns the TCP sockets that processes of the newest incarnation of the UID listen on, and those of other processes on the same ports.
	Listeners(ctx context.Context, uid types.UID) (Sockets, error)
	// PortOwners returns the listening sockets on a TCP port of this machine, each with a process that has it open. If sockets are given, it returns only these.
	// It returns at most MaxPortOwners. It is expensive, so it is meant for resolving a conflict, not for polling.
	PortOwners(ctx context.Context, port int32, sockets ...uint64) ([]PortOwner, error)
	// Members returns the living processes of the newest incarnation of a UID, the program itself first. If none is running, it returns an empty list or
	// ErrNotFound.
	Members(ctx context.Context, uid types.UID) ([]Member, error)
	// Exec runs p.Command in p.Dir with p.Env beside the incarnation p.Incarnation of p.UID. It waits until the command exits or the context ends, and returns
	// the exit of the command. The output is dropped. Unless Exec returns ErrNotEnded, the command and everything that it started are dead when Exec returns.
	// Errors: ErrNotFound if that incarnation is not running, a *StartError, the context's error, or ErrNotEnded.
	Exec(ctx context.Context, p Process) (facts.Exit, error)
	// Check returns the *StartError that Start would return, nil if a start would succeed, or another error if this cannot be determined. It changes
	// nothing.
	Check(ctx context.Context, p Process) error
	// CheckProgram checks whether a start would fail now because of its program or working directory. It returns that failure, or nil if there is none. known
	// is false if the backend cannot check this program. CheckProgram changes nothing and costs a few system calls.
	CheckProgram(p Process) (failure *facts.StartError, known bool)
}

// Sockets are the listening TCP sockets that concern an incarnation.
type Sockets struct {
	// Own are the sockets of its processes.
	Own []Listener
	// Others are the sockets on the same ports that none of its processes has open, without PIDs. A socket of a process that the incarnation has just started can
	// be among them; PortOwners returns the owner. Others is empty if the open files of a process of the incarnation cannot be read.
	Others []Listener
}

// Listener is a listening TCP socket.
type Listener struct {
	Address string // the IP address, such as 127.0.0.1 or ::
	Port    int32
	PID     int64
	// IPv6Only reports that a socket on all IPv6 addresses does not accept IPv4 connections. It is false if that cannot be determined.
	IPv6Only bool
	// Socket identifies the socket until it is closed. It is 0 if the backend does not identify sockets.
	Socket uint64
}

// MaxPortOwners is the maximum number of sockets whose owners PortOwners determines.
const MaxPortOwners = 4

// PortOwner is a process that listens on a port. PID is 0 and Command empty if the process cannot be inspected, because it belongs to another user or runs in a
// container.
type PortOwner struct {
	Socket  uint64 // as in Listener
	User    uint32 // the user who opened the socket
	PID     int64
	Command string
	UID     types.UID // the object that the process belongs to, if Berth started the process
}

// Member is a process of a tree. Name is the name of its program, without arguments, because those may contain secrets.
type Member struct {
	PID  int64  `json:"pid"`
	Name string `json:"name"`
	// Memory is the resident memory in bytes. CPU is the CPU time used so far, including children that have exited.
	Memory int64         `json:"memoryBytes"`
	CPU    time.Duration `json:"cpuNanoseconds"`
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
func (NoTerminals) Type(context.Context, types.UID, Keystrokes) error { return errors.ErrUnsupported }

// Capture implements Terminals.
func (NoTerminals) Capture(context.Context, types.UID) (terminal.View, error) {
	return terminal.View{}, errors.ErrUnsupported
}

// Input implements Terminals.
func (NoTerminals) Input(context.Context, types.UID) (facts.Input, error) {
	return facts.Input{}, errors.ErrUnsupported
}

// Told implements Terminals.
func (NoTerminals) Told(context.Context, types.UID) (facts.Signals, error) {
	return facts.Signals{}, errors.ErrUnsupported
}

// Size implements Terminals.
func (NoTerminals) Size(context.Context, types.UID) (Terminal, error) {
	return Terminal{}, errors.ErrUnsupported
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
func (NoInspection) Listeners(context.Context, types.UID) (Sockets, error) {
	return Sockets{}, errors.ErrUnsupported
}

// PortOwners implements Inspection.
func (NoInspection) PortOwners(context.Context, int32, ...uint64) ([]PortOwner, error) {
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
