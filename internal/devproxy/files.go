// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import "syscall"

// openFiles returns how many files this process may have open, or 0 if the limit is unknown.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:gosec,unconvert,nolintlint // it is signed on some systems
}
