// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import "golang.org/x/sys/unix"

// Kinds of system calls that can block on a terminal, by how they receive the descriptor.
const (
	callOther = iota
	callRead
	callPoll
	callSelect
	callEpoll
	callRing
)

// calls maps system call numbers to their kinds: those that all architectures have, and those of this architecture.
var calls = func() map[int]int {
	all := map[int]int{
		unix.SYS_READ: callRead, unix.SYS_READV: callRead, unix.SYS_PPOLL: callPoll, unix.SYS_PSELECT6: callSelect,
		unix.SYS_EPOLL_PWAIT: callEpoll, unix.SYS_EPOLL_PWAIT2: callEpoll, unix.SYS_IO_URING_ENTER: callRing,
	}
	for number, kind := range olderCalls {
		all[number] = kind
	}
	return all
}()
