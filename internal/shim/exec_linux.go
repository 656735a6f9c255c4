// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
)

// Exec is the argument that makes the shim run one short command, such as a probe, kill every process that the command leaves behind, and exit. In this mode
// callerFD, a socket to the caller, takes the place of the lock: when the caller closes its end or exits, the shim kills the command.
const (
	Exec     = "--exec"
	callerFD = lockFD
)

// execOnce runs the command of the Launch and reports its exit to the caller.
func execOnce() error {
	caller := os.NewFile(callerFD, "caller")
	defer func() { _ = caller.Close() }()
	launch, err := readLaunch()
	if err != nil {
		return err
	}
	self, err := outliveSignals()
	if err != nil {
		return err
	}
	pid, failed := launch.executeSilently()
	if failed != nil {
		return writeFrame(caller, End{Version: Version, Token: launch.Record.Token, Failure: failed})
	}
	status := endWithTree(pid, Tree{Ancestor: self.PID}, caller)
	return writeFrame(caller, End{Version: Version, Token: launch.Record.Token, Exit: ExitOf(status, time.Now())})
}

// executeSilently starts the command with an empty stdin. It discards the output, which is unbounded and may contain secrets.
func (l *Launch) executeSilently() (pid int, failed *facts.StartError) {
	program, failed := l.Resolve()
	if failed != nil {
		return 0, failed
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, failure(ReasonStartFailed, "open %s: %v", os.DevNull, err)
	}
	defer func() { _ = null.Close() }()
	return Execute(program.File, l.Command, &syscall.ProcAttr{
		Dir: program.Dir, Env: program.Env, Sys: &syscall.SysProcAttr{Setsid: true, Credential: l.RunAs.Credential()},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
	})
}

// endWithTree waits until the command exits or the caller closes its end, then kills the rest of the tree. It returns when this process has no children.
func endWithTree(pid int, tree Tree, caller io.Reader) unix.WaitStatus {
	var status unix.WaitStatus
	ended, none, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(none)
		reapAll(func(reaped int, as unix.WaitStatus) {
			if reaped == pid {
				status = as
				close(ended)
			}
		})
	}()
	go func() {
		defer close(left)
		_, _ = io.Copy(io.Discard, caller)
	}()
	select {
	case <-ended:
	case <-left:
	}
	// SIGKILL is repeated because a process may fork while the tree is read, and a process in uninterruptible sleep may outlive the first one.
	for pause := time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		select {
		case <-none:
			return status
		default:
		}
		_ = tree.Kill()
		select {
		case <-none:
			return status
		case <-time.After(pause):
		}
	}
}

// ReadEnd reads the End of a command from the socket to a shim that was started with Exec. It returns io.EOF if the shim was killed.
func ReadEnd(conn net.Conn, token string) (End, error) {
	var end End
	if err := readFrame(conn, &end); err != nil {
		return End{}, err
	}
	if end.Token != token || (end.Exit == nil) == (end.Failure == nil) {
		return End{}, errors.New("the report of berth-shim about a command is incomplete")
	}
	return end, nil
}
