// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"
	"syscall"
)

// closeOnExec marks the inherited descriptors, except the standard ones, as closed at the execution of another program. berth and the other programs do the same
// with internal/descriptors, which this module cannot import.
func closeOnExec() {
	entries, _ := os.ReadDir("/dev/fd") // without a list, none is marked
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > syscall.Stderr {
			syscall.CloseOnExec(fd)
		}
	}
}
