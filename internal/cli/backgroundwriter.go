// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

const (
	// maxUnprinted bounds how many writes wait for an output that accepts no text.
	maxUnprinted = 64
	// printWithin is how long the rest of the output may take when berth up ends.
	printWithin = time.Second
)

// unprinted stands in the place of dropped text.
const unprinted = "(lines are missing here, because the output accepted no text)\n"

// errUnprinted is the error of a write that was dropped, because the output accepts no text.
var errUnprinted = errors.New("the output accepts no text")

// background writes to several outputs in the order of the calls, but the callers do not wait. A terminal may accept no text for hours (a lost connection,
// a paused window); without it, such a terminal would stop the control plane and the shutdown of berth up at the next line of output.
type background struct {
	waiting chan func()
	done    chan struct{}

	lock   sync.Mutex // protects the rest
	lost   bool       // the last write was dropped
	closed bool
}

func newBackground() *background {
	b := &background{waiting: make(chan func(), maxUnprinted), done: make(chan struct{})}
	go func() {
		defer close(b.done)
		for write := range b.waiting {
			write()
		}
	}()
	return b
}

// to returns a writer to the given output. Each of its writes is either printed as a whole later, or refused with errUnprinted.
func (b *background) to(output io.Writer) *backgroundWriter { return &backgroundWriter{b, output} }

func (b *background) write(output io.Writer, text []byte) error {
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.closed {
		return errUnprinted
	}
	text = bytes.Clone(text) // the caller may use it again
	if b.lost {
		text = append([]byte(unprinted), text...)
	}
	select {
	case b.waiting <- func() { _, _ = output.Write(text) }:
		b.lost = false
		return nil
	default:
		b.lost = true
		return errUnprinted
	}
}

// close prints what waits, as far as the output accepts it within printWithin. Later writes are refused.
func (b *background) close() {
	b.lock.Lock()
	b.closed = true
	close(b.waiting)
	b.lock.Unlock()
	select {
	case <-b.done:
	case <-time.After(printWithin):
	}
}

type backgroundWriter struct {
	*background
	output io.Writer
}

// Write implements io.Writer.
func (w *backgroundWriter) Write(text []byte) (int, error) {
	if err := w.write(w.output, text); err != nil {
		return 0, err
	}
	return len(text), nil
}

// inBackground returns a copy of the app whose output never blocks, and a function that prints the rest of it.
func (a *app) inBackground() (copied *app, flush func()) {
	b := newBackground()
	quiet := *a
	quiet.raw, quiet.out, quiet.err = b.to(a.raw), b.to(a.out), b.to(a.err)
	return &quiet, b.close
}
