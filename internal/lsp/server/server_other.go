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

// Process is one incarnation of the server, of which there is none on this system.
type Process struct{ done chan struct{} }

// Start says what this system lacks.
func Start(lsp.Launch, io.Writer) (*Process, *facts.StartError) {
	return nil, &facts.StartError{Reason: shim.ReasonStartFailed, Message: "language servers need Linux: Berth ends their processes with its subreapers and pidfds"}
}

// Stdin is nil.
func (p *Process) Stdin() io.WriteCloser { return nil }

// Stdout is nil.
func (p *Process) Stdout() io.Reader { return nil }

// Drained is never closed.
func (p *Process) Drained() <-chan struct{} { return p.done }

// Identity is nobody.
func (p *Process) Identity() shim.Process { return shim.Process{} }

// StartedAt is never.
func (p *Process) StartedAt() time.Time { return time.Time{} }

// LeaderDone is never closed.
func (p *Process) LeaderDone() <-chan struct{} { return p.done }

// LeaderExit is not known.
func (p *Process) LeaderExit() *facts.Exit { return nil }

// Done is never closed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is not known.
func (p *Process) Exit() *facts.Exit { return nil }

// Close has nothing to let go of.
func (p *Process) Close() {}

// Stop has nothing to end.
func (p *Process) Stop(func(context.Context) error, time.Duration) {}

// Kill has nothing to end.
func (p *Process) Kill() error { return nil }

// Usage is not known.
func (p *Process) Usage() (int64, time.Duration, error) {
	return 0, 0, errors.New("the usage of a server is known on Linux only")
}
