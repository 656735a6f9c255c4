// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Writer appends to a log and bounds its disk space. It is not safe for concurrent use; a log has one writer.
type Writer struct {
	file  *os.File
	size  int64
	limit int64
	kept  int64 // approximate offset of the first byte that is not punched out
	punch puncher
}

// margin is how much page alignment can add to the disk space of a log, in bytes.
const margin = 8 << 10

// OpenWriter opens a log for appending. If the log does not exist, OpenWriter creates it with mode 0600. limit is the disk space in bytes.
func OpenWriter(path string, limit int64) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the log: %w", err), file.Close())
	}
	limit -= margin
	return &Writer{file: file, size: info.Size(), limit: limit, punch: puncher{File: file, Limit: limit}}, nil
}

// Size returns the offset of the end, in bytes since the first output.
func (w *Writer) Size() int64 { return w.size }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	w.size += int64(n)
	if w.size-w.kept > w.limit {
		w.punch.Check(time.Now())
		w.kept = w.size - w.limit/2
	}
	return n, err
}

// Tail returns up to n of the last bytes.
func (w *Writer) Tail(n int) ([]byte, error) {
	tail := make([]byte, min(int64(n), w.size))
	_, err := w.file.ReadAt(tail, w.size-int64(len(tail)))
	return tail, err
}

// Close closes the log.
func (w *Writer) Close() error { return w.file.Close() }
