// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// What can be wrong with a message. None of these can be recovered from: where the next message begins is not known any more.
var (
	// ErrTooLarge is a message that is larger than the limits allow.
	ErrTooLarge = errors.New("message too large")
	// ErrHeader is a header that is malformed or too long, or bytes that are no header.
	ErrHeader = errors.New("bad message header")
	// ErrTruncated is a stream that ended within a message.
	ErrTruncated = errors.New("stream ended within a message")
	// ErrSlow is a message that has begun and did not arrive in time.
	ErrSlow = errors.New("message did not arrive in time")
	// ErrMessage is a body that is no message: not JSON, or not a request, notification or response.
	ErrMessage = errors.New("bad message")
)

// Limits bound what a Reader takes. Zero means the default.
type Limits struct {
	// HeaderBytes is for the whole header block (default 8 KiB, at most 32 KiB); a line is at most half of it.
	HeaderBytes int
	// MessageBytes is for a body (default 64 MiB, at most 256 MiB).
	MessageBytes int
	// BodyBase is how long a header may take from its first byte (default 30 s); a body may take as long again, and BodyPerMiB (default 1 s)
	// more for every MiB. Negative: for ever.
	BodyBase, BodyPerMiB time.Duration
	// Skip is how many bytes that are no header are tolerated before the first one: some servers greet on their standard output.
	Skip int
}

const (
	maxHeaderBytes  = 32 << 10
	maxMessageBytes = 256 << 20
	maxHeaderFields = 16
)

func (l Limits) withDefaults() Limits {
	if l.HeaderBytes <= 0 {
		l.HeaderBytes = 8 << 10
	}
	l.HeaderBytes = min(l.HeaderBytes, maxHeaderBytes)
	if l.MessageBytes <= 0 {
		l.MessageBytes = 64 << 20
	}
	l.MessageBytes = min(l.MessageBytes, maxMessageBytes)
	if l.BodyBase == 0 {
		l.BodyBase = 30 * time.Second
	}
	if l.BodyPerMiB == 0 {
		l.BodyPerMiB = time.Second
	}
	l.BodyPerMiB = max(l.BodyPerMiB, 0)
	return l
}

// patience is how long a body of n bytes may take; zero is for ever.
func (l Limits) patience(n int) time.Duration {
	if l.BodyBase < 0 {
		return 0
	}
	return l.BodyBase + time.Duration(n>>20)*l.BodyPerMiB
}

// Budget bounds the memory of large messages that are partly read, over all readers that share it. It counts what arrived, not what was
// announced: an announcement alone takes nothing from others. A reader that finds it used up fails; it does not wait, as those who use it
// up may never go on.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a bound of so many bytes.
func NewBudget(bytes int64) *Budget {
	return &Budget{limit: bytes}
}

func (b *Budget) take(n int) error {
	if b == nil {
		return nil
	}
	if b.used.Add(int64(n)) > b.limit {
		b.used.Add(-int64(n))
		return fmt.Errorf("%w: %d bytes of messages are being read already, by all together; try again later", ErrTooLarge, b.limit)
	}
	return nil
}

func (b *Budget) give(n int) {
	if b != nil {
		b.used.Add(-int64(n))
	}
}
