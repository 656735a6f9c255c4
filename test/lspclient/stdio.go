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

// Program is a program that speaks over its stdin and stdout, as a connection. Closing it closes stdin, and waits until the program has ended;
// Kill does not wait for it to end by itself.
type Program struct {
	*exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser

	once sync.Once
	err  error
}

// Start starts a program to talk to.
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

// Close ends the program by the end of its input, and gives how it ended.
func (p *Program) Close() error {
	p.once.Do(func() {
		_ = p.in.Close()
		_, _ = io.Copy(io.Discard, p.out)
		p.err = p.Wait()
	})
	return p.err
}

// Kill ends the program at once.
func (p *Program) Kill() error {
	_ = p.Process.Kill()
	err := p.Close()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
