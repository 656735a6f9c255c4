// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"errors"
	"net"
	"syscall"
)

// quiet reports whether an idle connection may be reused: it is open and has no unread data. Unread data would be mistaken for the response to the next
// request.
func quiet(connection net.Conn) bool {
	socket, is := connection.(syscall.Conn)
	if !is {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	waits := false
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, err := syscall.Read(int(fd), one[:]) // this does not block, because Go opens sockets in non-blocking mode
		waits = err == syscall.EAGAIN
		return true
	})
	return err == nil && waits
}

// waitClosed waits until the peer closes the connection, data arrives, or the read deadline passes. It reports whether the connection has ended.
func waitClosed(connection *net.TCPConn) bool {
	raw, err := connection.SyscallConn()
	if err != nil {
		return true
	}
	over := false
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		over = n <= 0
		return err != syscall.EAGAIN && err != syscall.EINTR
	})
	return over && err == nil || errors.Is(err, net.ErrClosed)
}
