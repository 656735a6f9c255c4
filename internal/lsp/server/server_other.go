// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package server

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/shim"
)

// Process is one incarnation of the server. Servers are not supported on this system.
type Process struct{ done chan struct{} }

// Start returns an error that explains what this system lacks.
func Start(lsp.Launch, io.Writer) (*Process, *facts.StartError) {
	return nil, &facts.StartError{Reason: shim.ReasonStartFailed, Message: "language servers require Linux, because Berth stops their processes with subreapers and pidfds"}
}

// Stdin returns nil.
func (p *Process) Stdin() io.WriteCloser { return nil }

// Stdout returns nil.
func (p *Process) Stdout() io.Reader { return nil }

// Drained returns a channel that is never closed.
func (p *Process) Drained() <-chan struct{} { return p.done }

// Identity returns the zero value.
func (p *Process) Identity() shim.Process { return shim.Process{} }

// StartedAt returns the zero time.
func (p *Process) StartedAt() time.Time { return time.Time{} }

// LeaderDone returns a channel that is never closed.
func (p *Process) LeaderDone() <-chan struct{} { return p.done }

// LeaderExit returns nil.
func (p *Process) LeaderExit() *facts.Exit { return nil }

// Done returns a channel that is never closed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns nil.
func (p *Process) Exit() *facts.Exit { return nil }

// Close does nothing.
func (p *Process) Close() {}

// Stop does nothing.
func (p *Process) Stop(func(context.Context) error, time.Duration) {}

// Kill does nothing.
func (p *Process) Kill() error { return nil }

// Usage returns an error.
func (p *Process) Usage() (int64, time.Duration, error) {
	return 0, 0, errors.New("the resource usage of a server is available only on Linux")
}
