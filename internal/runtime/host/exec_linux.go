// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

const (
	// commandGroup is the prefix of the names of commands' cgroups. These cgroups are siblings of the cgroups of the workload and its shim.
	commandGroup = "exec-"
	// maxCommands is the maximum number of commands per process that run or are being killed.
	maxCommands = 8
	// killTime is how long Exec waits for the shim to kill its command. If the command is still running then, Exec kills the shim and waits as long again.
	killTime = 2 * time.Second
)

// command is a command that runs beside a process, under its own shim.
type command struct {
	token  string
	group  string // cgroup; empty without cgroups
	pid    int
	pidfd  int
	caller *net.UnixConn
	done   chan struct{} // closed when no process of the command is left
	end    shim.End
	err    error // set instead of end
}

// Exec implements runtime.Inspection.
func (h *Host) Exec(ctx context.Context, p runtime.Process) (facts.Exit, error) {
	c, err := h.beginCommand(p)
	if err != nil {
		return facts.Exit{}, fmt.Errorf("run a command for %s: %w", p.Name, err)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.cancel()
		if !c.ends() {
			c.kill()
			if !c.ends() {
				return facts.Exit{}, fmt.Errorf("process %d: %w", c.pid, runtime.ErrNotEnded)
			}
		}
		return facts.Exit{}, ctx.Err()
	}
	switch {
	case c.err != nil:
		return facts.Exit{}, fmt.Errorf("the shim of the command was killed: %w", c.err)
	case c.end.Failure != nil:
		return facts.Exit{}, c.end.Failure
	}
	return *c.end.Exit, nil
}

// cancel makes the shim kill the command.
func (c *command) cancel() { _ = c.caller.CloseWrite() }

// kill kills a shim that does not respond, for example because its command has stopped it with SIGSTOP. The pidfd is open until the command is done.
func (c *command) kill() {
	_ = unix.PidfdSendSignal(c.pidfd, unix.SIGCONT, nil, 0)
	_ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
}

func (c *command) ends() bool {
	timer := time.NewTimer(killTime)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return false
	}
}

// beginCommand starts a command while it holds the lock of the UID, so that Forget finds the command.
func (h *Host) beginCommand(p runtime.Process) (*command, error) {
	e, err := h.acquire(p.UID)
	if err != nil {
		return nil, err
	}
	f := h.inspect(e)
	defer func() { h.release(e, f.exists || f.recorded) }()
	switch {
	case !f.exists || f.incarnation.Phase != facts.Running || f.incarnation.Number != p.Incarnation:
		return nil, runtime.ErrNotFound
	case len(e.commands) >= maxCommands:
		return nil, fmt.Errorf("%d earlier commands for this process are still running", len(e.commands))
	}
	c, err := h.forkCommand(p)
	if err != nil {
		return nil, err
	}
	if e.commands == nil {
		e.commands = map[*command]struct{}{}
	}
	e.commands[c] = struct{}{}
	go func() {
		h.followCommand(c)
		e.Lock()
		defer e.Unlock()
		delete(e.commands, c)
		_ = unix.Close(c.pidfd)
		close(c.done)
	}()
	return c, nil
}

// forkCommand starts a shim for a command. If cgroups are used, the shim gets a separate cgroup below the cgroup of the UID.
func (h *Host) forkCommand(p runtime.Process) (c *command, err error) {
	c = &command{token: shim.NewToken(), done: make(chan struct{})}
	launch := h.launch(p, shim.Record{UID: string(p.UID), Name: p.Name, Token: c.token})
	memory, err := launchMemory(launch)
	if err != nil {
		return nil, err
	}
	defer func() { _ = memory.Close() }()
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ours.Close(), theirs.Close()) }()
	if h.cgroup != "" {
		if c.group, err = os.MkdirTemp(h.group(p.UID), commandGroup); err != nil {
			return nil, fmt.Errorf("create a cgroup: %w", err)
		}
	}
	conn, err := net.FileConn(ours)
	if err == nil {
		c.caller = conn.(*net.UnixConn) // FileConn returns a *net.UnixConn for a Unix socket
		// The mark of the token identifies the command even if its shim is killed.
		c.pid, c.pidfd, err = h.execShim([]string{"berth-shim", shim.Exec, p.Name}, c.token, c.group, h.dir(p.UID), nil, theirs, memory)
		if err != nil {
			_ = conn.Close()
		}
	}
	if err != nil && c.group != "" {
		_ = os.Remove(c.group)
	}
	return c, err
}

// socketPair returns two connected sockets: one for this process, and one for a shim.
func socketPair(kind int) (ours, theirs *os.File, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a socket: %w", err)
	}
	return os.NewFile(uintptr(ends[0]), "manager"), os.NewFile(uintptr(ends[1]), "shim"), nil
}

// followCommand waits for a command and kills the processes that it leaves behind. It returns when no process is left or the Host is closed.
func (h *Host) followCommand(c *command) {
	c.end, c.err = shim.ReadEnd(c.caller, c.token)
	_, _ = await(c.pid)
	_ = c.caller.Close()
	tree := shim.Tree{Cgroup: c.group}
	if c.group == "" {
		if c.err == nil {
			return // the shim has reaped all of its descendants
		}
		tree.Mark = shim.Mark(c.token)
	}
	for pause := time.Millisecond; ; pause = min(2*pause, tendEvery) {
		if empty, err := tree.Empty(); err == nil && empty {
			break
		}
		if err := tree.Kill(); err != nil {
			h.log.Error(err, "Cannot kill the processes that a command left behind", "pid", c.pid, "cgroup", c.group)
		}
		select {
		case <-time.After(pause):
		case <-h.closed:
			return // the next manager continues
		}
	}
	if c.group != "" {
		_ = shim.RemoveCgroup(c.group)
	}
}

// cancelCommands cancels all commands beside a process. The caller holds the lock of e.
func (h *Host) cancelCommands(e *entry) {
	for c := range e.commands {
		c.cancel()
	}
}

// commandsLeft kills the remaining commands beside a process, and returns an error until all have ended. The caller holds the lock of e.
func (h *Host) commandsLeft(e *entry) error {
	h.killCommands(e.uid)
	if len(e.commands) > 0 {
		return fmt.Errorf("%d commands for this process, such as probes, are still being killed", len(e.commands))
	}
	return nil
}

// killCommands kills the commands in the cgroups of a UID, including those of an earlier manager, and removes the empty cgroups.
func (h *Host) killCommands(uid types.UID) {
	if h.cgroup == "" {
		return
	}
	groups, _ := filepath.Glob(filepath.Join(h.group(uid), commandGroup+"*"))
	for _, group := range groups {
		if err := (shim.Tree{Cgroup: group}).Kill(); err != nil {
			h.log.Error(err, "Cannot kill the commands in a cgroup", "uid", uid, "cgroup", group)
		}
		_ = shim.RemoveCgroup(group) // fails while a killed process is still listed; Forget retries
	}
}
