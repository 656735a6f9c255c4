// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package shim

import "golang.org/x/sys/unix"

func mayExecute(path string) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS) == nil
}
