// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// inPlace are the errors of an exchange for files that can only be written in place: the file system has no exchange, the file is a mount, or another user owns the
// file in a folder with the sticky bit.
var inPlace = []error{unix.EINVAL, unix.ENOSYS, unix.EBUSY, unix.EPERM, unix.EACCES}

// exchange exchanges the names of two files of a folder. The error wraps errors.ErrUnsupported if that is impossible.
func exchange(dir *os.File, one, other string) error {
	err := unix.Renameat2(int(dir.Fd()), one, int(dir.Fd()), other, unix.RENAME_EXCHANGE)
	if slices.ContainsFunc(inPlace, func(other error) bool { return errors.Is(err, other) }) {
		return errors.Join(err, errors.ErrUnsupported)
	}
	return err
}

// attributes returns the sorted names of the extended attributes of a file, such as access control lists.
func attributes(file *os.File) []byte {
	buffer := make([]byte, 64<<10) // the maximum size of such a list
	n, err := unix.Flistxattr(int(file.Fd()), buffer)
	if err != nil {
		return nil
	}
	names := bytes.Split(buffer[:n], []byte{0})
	slices.SortFunc(names, bytes.Compare)
	return bytes.Join(names, []byte{0})
}

// holder describes the process that has locked a folder, as far as the kernel reports it.
func holder(dir *os.File) string {
	var status unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &status); err != nil {
		return unknownHolder
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return unknownHolder
	}
	defer func() { _ = locks.Close() }()
	// 1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(status.Dev), unix.Minor(status.Dev), status.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != inode {
			continue
		}
		name, _ := os.ReadFile("/proc/" + fields[4] + "/comm") // the process may have ended meanwhile
		return fmt.Sprintf("process %s (%s)", fields[4], strings.TrimSpace(string(name)))
	}
	return unknownHolder
}
