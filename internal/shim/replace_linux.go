// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"os"

	"golang.org/x/sys/unix"
)

// replace puts a new file in the place of an old one. To rename over a file has ext4 write the new one to the disk, which takes longest of all; to
// exchange the two does not. What has to survive a power failure is renamed.
func replace(from, to string, sync bool) error {
	if !sync && unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE) == nil {
		_ = os.Remove(from) // the old one, which nobody looks for
		return nil
	}
	return os.Rename(from, to) // there was none, or the file system cannot do that
}
