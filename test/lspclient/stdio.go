// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lspclient

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
)

// Program is a connection to a program over its stdin and stdout. Close closes stdin and waits until the program has exited. Kill kills the program with
// SIGKILL and then closes the connection.
type Program struct {
	*exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser

	once sync.Once
	err  error
}

// Start starts a program and connects to it.
func Start(cmd *exec.Cmd) (*Program, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return &Program{Cmd: cmd, in: in, out: out}, nil
}

func (p *Program) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *Program) Write(b []byte) (int, error) { return p.in.Write(b) }

// Close closes the program's stdin, waits for its exit and returns the result of Wait.
func (p *Program) Close() error {
	p.once.Do(func() {
		_ = p.in.Close()
		_, _ = io.Copy(io.Discard, p.out)
		p.err = p.Wait()
	})
	return p.err
}

// Kill kills the program with SIGKILL.
func (p *Program) Kill() error {
	_ = p.Process.Kill()
	err := p.Close()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
