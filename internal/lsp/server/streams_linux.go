// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// streams holds the pipes to the server. The field child holds the server's ends until the server has inherited them. The fields stdin and stdout hold the
// multiplexer's ends.
type streams struct {
	child  [3]*os.File
	shared bool // child[2] belongs to the caller
	stdin  *os.File
	stdout *output
	copied sync.WaitGroup // the goroutine that copies stderr
}

func newStreams(stderr io.Writer) (s *streams, err error) {
	s = &streams{}
	if s.child[0], s.stdin, err = pipe(writing); err != nil {
		return nil, err
	}
	child, ours, err := pipe(reading)
	if err != nil {
		s.abandon()
		return nil, err
	}
	s.child[1], s.stdout = child, &output{file: ours, ended: make(chan struct{})}
	if file, ok := stderr.(*os.File); ok {
		s.child[2], s.shared = file, true
		return s, nil
	}
	if s.child[2], ours, err = pipe(reading); err != nil {
		s.abandon()
		return nil, err
	}
	// The copy ends when no process has the other end of the pipe open, at the latest when no process of the tree is left.
	s.copied.Go(func() {
		_, _ = io.Copy(stderr, ours)
		_ = ours.Close()
	})
	return s, nil
}

// reading and writing state how the multiplexer uses its end of a pipe. The value is the index of that end in the result of pipe2.
const (
	reading = 0
	writing = 1
)

// pipe returns both ends of a pipe: the server's end, which is in blocking mode as programs expect, and the multiplexer's end, which supports deadlines and can
// be closed while in use.
func pipe(use int) (child, ours *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[use], true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[1-use]), "server"), os.NewFile(uintptr(fds[use]), "multiplexer"), nil
}

// closeChild closes the server's ends after the server has inherited them.
func (s *streams) closeChild() {
	for i, file := range s.child {
		if file != nil && (i != 2 || !s.shared) {
			_ = file.Close()
		}
		s.child[i] = nil
	}
}

func (s *streams) closeOurs() {
	_ = s.stdin.Close()
	if s.stdout != nil {
		_ = s.stdout.file.Close()
	}
}

// abandon undoes newStreams.
func (s *streams) abandon() {
	s.closeChild()
	s.closeOurs()
	s.copied.Wait()
}

// output is the server's stdout. It closes the channel ended when a read fails, usually at the end of the stream.
type output struct {
	file  *os.File
	once  sync.Once
	ended chan struct{}
}

func (o *output) Read(p []byte) (int, error) {
	n, err := o.file.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		o.once.Do(func() { close(o.ended) })
	}
	return n, err
}

// SetReadDeadline sets the deadline of Read.
func (o *output) SetReadDeadline(t time.Time) error { return o.file.SetReadDeadline(t) }
