// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package statedir

import (
	"io/fs"
	"syscall"
)

func owner(info fs.FileInfo) (uid int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// Inode returns the inode number of a file, or 0 if the system has none.
func Inode(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}
