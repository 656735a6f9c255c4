// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command launch executes a program with a wall clock that differs from that of the machine, from the first instruction on. It executes the program real/NAME in
// its own directory, where NAME is the name of launch itself. The file clock in that directory contains the difference in seconds.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/clocks/vdso"
)

// tracer is the name under which launch traces another launch until that has executed its program.
const tracer = "tracer"

// PTRACE_SEIZE is traced for the main thread only, so the main thread has to execute the program.
func init() { runtime.LockOSThread() }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "launch:", err)
		os.Exit(1)
	}
}

func run() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, name := filepath.Split(self)
	switch {
	case name != tracer:
		command := exec.Command(filepath.Join(dir, tracer), strconv.Itoa(os.Getpid()))
		command.Stderr = os.Stderr
		if err := command.Run(); err != nil {
			return fmt.Errorf("start the tracer: %w", err)
		}
		return syscall.Exec(filepath.Join(dir, "real", name), os.Args, os.Environ())
	case len(os.Args) == 2:
		return detach(self)
	default:
		pid, err := strconv.Atoi(os.Args[1])
		if err != nil {
			return err
		}
		return trace(pid, filepath.Join(dir, "clock"))
	}
}

// detach starts a tracer that is not a child of the launched program, and waits until it traces the program.
func detach(self string) error {
	command := exec.Command(self, os.Args[1], "detached")
	command.SysProcAttr, command.Stderr = &syscall.SysProcAttr{Setsid: true}, os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	if _, err := io.ReadFull(output, make([]byte, 1)); err != nil {
		return errors.Join(err, command.Wait())
	}
	return nil
}

// trace waits until a process executes its program, and steps the clock of the process before the program runs. It holds a lock of the file clock meanwhile, so
// that no process gets an old difference while the difference changes.
func trace(pid int, clock string) error {
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXEC, 0, 0); errno != 0 {
		return errno
	}
	if _, err := os.Stdout.Write([]byte{'\n'}); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		switch _, err := unix.Wait4(pid, &status, unix.WALL, nil); {
		case err != nil:
			return err
		case !status.Stopped():
			return nil
		case status.TrapCause() == unix.PTRACE_EVENT_EXEC:
			return errors.Join(step(pid, clock), unix.PtraceDetach(pid))
		}
		signal := int(status.StopSignal())
		if status.TrapCause() > 0 || int(status)>>16 != 0 {
			signal = 0
		}
		if err := unix.PtraceCont(pid, signal); err != nil {
			return err
		}
	}
}

func step(pid int, clock string) error {
	file, err := os.Open(clock)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH); err != nil {
		return err
	}
	var seconds int
	if _, err := fmt.Fscan(file, &seconds); err != nil {
		return err
	}
	return vdso.Step(pid, time.Duration(seconds)*time.Second)
}
