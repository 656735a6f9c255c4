// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir

import (
	"os"

	"golang.org/x/sys/unix"
)

// exchange puts a new file in the place of an old one. Renaming over a file makes ext4 flush the new one to disk, which is the slowest step; exchanging the two
// does not.
func exchange(from, to string) error {
	if unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE) == nil {
		_ = os.Remove(from) // the old file, which is no longer used
		return nil
	}
	return os.Rename(from, to) // no old file, or the file system does not support the exchange
}
