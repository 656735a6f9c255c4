// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"io"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// importance determines what may be dropped for a slow reader. Frames are dropped in the order of the constants; needed frames are never dropped.
type importance uint8

const (
	needed importance = iota
	// diagnostics are dropped if newer ones of the same document are queued behind them.
	diagnostics
	progressReport
	logging
)

// keepBytes is the largest buffer that is kept for reuse.
const keepBytes = 256 << 10

// piece is a range of bytes in a queue. A piece is dropped completely or not at all.
type piece struct {
	size int
	kind importance
	key  string
}

// queue holds the bytes to be sent to one peer. Frames are appended to the queue in place, and its writer takes all of them together. flush writes what the
// peer accepts without blocking, because waking the writer would cost more.
type queue struct {
	limit int
	// attempt writes what the peer accepts without blocking, and returns the number of bytes written. If attempt is set, unflushed is set too: add adds the queue
	// to unflushed, and the goroutine that removes the queue from there must call flush or signal. If attempt is nil, add wakes the writer.
	attempt   func([]byte) int
	unflushed *[]*queue

	mu      sync.Mutex
	wake    sync.Cond
	pending []byte
	pieces  []piece
	writing int
	closed  bool
	failed  bool
}

func newQueue(limit int) *queue {
	q := &queue{limit: limit}
	q.wake.L = &q.mu
	return q
}

func (q *queue) setLimit(limit int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit = limit
}

// add appends one frame: the function frame appends its bytes to a buffer. If there is no room, even after everything that may be dropped was dropped, the peer
// does not read, and add returns false.
func (q *queue) add(kind importance, key string, frame func(buffer []byte) []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.failed {
		return true
	}
	if !q.hasRoom(kind, key) {
		return false
	}
	before := len(q.pending)
	q.pending = frame(q.pending)
	size := len(q.pending) - before
	if n := len(q.pieces); kind == needed && n > 0 && q.pieces[n-1].kind == needed {
		q.pieces[n-1].size += size
	} else {
		q.pieces = append(q.pieces, piece{size: size, kind: kind, key: key})
	}
	switch {
	case q.attempt == nil:
		q.wake.Signal()
	case !slices.Contains(*q.unflushed, q):
		*q.unflushed = append(*q.unflushed, q)
	}
	return true
}

// hasRoom reports whether another frame may be queued. If the limit is reached, it first drops what may be dropped.
func (q *queue) hasRoom(kind importance, key string) bool {
	full := func() bool { return q.limit > 0 && q.writing+len(q.pending) > q.limit }
	for drop := diagnostics; drop <= logging && full(); drop++ {
		q.drop(drop, kind, key)
	}
	return !full()
}

// flush writes what the peer accepts without blocking, and leaves the rest to the writer. While the writer is writing, flush does nothing.
func (q *queue) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.failed || q.writing > 0 || len(q.pending) == 0 {
		return
	}
	written := q.attempt(q.pending)
	if written < len(q.pending) {
		q.pending = q.pending[:copy(q.pending, q.pending[written:])]
		if written > 0 { // the first frame may be partly written, so nothing of the rest can be dropped
			q.pieces = append(q.pieces[:0], piece{size: len(q.pending), kind: needed})
		}
		q.wake.Signal()
		return
	}
	q.pending, q.pieces = reused(q.pending), q.pieces[:0]
}

// signal wakes the writer.
func (q *queue) signal() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wake.Signal()
}

// reused returns the memory of a buffer for reuse, or nil if it is too large.
func reused(buffer []byte) []byte {
	if cap(buffer) > keepBytes {
		return nil
	}
	return buffer[:0]
}

// drop removes the pieces of a kind. Of diagnostics, it removes only those that are superseded by newer ones or by the frame that is about to be added. The
// parameters coming and key are the kind and the key of that frame.
func (q *queue) drop(kind, coming importance, key string) {
	newest := map[string]int{}
	if kind == diagnostics {
		for i, p := range q.pieces {
			if p.kind == diagnostics {
				newest[p.key] = i
			}
		}
		if coming == diagnostics {
			newest[key] = len(q.pieces)
		}
	}
	kept, from, to := q.pieces[:0], 0, 0
	for i, p := range q.pieces {
		data := q.pending[from : from+p.size]
		from += p.size
		if p.kind == kind && (kind != diagnostics || newest[p.key] != i) {
			continue
		}
		to += copy(q.pending[to:], data)
		kept = append(kept, p)
	}
	q.pieces, q.pending = kept, q.pending[:to]
}

// backlog returns how many bytes are not written yet.
func (q *queue) backlog() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.writing + len(q.pending)
}

// close makes the writer return when everything is written. abort discards everything that is not written.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wake.Signal()
}

func (q *queue) abort() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.pending, q.pieces = true, nil, nil
	q.wake.Signal()
}

// write writes the queue to w until the queue is closed or a write fails.
func (q *queue) write(w io.Writer) error {
	var buffer []byte
	for {
		buffer = q.take(buffer)
		if buffer == nil {
			return nil
		}
		if _, err := w.Write(buffer); err != nil {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.failed, q.pending, q.pieces, q.writing = true, nil, nil, 0
			return err
		}
	}
}

// take waits for data and returns it, or nil if the queue is closed and empty.
func (q *queue) take(used []byte) (buffer []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing = 0
	for len(q.pending) == 0 {
		if q.closed {
			return nil
		}
		q.wake.Wait()
	}
	buffer, q.pending, q.pieces = q.pending, reused(used), q.pieces[:0]
	q.writing = len(buffer)
	return buffer
}

// attempt returns a function that writes to a stream without blocking, or nil if the stream does not support this. The function writes as much as the stream
// accepts and returns the number of bytes written. It must not be called concurrently. After an error it returns 0, and the next ordinary write returns the
// error.
func attempt(w io.Writer) func([]byte) int {
	stream, ok := w.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := stream.SyscallConn()
	if err != nil || !neverWaits(raw) {
		return nil
	}
	var data []byte
	var written int
	once := func(fd uintptr) bool {
		written, _ = unix.Write(int(fd), data)
		return true
	}
	return func(b []byte) int {
		data, written = b, 0
		_ = raw.Write(once)
		data = nil
		return max(written, 0)
	}
}

func neverWaits(raw syscall.RawConn) bool {
	flags := 0
	err := raw.Control(func(fd uintptr) { flags, _ = unix.FcntlInt(fd, unix.F_GETFL, 0) })
	return err == nil && flags&unix.O_NONBLOCK != 0
}
