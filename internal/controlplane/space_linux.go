// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// freeSpace returns how many bytes this user can still write to the file system of a directory.
func freeSpace(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("read the free space in %s: %w", dir, err)
	}
	return int64(stat.Bavail) * int64(stat.Bsize), nil // their types differ between architectures
}
