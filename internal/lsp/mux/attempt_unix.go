// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// attempt returns a function that writes as much as a stream accepts without blocking; it must not be called concurrently. It returns nil for a stream that
// does not support this. Errors show at the next ordinary write.
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
