// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package descriptors keeps the file descriptors that a program of Berth has inherited from the programs that it starts. Go itself opens every file so that no
// other program inherits it, but the shell, the service manager or the agent that starts Berth may have passed on open files.
package descriptors

import (
	"os"
	"strconv"
	"syscall"
)

// first is the first descriptor after standard input, output and error.
const first = 3

// CloseOnExec marks all open descriptors, except the standard ones, as closed at the execution of another program. A program calls it first, before it starts
// others. The program itself can still use these descriptors, and can pass one on explicitly.
func CloseOnExec() {
	if closeRange() != nil {
		markListed()
	}
}

// markListed is CloseOnExec for systems without a call for all descriptors. Without a list of them, it marks none.
func markListed() {
	entries, _ := os.ReadDir("/dev/fd")
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= first {
			syscall.CloseOnExec(fd)
		}
	}
}
