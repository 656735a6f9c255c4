// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
)

// occupied is true while this process has a server that is alive, or children that are not reaped.
var occupied atomic.Bool

// Start executes a server, which writes its diagnostics to stderr. After a failure no process, descriptor or goroutine remains.
func Start(launch lsp.Launch, stderr *os.File) (*Process, *facts.StartError) {
	if !occupied.CompareAndSwap(false, true) {
		return nil, failed("another server of this multiplexer is still running; stop it first")
	}
	p, err := start(launch, stderr)
	if err != nil {
		occupied.Store(false)
	}
	return p, err
}

func start(launch lsp.Launch, stderr *os.File) (*Process, *facts.StartError) {
	asked := shim.Launch{Command: launch.Command, Dir: launch.Dir, Env: launch.Env, RunAs: launch.RunAs}
	program, failure := asked.Resolve()
	if failure != nil {
		return nil, failure
	}
	// The shim finds a process tree by a mark in the environment. Pass the mark on, so that the server is found even if the shim of this process is killed.
	if mark := os.Getenv(shim.MarkVariable); mark != "" {
		program.Env = append(program.Env, shim.MarkVariable+"="+mark)
	}
	signal, ok := shim.SignalNumber(launch.StopSignal)
	if !ok {
		signal = unix.SIGTERM
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, failed("the multiplexer cannot become the subreaper of the server: %v", err)
	}
	s, err := newStreams()
	if err != nil {
		return nil, failed("cannot set up input and output of the server: %v", err)
	}
	pid, failure := shim.Execute(program.File, launch.Command, &syscall.ProcAttr{
		Dir: program.Dir, Env: program.Env, Files: []uintptr{s.childIn.Fd(), s.childOut.Fd(), stderr.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: launch.RunAs.Credential()},
	})
	s.closeChild()
	if failure != nil {
		s.closeOurs()
		return nil, failure
	}
	// The child is not reaped yet, so its PID cannot belong to another process even if the child has exited.
	identity, err := procstat.Identify(pid)
	if err != nil {
		identity = procstat.Process{PID: pid}
	}
	p := &Process{
		Stdin: s.stdin, Stdout: s.stdout, Identity: identity, StartedAt: time.Now(), signal: signal, tree: shim.Tree{Ancestor: os.Getpid()},
		leaderDone: make(chan struct{}), done: make(chan struct{}),
	}
	go p.collect()
	return p, nil
}

func failed(format string, args ...any) *facts.StartError {
	return &facts.StartError{Reason: shim.ReasonStartFailed, Message: fmt.Sprintf(format, args...)}
}

// streams holds the pipes to the server: the server's ends until the server has inherited them, and the multiplexer's ends. os.Pipe creates pipes that support
// deadlines and can be closed while in use; File.Fd sets the server's ends to blocking mode, as programs expect.
type streams struct {
	childIn, childOut *os.File
	stdin, stdout     *os.File
}

func newStreams() (s streams, err error) {
	if s.childIn, s.stdin, err = os.Pipe(); err != nil {
		return s, err
	}
	if s.stdout, s.childOut, err = os.Pipe(); err != nil {
		return s, errors.Join(err, s.childIn.Close(), s.stdin.Close())
	}
	return s, nil
}

// closeChild closes the server's ends after the server has inherited them.
func (s *streams) closeChild() {
	_ = s.childIn.Close()
	_ = s.childOut.Close()
}

func (s *streams) closeOurs() {
	_ = s.stdin.Close()
	_ = s.stdout.Close()
}
