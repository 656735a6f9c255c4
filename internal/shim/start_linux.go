// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
)

// start executes the program.
func (s *shim) start() *facts.StartError {
	program, failed := s.launch.Resolve()
	if failed != nil {
		return failed
	}
	var err error
	if s.log, err = os.OpenFile(LogFile, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return failure(ReasonStartFailed, "cannot open the log: %v", err)
	}
	if err := s.launch.RunAs.Own(s.log); err != nil {
		return failure(ReasonStartFailed, "cannot make user %s the owner of the log: %v", s.launch.RunAs.Name, err)
	}
	attributes := &syscall.ProcAttr{Dir: program.Dir, Env: program.Env, Sys: &syscall.SysProcAttr{Setsid: true, Credential: s.launch.RunAs.Credential()}}
	streams, err := s.streams(attributes)
	if err != nil {
		return failure(ReasonStartFailed, "cannot set up input and output: %v", err)
	}
	defer closeAll(streams)
	for _, f := range streams {
		attributes.Files = append(attributes.Files, f.Fd())
	}
	return s.execute(program.File, attributes)
}

// streams returns stdin, stdout and stderr of the program: a terminal for all three, or a pipe that stays open for stdin and the log for the others.
func (s *shim) streams(attributes *syscall.ProcAttr) ([]*os.File, error) {
	if s.launch.Record.Terminal {
		master, slave, err := pty.Open()
		if err != nil {
			return nil, fmt.Errorf("open a terminal: %w", err)
		}
		if err := s.launch.RunAs.Own(slave); err != nil {
			return nil, fmt.Errorf("make user %s the owner of the terminal: %w", s.launch.RunAs.Name, errors.Join(err, master.Close(), slave.Close()))
		}
		attributes.Sys.Setctty = true // descriptor 0 becomes the controlling terminal
		s.terminal = newTerminal(master, s.log, s.newScreen)
		if validSize(s.launch.Columns, s.launch.Rows) {
			s.terminal.device.Resize(s.launch.Columns, s.launch.Rows)
		}
		return []*os.File{slave, slave, slave}, nil
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// Some tools exit when their stdin is closed, so the shim keeps the write end of the pipe open.
	s.stdin = write
	return []*os.File{read, s.log, s.log}, nil
}

func closeAll(streams []*os.File) {
	_ = streams[0].Close() // the others are the same file, or the log, which stays open
}

// execute forks and executes the program, which is in its cgroup from the first instruction.
func (s *shim) execute(file string, attributes *syscall.ProcAttr) *facts.StartError {
	if cgroup := s.launch.Record.Cgroup; cgroup != "" {
		fd, err := unix.Open(cgroup, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return failure(ReasonStartFailed, "cannot open the cgroup %s: %v", cgroup, err)
		}
		defer func() { _ = unix.Close(fd) }()
		attributes.Sys.UseCgroupFD, attributes.Sys.CgroupFD = true, fd
	}
	pid, failed := Execute(file, s.launch.Command, attributes)
	if failed != nil {
		return failed
	}
	// The child is not reaped yet, so its PID cannot have been reused even if it has exited.
	child, err := procstat.Identify(pid)
	if err != nil {
		child = procstat.Process{PID: pid}
	}
	s.mu.Lock()
	s.identity.Child, s.identity.StartedAt = child, time.Now()
	s.mu.Unlock()
	if s.terminal != nil {
		go s.terminal.copy()
	}
	return nil
}

// Execute forks and executes a program, and explains a failure. It may retry for half a second. This wait is harmless: a shim has nothing else to do before its
// program runs, and in a language server multiplexer only the next command waits, not a client.
func Execute(file string, argv []string, attributes *syscall.ProcAttr) (pid int, failed *facts.StartError) {
	var err error
	for try := range 10 {
		pid, err = syscall.ForkExec(file, argv, attributes)
		// EAGAIN and ENOMEM: no process or memory available at the moment. ETXTBSY: the program is still being written.
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ETXTBSY) {
			break
		}
		time.Sleep(time.Duration(10*(try+1)) * time.Millisecond)
	}
	if err != nil {
		return 0, explain(file, attributes.Sys.Credential, err)
	}
	return pid, nil
}

// explain converts an error of execve to a StartError.
func explain(file string, as *syscall.Credential, err error) *facts.StartError {
	user := os.Geteuid()
	if as != nil {
		user = int(as.Uid)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return failure(ReasonCommandNotFound, "the program %s exists, but the interpreter that its first line (or its ELF header) names does not exist; install the interpreter", file)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return failure(ReasonPermissionDenied, "user %d may not execute the program %s; its permissions, or those of its interpreter or file system (noexec), forbid it", user, file)
	case errors.Is(err, unix.E2BIG):
		return failure(ReasonStartFailed, "the command and its environment are too long for this machine; shorten them, or raise the limit of the stack size")
	case errors.Is(err, unix.ENOEXEC):
		return failure(ReasonStartFailed, "%s is not an executable for this machine; a script needs a first line such as #!/bin/sh", file)
	}
	return failure(ReasonStartFailed, "the program %s could not be executed: %v", file, err)
}
