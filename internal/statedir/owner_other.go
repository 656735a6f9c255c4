// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package statedir

import "io/fs"

func owner(fs.FileInfo) (uid int, known bool) { return 0, false }

// Inode returns the inode number of a file, or 0 if the system has none.
func Inode(fs.FileInfo) uint64 { return 0 }
