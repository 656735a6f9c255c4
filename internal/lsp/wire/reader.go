// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"
)

const (
	// bufferBytes is the size of a reader's buffer: a message that fits is read in place. A message of 32 KiB fits with its header, in one read.
	bufferBytes = 40 << 10
	// keepBytes is the largest body whose memory is reused for the next one.
	keepBytes = 256 << 10
	// stepBytes is the maximum number of bytes by which the memory of a body grows in one step.
	stepBytes = 1 << 20
)

// Reader reads messages from a stream. It is not safe for concurrent use. To interrupt a Read, close the stream. Do not set the stream's read deadline, which
// the Reader sets itself.
type Reader struct {
	// Heard is called whenever data has arrived; it may be nil.
	Heard func()

	source   io.Reader
	deadline interface{ SetReadDeadline(time.Time) error } // nil if the stream has none
	armed    bool
	limits   Limits
	budget   *Budget

	buffer      []byte
	start, end  int // unconsumed data in buffer
	large       []byte
	begun       bool // a header was found, so nothing more is skipped
	skipped     int
	failed      error
	emptyInARow int
}

// NewReader returns a reader of the stream. budget may be nil.
func NewReader(r io.Reader, limits Limits, budget *Budget) *Reader {
	reader := &Reader{source: r, limits: limits.withDefaults(), budget: budget, buffer: make([]byte, bufferBytes)}
	reader.deadline, _ = r.(interface{ SetReadDeadline(time.Time) error })
	reader.begun = limits.Skip <= 0
	return reader
}

// Limit changes the limits for subsequent messages. It must not be called during a Read.
func (r *Reader) Limit(limits Limits) { r.limits = limits.withDefaults() }

// Read returns the body of the next message, valid until the next Read. Invalid UTF-8 bytes are replaced by question marks, because servers handle them
// differently and some exit. The error is io.EOF only if the stream ended between two messages. After an error every further Read returns the same error.
func (r *Reader) Read() ([]byte, error) {
	if r.failed != nil {
		return nil, r.failed
	}
	body, err := r.next()
	r.disarm()
	if err != nil {
		r.failed, r.large, r.buffer = err, nil, nil
		return nil, err
	}
	scrub(body)
	return body, nil
}

func (r *Reader) next() ([]byte, error) {
	if cap(r.large) > keepBytes {
		r.large = nil
	}
	length, err := r.header()
	if err != nil {
		return nil, err
	}
	if length > r.limits.MessageBytes {
		return nil, fmt.Errorf("%w: Content-Length %d exceeds the limit of %d bytes", errTooLarge, length, r.limits.MessageBytes)
	}
	if length > len(r.buffer) {
		return r.readLarge(length)
	}
	if r.end-r.start < length {
		r.arm(r.limits.patience(length))
	}
	for r.end-r.start < length {
		if err := r.fill(); err != nil {
			return nil, within(err)
		}
	}
	body := r.buffer[r.start : r.start+length : r.start+length]
	r.start += length
	return body, nil
}

// readLarge reads a body that does not fit into the buffer: into the memory of an earlier body, or in pieces, so that memory grows only with the data that has
// arrived. The pieces are joined at the end.
func (r *Reader) readLarge(length int) ([]byte, error) {
	r.arm(r.limits.patience(length))
	if cap(r.large) >= length {
		r.large = r.large[:length]
		return r.large, r.readInto(r.large)
	}
	r.large = nil
	var pieces [][]byte
	taken := 0
	defer func() { r.budget.give(taken) }()
	for size := bufferBytes; taken < length; size = min(taken, stepBytes) {
		size = min(size, length-taken)
		if err := r.budget.take(size); err != nil {
			return nil, err
		}
		taken += size
		piece := make([]byte, size)
		if err := r.readInto(piece); err != nil {
			return nil, err
		}
		pieces = append(pieces, piece)
	}
	body := make([]byte, 0, length)
	for _, piece := range pieces {
		body = append(body, piece...)
	}
	r.large = body
	return body, nil
}

// readInto fills the piece from the buffer, then from the stream.
func (r *Reader) readInto(piece []byte) error {
	n := copy(piece, r.buffer[r.start:r.end])
	r.start += n
	for n < len(piece) {
		more, err := r.read(piece[n:])
		if err != nil {
			return within(err)
		}
		n += more
	}
	return nil
}

// fill reads into the buffer, after dropping the consumed data. The buffer must then have free space.
func (r *Reader) fill() error {
	if r.start > 0 {
		r.end = copy(r.buffer, r.buffer[r.start:r.end])
		r.start = 0
	}
	n, err := r.read(r.buffer[r.end:])
	r.end += n
	return err
}

// read returns at least one byte or an error. If the source returns both, the bytes are used first.
func (r *Reader) read(into []byte) (int, error) {
	for {
		n, err := r.source.Read(into)
		if n > 0 {
			r.emptyInARow = 0
			if r.Heard != nil {
				r.Heard()
			}
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		if r.emptyInARow++; r.emptyInARow > 100 {
			return 0, io.ErrNoProgress
		}
	}
}

// arm sets the deadline for the message that has begun. If the stream has no deadlines, the owner of the stream has to close it after the timeout.
func (r *Reader) arm(patience time.Duration) {
	if patience > 0 && r.deadline != nil {
		r.armed = r.deadline.SetReadDeadline(time.Now().Add(patience)) == nil
	}
}

func (r *Reader) disarm() {
	if r.armed {
		r.armed = false
		_ = r.deadline.SetReadDeadline(time.Time{})
	}
}

// within converts an error that occurs within a message.
func within(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errTruncated
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %w", errSlow, err)
	}
	return fmt.Errorf("%w: %w", errTruncated, err)
}

// scrub replaces invalid UTF-8, in place.
func scrub(body []byte) {
	if utf8.Valid(body) {
		return
	}
	for i := 0; i < len(body); {
		char, size := utf8.DecodeRune(body[i:])
		if char == utf8.RuneError && size == 1 {
			body[i] = '?'
		}
		i += size
	}
}
