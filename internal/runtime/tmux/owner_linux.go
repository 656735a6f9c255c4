// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
)

// assume makes a call of tmux run as the user of the server.
func (c client) assume(cmd *exec.Cmd) {
	if c.user != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.user.Credential()}
	}
}

// client returns a client of the server on which Berth creates sessions: that of the manager's user.
func (r *Runtime) client(socket string) client {
	return client{program: r.options.Tmux, socket: socket}
}

// adoptionClient returns a client of the server whose sessions Berth may adopt: that of the user that programs run as.
func (r *Runtime) adoptionClient(socket string) client {
	return client{program: r.options.Tmux, socket: socket, user: r.options.RunAs}
}

// clientOf returns a client of the server on which the session of a record is.
func (r *Runtime) clientOf(rec *record) client {
	if rec.Adopted {
		return r.adoptionClient(rec.Socket)
	}
	return r.client(rec.Socket)
}

// separate reports whether sessions to adopt are on another server than those that Berth creates.
func (r *Runtime) separate() bool { return r.options.RunAs != nil }

// owner returns the UID of the user that programs run as.
func (r *Runtime) owner() uint32 {
	if r.options.RunAs != nil {
		return r.options.RunAs.UID
	}
	return uint32(os.Geteuid()) //nolint:gosec // a UID has 32 bits
}

// foreign returns an error if a process has the rights of another user than the one that programs run as. It returns nil if the process no longer exists.
func (r *Runtime) foreign(p procstat.Process) error {
	users, err := procstat.Users(p)
	if errors.Is(err, procstat.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the user of process %d: %w", p.PID, err)
	}
	for _, uid := range users {
		if uid != r.owner() {
			return fmt.Errorf("process %d has the rights of user %s, and Berth runs programs as user %s", p.PID, userName(uid), userName(r.owner()))
		}
	}
	return nil
}

// mayControl returns an error if the server or the program of an adopted session has the rights of another user than the one that programs run as. The caller
// must then neither show the session nor send anything to it.
func (r *Runtime) mayControl(server, program procstat.Process) error {
	if err := r.foreign(server); err != nil {
		return fmt.Errorf("the tmux server belongs to another user: %w", err)
	}
	return r.foreign(program)
}

// mayType checks the same as mayControl, and also the processes in the foreground of the terminal, which read the input: sudo and su run there as another
// user.
func (r *Runtime) mayType(server, program procstat.Process) error {
	if err := r.mayControl(server, program); err != nil {
		return err
	}
	leader, err := procstat.Read(program.PID)
	if errors.Is(err, procstat.ErrGone) || err == nil && leader.Foreground <= 0 {
		return nil // no process reads the terminal
	}
	if err != nil {
		return fmt.Errorf("find the program that reads the terminal: %w", err)
	}
	all, err := procstat.All()
	if err != nil {
		return fmt.Errorf("find the program that reads the terminal: %w", err)
	}
	visible := false
	for _, s := range all {
		if s.Group != leader.Foreground {
			continue
		}
		visible = true
		if err := r.foreign(s.Process); err != nil {
			return fmt.Errorf("the program that reads the terminal belongs to another user: %w", err)
		}
	}
	// /proc may hide the processes of other users. Then the group exists, although none of its processes is listed.
	if !visible && !errors.Is(unix.Kill(-leader.Foreground, 0), unix.ESRCH) {
		return fmt.Errorf("the program that reads the terminal (process group %d) cannot be inspected; it may belong to another user", leader.Foreground)
	}
	return nil
}

// userName returns the name of a user, or the UID if the user has no name.
func userName(uid uint32) string {
	text := strconv.FormatUint(uint64(uid), 10)
	if found, err := user.LookupId(text); err == nil {
		return found.Username
	}
	return text
}
