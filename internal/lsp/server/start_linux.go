// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/shim"
)

// occupied is true while this process has a server that is alive, or children that are not reaped.
var occupied atomic.Bool

// Start executes a server. After a failure no process, descriptor or goroutine remains. If stderr is an *os.File, the server writes to it directly.
func Start(launch lsp.Launch, stderr io.Writer) (*Process, *facts.StartError) {
	if !occupied.CompareAndSwap(false, true) {
		return nil, failed("another server of this multiplexer is still running; stop it first")
	}
	p, err := start(launch, stderr)
	if err != nil {
		occupied.Store(false)
	}
	return p, err
}

func start(launch lsp.Launch, stderr io.Writer) (*Process, *facts.StartError) {
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
	s, err := newStreams(stderr)
	if err != nil {
		return nil, failed("cannot set up input and output of the server: %v", err)
	}
	pid, failure := shim.Execute(program.File, launch.Command, &syscall.ProcAttr{
		Dir: program.Dir, Env: program.Env, Files: []uintptr{s.child[0].Fd(), s.child[1].Fd(), s.child[2].Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: launch.RunAs.Credential()},
	})
	if failure != nil {
		s.abandon()
		return nil, failure
	}
	s.closeChild()
	// The child is not reaped yet, so its PID cannot belong to another process even if the child has exited.
	identity, err := shim.Identify(pid)
	if err != nil {
		identity = shim.Process{PID: pid}
	}
	p := &Process{
		streams: s, identity: identity, startedAt: time.Now(), signal: signal, tree: shim.Tree{Ancestor: os.Getpid()},
		leaderDone: make(chan struct{}), done: make(chan struct{}),
	}
	go p.collect()
	return p, nil
}

func failed(format string, args ...any) *facts.StartError {
	return &facts.StartError{Reason: shim.ReasonStartFailed, Message: fmt.Sprintf(format, args...)}
}
