// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "golang.org/x/sys/unix"

// bomb forks without pause. While its user has limit processes, every fork fails, so bomb forks again as soon as a process of the user exits. Every process has
// its own session.
func bomb(limit int) {
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}); err != nil { //nolint:gosec // a small number
		fail(err)
	}
	for {
		// The child has only this thread and no working Go runtime, so it may make only raw system calls.
		if child, _, _ := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0); child == 0 {
			_, _, _ = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		}
	}
}
