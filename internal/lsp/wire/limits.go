// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Errors of messages. Close the connection after any of them: the beginning of the next message is unknown, or, after errMessage, the peer does not send valid
// messages.
var (
	// errTooLarge is the error for a message that exceeds the limits.
	errTooLarge = errors.New("message too large")
	// errHeader is the error for a header that is malformed or too long, or for data that is not a header.
	errHeader = errors.New("bad message header")
	// errTruncated is the error for a stream that ended within a message.
	errTruncated = errors.New("stream ended within a message")
	// errSlow is the error for a message that did not arrive completely in time.
	errSlow = errors.New("message did not arrive in time")
	// errMessage is the error for a body that is not a message: not JSON, or not a request, notification or response.
	errMessage = errors.New("bad message")
)

// Limits bound what a Reader accepts. Zero means the default.
type Limits struct {
	// HeaderBytes is the maximum size of the header block (default 8 KiB, at most 32 KiB); a line may have at most half of it.
	HeaderBytes int
	// MessageBytes is the maximum size of a body (default 64 MiB, at most 256 MiB).
	MessageBytes int
	// BodyBase is how long a header may take from its first byte (default 30 s). A body may take the same time, plus BodyPerMiB (default 1 s) for every MiB. If
	// BodyBase is negative, there is no timeout.
	BodyBase, BodyPerMiB time.Duration
	// Skip is how many bytes before the first header are ignored: some servers print a greeting to standard output.
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

// patience returns how long a body of n bytes may take; 0 means no timeout.
func (l Limits) patience(n int) time.Duration {
	if l.BodyBase < 0 {
		return 0
	}
	return l.BodyBase + time.Duration(n>>20)*l.BodyPerMiB
}

// Budget bounds the memory of large messages that are partly read, over all readers that share it. It counts the allocated bytes, which grow with the received
// bytes: a header that announces a large message uses at most bufferBytes. If the budget is exhausted, a reader fails; it does not wait, because the other
// readers may never finish.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a Budget of the given number of bytes.
func NewBudget(bytes int64) *Budget {
	return &Budget{limit: bytes}
}

func (b *Budget) take(n int) error {
	if b == nil {
		return nil
	}
	if b.used.Add(int64(n)) > b.limit {
		b.used.Add(-int64(n))
		return fmt.Errorf("%w: all connections together reached the limit of %d bytes of messages in progress; retry later", errTooLarge, b.limit)
	}
	return nil
}

func (b *Budget) give(n int) {
	if b != nil {
		b.used.Add(-int64(n))
	}
}
