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
	// minInodes is how many files the control plane must be able to create: segments of the log, snapshots, records and their temporary files.
	minInodes = 32
	// spacePoll is how often the file system of the state directory is checked while it is full.
	spacePoll = time.Second
)

// lacksSpace returns an error if the file system of the state directory is too full for etcd.
func (c *ControlPlane) lacksSpace() error {
	var disk unix.Statfs_t
	if err := unix.Statfs(c.dir.root, &disk); err != nil {
		return nil //nolint:nilerr // if the free space is unknown, etcd reports a full disk
	}
	free := int64(disk.Bavail) * int64(disk.Bsize) // their types differ between architectures
	if free < minSpace {
		return fmt.Errorf("no space left in %s: %d MiB are free, and etcd needs %d MiB", c.dir.root, free>>20, minSpace>>20)
	}
	if disk.Files > 0 && disk.Ffree < minInodes { // some file systems have no fixed number of inodes, and report 0
		return fmt.Errorf("no inodes left in %s: %d of %d are free, and the control plane needs %d; delete files there", c.dir.root, disk.Ffree, disk.Files, minInodes)
	}
	return nil
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
