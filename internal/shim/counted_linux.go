// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
)

// maxStreams bounds how many streams the shim remembers. It forgets the one that was used least recently.
const maxStreams = 16

// counted are the streams of input of which the terminal has received a part. Their clients can send input again over another connection, because the manager may
// be killed before it knows what was typed; the shim types each byte once.
type counted struct {
	mu      sync.Mutex // also keeps the input in order, so it is held while the program does not read
	streams []*stream  // the one that was used last comes first
}

type stream struct {
	name    string
	receipt facts.Receipt
	last    byte // the last byte that was typed; before that, a line feed
}

// take types the part of a call that was not typed before, and then the end of the stream.
func (c *counted) take(call callFrame, master *os.File) answerFrame {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.find(call.Stream, call.Resume)
	switch {
	case s == nil:
		return answerFrame{UnknownStream: true}
	case call.Offset < 0 || call.Offset > s.receipt.Total:
		return answerFrame{Error: "input is missing before this offset of the stream"}
	}
	rest := call.Data[min(s.receipt.Total-call.Offset, int64(len(call.Data))):]
	n, err := master.Write(rest)
	if n > 0 {
		s.receipt.Total, s.last = s.receipt.Total+int64(n), rest[n-1]
	}
	if err == nil && call.End && !s.receipt.Ended {
		s.receipt.Ended = true
		s.receipt.Passed, err = passEnd(master, s.last)
	}
	if err != nil {
		return answerFrame{Error: err.Error()}
	}
	receipt := s.receipt
	return answerFrame{Receipt: &receipt}
}

// find returns a stream, and creates it unless it must be known.
func (c *counted) find(name string, known bool) *stream {
	at := slices.IndexFunc(c.streams, func(s *stream) bool { return s.name == name })
	found := &stream{name: name, last: '\n'}
	switch {
	case at >= 0:
		found = c.streams[at]
		c.streams = slices.Delete(c.streams, at, at+1)
	case known:
		return nil
	}
	c.streams = slices.Insert(c.streams, 0, found)
	c.streams = c.streams[:min(len(c.streams), maxStreams)]
	return found
}

// passEnd types the end of the input, usually Ctrl-D, if the terminal reads lines; otherwise this key means something else to the program, or nothing. After a
// line that is not complete, the first such key only submits the line.
func passEnd(master *os.File, last byte) (passed bool, err error) {
	var modes *unix.Termios
	conn, err := master.SyscallConn()
	if err != nil {
		return false, err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { modes, failed = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	if err := errors.Join(err, failed); err != nil {
		return false, err
	}
	end := modes.Cc[unix.VEOF]
	if modes.Lflag&unix.ICANON == 0 || end == 0 {
		return false, nil
	}
	keys := []byte{end}
	if last != '\n' && last != end && (last != '\r' || modes.Iflag&unix.ICRNL == 0) {
		keys = append(keys, end)
	}
	_, err = master.Write(keys)
	return err == nil, err
}
