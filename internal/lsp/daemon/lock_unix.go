// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long to wait for the lock: the previous multiplexer may be about to exit.
const lockPatience = 5 * time.Second

// takeLock locks a file. The lock is held as long as the file is open.
func takeLock(ctx context.Context, path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || ctx.Err() != nil {
			_ = file.Close()
			return nil, fmt.Errorf("another multiplexer uses %s; stop that multiplexer first: %w", path, err)
		}
		pause(ctx, 10*time.Millisecond)
	}
}
