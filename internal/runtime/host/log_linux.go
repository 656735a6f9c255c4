// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// followEvery is how often a log that is waited for is looked at. A stat is cheaper than an inotify instance, of which a user has few.
const followEvery = 100 * time.Millisecond

// OpenLog implements runtime.Logger.
func (h *Host) OpenLog(_ context.Context, uid types.UID) (runtime.Log, error) {
	if !shim.ValidUID(string(uid)) {
		return nil, fmt.Errorf("log of %q: %w", uid, runtime.ErrNotFound)
	}
	file, err := os.Open(filepath.Join(h.dir(uid), shim.LogFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("log of %s: %w", uid, runtime.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", uid, err)
	}
	return &logFile{file: file, closed: make(chan struct{})}, nil
}

// logFile is a log whose head may be punched out at any time.
type logFile struct {
	file   *os.File
	closed chan struct{}
	once   sync.Once
}

// Bounds implements runtime.Log.
func (l *logFile) Bounds() (first, end int64, err error) {
	info, err := l.file.Stat()
	if err != nil {
		return 0, 0, l.explain(err)
	}
	first, err = l.first()
	// What was written between both questions is left for the next time.
	return min(first, info.Size()), info.Size(), err
}

// first gives the offset of the first byte that is still there. Reads don't use the file's own offset, so it may be moved.
func (l *logFile) first() (int64, error) {
	var offset int64
	raw, err := l.file.SyscallConn()
	if err != nil {
		return 0, l.explain(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		offset, failed = unix.Seek(int(fd), 0, unix.SEEK_DATA)
		if errors.Is(failed, unix.ENXIO) { // no data at all
			offset, failed = unix.Seek(int(fd), 0, io.SeekEnd)
		}
	})
	return offset, l.explain(errors.Join(err, failed))
}

// explain says of whatever failed because the log was closed that it was.
func (l *logFile) explain(err error) error {
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
func (l *logFile) ReadAt(p []byte, offset int64) (int, error) {
	n, err := l.file.ReadAt(p, offset)
	// A hole reads as zeros, also one that was punched while it was read: so it is asked afterwards what is still there.
	first, failed := l.first()
	if failed != nil {
		return 0, failed
	}
	if offset < first && n > 0 {
		return 0, fmt.Errorf("the output before byte %d is gone: %w", first, io.ErrUnexpectedEOF)
	}
	if errors.Is(err, io.EOF) {
		return n, err
	}
	return n, l.explain(err)
}

// Wait implements runtime.Log.
func (l *logFile) Wait(ctx context.Context, offset int64) error {
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

func (l *logFile) stat(st *unix.Stat_t) error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return l.explain(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.Fstat(int(fd), st) })
	return l.explain(errors.Join(err, failed))
}

// Close implements runtime.Log.
func (l *logFile) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.explain(l.file.Close())
}
