// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// minSpace is the free space that etcd needs to start, in bytes: etcd allocates its log in segments of 64 MiB.
	minSpace = 96 << 20
	// spacePoll is how often the file system of the state directory is checked while it is full.
	spacePoll = time.Second
)

// lacksSpace returns an error if the file system of the state directory is too full for etcd.
func (c *ControlPlane) lacksSpace() error {
	free, err := freeSpace(c.dir.root)
	if err != nil || free >= minSpace {
		return nil //nolint:nilerr // if the free space is unknown, etcd reports a full disk
	}
	return fmt.Errorf("no space left in %s: %d MiB are free, and etcd needs %d MiB", c.dir.root, free>>20, minSpace>>20)
}

// awaitSpace waits until the file system of the state directory has enough space, and reports whether it was full. It returns only errors of the context.
func (c *ControlPlane) awaitSpace(ctx context.Context) (full bool, err error) {
	lacking := c.lacksSpace()
	if lacking == nil {
		return false, nil
	}
	c.opts.Progress(lacking.Error() + "; the control plane restarts when space is available")
	return true, wait.PollUntilContextCancel(ctx, spacePoll, false, func(context.Context) (bool, error) { return c.lacksSpace() == nil, nil })
}

// freeSpace returns how many bytes this user can still write to the file system of a directory.
func freeSpace(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("read the free space in %s: %w", dir, err)
	}
	return int64(stat.Bavail) * int64(stat.Bsize), nil // their types differ between architectures
}
