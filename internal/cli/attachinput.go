// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/berth-dev/berth/internal/endpoint"
)

// maxKept bounds the piped input that is read and not known to be received, in bytes. The connection accepts that much although the process reads nothing, so
// it is not mistaken for one that was lost.
const maxKept = 32 << 10

var (
	// errEndPassed means that the process has received the end of piped input.
	errEndPassed = errors.New("the process has read the end of the input")
	// errUnknownInput means that a manager does not know the input that an earlier one has counted.
	errUnknownInput = errors.New("the manager does not know which part of the input the process has received, so the rest was not typed")
)

// countingLine is a connection that states what the process has received of the input.
type countingLine interface {
	line
	Inputs() <-chan endpoint.InputState
	EndInput() error
}

// countedInput is piped input of which the process receives each byte once, also over several connections.
type countedInput struct {
	endpoint.CountedInput       // Resume is set once a manager has counted
	received              int64 // how many bytes the process has received
	kept                  []byte
	end                   error // what follows after kept, like input.err
}

// take drops what the process has received, and returns the number of these bytes.
func (c *countedInput) take(state endpoint.InputState) (int, error) {
	n := state.Total - c.received
	if !state.Counted || n < 0 || n > int64(len(c.kept)) {
		return 0, errUnknownInput
	}
	c.Resume, c.received, c.kept = true, state.Total, c.kept[n:]
	return int(n), nil
}

// sendCounted sends the kept input and that from t.input over one connection. It returns errEndPassed or io.EOF after the process has received everything, or what
// send returns. If the manager cannot count, it calls sendUncounted.
func (t *attachment) sendCounted(ctx context.Context, conn countingLine) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case state := <-conn.Inputs():
		if !state.Counted && !t.counted.Resume {
			return t.sendUncounted(ctx, conn)
		}
		if _, err := t.counted.take(state); err != nil {
			return err
		}
	}
	return t.sendKept(ctx, conn)
}

// sendKept does the work of sendCounted once the process is known to have received everything before the kept input.
func (t *attachment) sendKept(ctx context.Context, conn countingLine) error {
	c := &t.counted
	sent, ended := 0, false // how much of kept was sent over this connection; and whether its end was
	for {
		if failed := c.sendRest(conn, &sent, &ended); failed != nil {
			return fmt.Errorf("%w: %w", endpoint.ErrLost, failed)
		}
		if c.end != nil && !errors.Is(c.end, io.EOF) && len(c.kept) == 0 {
			return c.end
		}
		source := t.input
		if c.end != nil || len(c.kept) >= maxKept {
			source = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next := <-source:
			c.kept, c.end = append(c.kept, next.keys...), next.err
		case state := <-conn.Inputs():
			n, err := c.take(state)
			if err == nil {
				err = endOf(state)
			}
			if err != nil {
				return err
			}
			sent -= n
		}
	}
}

// endOf returns errEndPassed or io.EOF if the input has ended.
func endOf(state endpoint.InputState) error {
	switch {
	case state.Passed:
		return errEndPassed
	case state.Ended:
		return io.EOF
	}
	return nil
}

// sendRest sends what was not sent over this connection.
func (c *countedInput) sendRest(conn countingLine, sent *int, ended *bool) error {
	if *sent < len(c.kept) {
		if _, err := conn.Write(c.kept[*sent:]); err != nil {
			return err
		}
		*sent = len(c.kept)
	}
	if errors.Is(c.end, io.EOF) && !*ended {
		*ended = true
		return conn.EndInput()
	}
	return nil
}

// takeLast drops what the process has received according to the last state that a connection has received.
func (t *attachment) takeLast(conn line) {
	counting, is := conn.(countingLine)
	if !is {
		return
	}
	select {
	case state := <-counting.Inputs():
		_, _ = t.counted.take(state) // a wrong state was reported if it mattered
	default:
	}
}

// tellUnreceived states how much of the piped input the process may not have received.
func (t *attachment) tellUnreceived() {
	if n := len(t.counted.kept); n > 0 {
		t.say("%d bytes were read from the input that the process may not have received", n)
	}
}
