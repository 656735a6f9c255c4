// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// attempt returns a function that writes to a stream without blocking, or nil if the stream does not support this. The function writes as much as the stream
// accepts and returns the number of bytes written. It must not be called concurrently. After an error it returns 0, and the next ordinary write returns the
// error.
func attempt(w io.Writer) func([]byte) int {
	stream, ok := w.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := stream.SyscallConn()
	if err != nil || !neverWaits(raw) {
		return nil
	}
	var data []byte
	var written int
	once := func(fd uintptr) bool {
		written, _ = unix.Write(int(fd), data)
		return true
	}
	return func(b []byte) int {
		data, written = b, 0
		_ = raw.Write(once)
		data = nil
		return max(written, 0)
	}
}

func neverWaits(raw syscall.RawConn) bool {
	flags := 0
	err := raw.Control(func(fd uintptr) { flags, _ = unix.FcntlInt(fd, unix.F_GETFL, 0) })
	return err == nil && flags&unix.O_NONBLOCK != 0
}
