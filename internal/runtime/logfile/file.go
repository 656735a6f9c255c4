// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logfile implements append-only log files. The oldest part of a log may be punched out (replaced with a hole in the file), so that offsets stay valid.
package logfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/runtime"
)

// followEvery is the interval at which a reader that waits polls the log. A stat costs less than an inotify instance, of which a user has few.
const followEvery = 100 * time.Millisecond

// Open opens a log for reading. It returns runtime.ErrNotFound if the log does not exist.
func Open(path string) (*File, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, runtime.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return &File{file: file, closed: make(chan struct{})}, nil
}

// File is a runtime.Log whose head may be punched out at any time.
type File struct {
	file   *os.File
	closed chan struct{}
	once   sync.Once
}

// Bounds implements runtime.Log.
func (l *File) Bounds() (first, end int64, err error) {
	info, err := l.file.Stat()
	if err != nil {
		return 0, 0, l.explain(err)
	}
	first, err = l.first()
	// If output is written between Stat and first, the next call reports it.
	return min(first, info.Size()), info.Size(), err
}

// control calls the function do with the descriptor. The function may change the offset of the file, because reads do not use that offset.
func (l *File) control(do func(fd int) error) error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return l.explain(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = do(int(fd)) })
	return l.explain(errors.Join(err, failed))
}

// first returns the offset of the first byte that is not punched out.
func (l *File) first() (offset int64, err error) {
	err = l.control(func(fd int) (err error) {
		offset, err = firstData(fd)
		return err
	})
	return offset, err
}

// explain replaces the error of an operation that failed because the log was closed.
func (l *File) explain(err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-l.closed:
		return fmt.Errorf("the log is closed: %w", runtime.ErrNotFound)
	default:
		return err
	}
}

// ReadAt implements runtime.Log.
func (l *File) ReadAt(p []byte, offset int64) (int, error) {
	n, err := l.file.ReadAt(p, offset)
	// A hole reads as zeros, even if it is punched during the read, so the start of the data is queried after the read.
	first, failed := l.first()
	if failed != nil {
		return 0, failed
	}
	if offset < first && n > 0 {
		return 0, fmt.Errorf("the output before byte %d is no longer available: %w", first, io.ErrUnexpectedEOF)
	}
	if errors.Is(err, io.EOF) {
		return n, err
	}
	return n, l.explain(err)
}

// Wait implements runtime.Log.
func (l *File) Wait(ctx context.Context, offset int64) error {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		var st unix.Stat_t
		if err := l.stat(&st); err != nil {
			return err
		}
		if st.Size > offset {
			return nil
		}
		if st.Nlink == 0 {
			return fmt.Errorf("the log was removed: %w", runtime.ErrNotFound)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-l.closed:
			return fmt.Errorf("the log is closed: %w", runtime.ErrNotFound)
		}
	}
}

func (l *File) stat(st *unix.Stat_t) error {
	return l.control(func(fd int) error { return unix.Fstat(fd, st) })
}

// Close implements runtime.Log.
func (l *File) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.explain(l.file.Close())
}
