// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// lockPatience is how long ReplaceAll waits for another call that changes files in the same folder.
	lockPatience = 10 * time.Second
	lockEvery    = 20 * time.Millisecond

	unknownHolder = "another process"
)

// lock locks the folders of the files. All calls lock in the same order, so that no two of them wait for each other.
func (e *edit) lock(ctx context.Context) error {
	type key struct{ device, inode uint64 }
	folders := map[key]*os.File{}
	for _, file := range e.files {
		if _, err := examine(file.root, file.Name); err != nil {
			return err
		}
		dir, err := file.root.OpenFile(filepath.Dir(file.Name), os.O_RDONLY|syscall.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		var status unix.Stat_t
		err = unix.Fstat(int(dir.Fd()), &status)
		at := key{uint64(status.Dev), status.Ino} //nolint:unconvert // the type of the device depends on the system
		if err != nil || folders[at] != nil {
			if err := errors.Join(err, dir.Close()); err != nil {
				return err
			}
			continue
		}
		folders[at] = dir
		e.locks = append(e.locks, dir)
	}
	order := make([]key, 0, len(folders))
	for at := range folders {
		order = append(order, at)
	}
	slices.SortFunc(order, func(a, b key) int { return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.inode, b.inode)) })
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for _, at := range order {
		if err := lock(ctx, folders[at]); err != nil {
			return err
		}
	}
	return nil
}

// lock locks a folder. A file system without such locks is not locked.
func lock(ctx context.Context, dir *os.File) error {
	err := wait.PollUntilContextCancel(ctx, lockEvery, true, func(context.Context) (bool, error) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		// Network file systems return other errors, because they do not lock folders.
		return !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR), nil
	})
	if err != nil {
		return fmt.Errorf("%s changes files in %s: nothing was written; try again when it has ended: %w", holder(dir), dir.Name(), err)
	}
	return nil
}
