// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// protocol is the protocol that an attach connection is upgraded to. After the 101 response both sides send frames: one byte for the kind, four bytes for the
// length of the payload in big-endian order, and the payload.
const protocol = "berth-attach/1"

const (
	frameData   = 'd' // terminal data, in both directions
	frameResize = 'r' // columns and rows in two bytes each, from the client
	frameEnd    = 'e' // why the server closes the connection, as text; empty if the process exited
	frameEOF    = 'f' // the input of the client has ended; only after the server has counted input
	// frameReceived states what the process has received of the input: flags and eight bytes for the total, from the server to a client that counts its input.
	// It is empty if that is not known.
	frameReceived = 'a'

	flagEnded, flagPassed = 1, 2

	maxFrame   = 32 << 10
	headerSize = 5

	// frameTimeout is how long a peer may take to accept a frame before it is considered disconnected.
	frameTimeout = 10 * time.Second
)

// Conn is one side of an attach connection. One goroutine may read while others write; writes are serialized.
type Conn struct {
	raw io.ReadWriteCloser
	in  io.Reader
	mu  sync.Mutex
	out [headerSize + maxFrame]byte

	inputs chan InputState // the newest state, if Receive got one
	onEOF  func()          // called when the input of the client has ended; nil on the side of the client
}

// InputState states what the process has received of counted input.
type InputState struct {
	// Counted is false if the manager cannot know.
	Counted bool
	facts.Receipt
}

// newConn returns a Conn that exchanges frames over raw. buffered, if not nil, is a reader that returns data already read from raw and then continues with raw.
func newConn(raw io.ReadWriteCloser, buffered io.Reader) *Conn {
	if buffered == nil {
		buffered = raw
	}
	return &Conn{raw: raw, in: buffered, inputs: make(chan InputState, 1)}
}

// Close closes the connection.
func (c *Conn) Close() error { return c.raw.Close() }

// Write sends terminal data.
func (c *Conn) Write(data []byte) (int, error) {
	sent := 0
	for len(data) > 0 {
		piece := data[:min(len(data), maxFrame)]
		if err := c.send(frameData, piece); err != nil {
			return sent, err
		}
		sent += len(piece)
		data = data[len(piece):]
	}
	return sent, nil
}

// Resize sends the size of the client's terminal to the server. It limits columns and rows to the range from 1 to 1000.
func (c *Conn) Resize(size runtime.Terminal) error {
	var payload [4]byte
	binary.BigEndian.PutUint16(payload[:2], uint16(min(max(size.Columns, 1), 1000)))
	binary.BigEndian.PutUint16(payload[2:], uint16(min(max(size.Rows, 1), 1000)))
	return c.send(frameResize, payload[:])
}

// Inputs returns a channel on which Receive sends the newest state of counted input. A server sends the first state before it accepts input.
func (c *Conn) Inputs() <-chan InputState { return c.inputs }

// EndInput tells the server that the counted input has ended.
func (c *Conn) EndInput() error { return c.send(frameEOF, nil) }

// received tells the client what the process has received of its input. An error recurs at the next use of the connection.
func (c *Conn) received(state InputState) {
	var payload []byte
	if state.Counted {
		flags := byte(0)
		if state.Ended {
			flags |= flagEnded
		}
		if state.Passed {
			flags |= flagPassed
		}
		payload = binary.BigEndian.AppendUint64([]byte{flags}, uint64(state.Total)) //nolint:gosec // not negative
	}
	_ = c.send(frameReceived, payload)
}

// receiveInputState handles a frame about the input.
func (c *Conn) receiveInputState(kind byte, payload []byte) error {
	if kind == frameEOF {
		if c.onEOF != nil {
			c.onEOF()
		}
		return nil
	}
	state, valid := parseInputState(payload)
	if !valid {
		return errors.New("a frame about the input has an unknown format")
	}
	newest(c.inputs, state)
	return nil
}

// parseInputState decodes the payload of frameReceived.
func parseInputState(payload []byte) (state InputState, valid bool) {
	switch len(payload) {
	case 0:
		return state, true
	case 9:
		total := binary.BigEndian.Uint64(payload[1:])
		state = InputState{true, facts.Receipt{Total: int64(total), Ended: payload[0]&flagEnded != 0, Passed: payload[0]&flagPassed != 0}} //nolint:gosec // checked below
		return state, state.Total >= 0
	}
	return state, false
}

func (c *Conn) end(why string) error { return c.send(frameEnd, []byte(why[:min(len(why), 1024)])) }

func (c *Conn) send(kind byte, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out[0] = kind
	binary.BigEndian.PutUint32(c.out[1:headerSize], uint32(len(payload)))
	n := copy(c.out[headerSize:], payload)
	if bounded, ok := c.raw.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = bounded.SetWriteDeadline(time.Now().Add(frameTimeout))
	}
	_, err := c.raw.Write(c.out[:headerSize+n])
	return err
}

// bounded decodes a number of columns or rows and limits it to the bounds of Resize.
func bounded(number []byte) int32 { return int32(min(max(binary.BigEndian.Uint16(number), 1), 1000)) }

// EndError is the reason why the server closed an attach connection.
type EndError struct{ Message string }

func (e *EndError) Error() string { return e.Message }

// ManagerEnds reports whether the manager is shutting down. The process keeps running, and the next manager serves its terminal.
func (e *EndError) ManagerEnds() bool { return e.Message == managerEnds }

// ErrLost means that a connection ended without an end frame from the server.
var ErrLost = errors.New("the connection was lost")

// Receive reads frames until the connection ends. It writes terminal data to the writer data, and calls resize, which may be nil, for each size. If the
// server sent an end frame, Receive returns nil if the process exited, otherwise an *EndError. Without an end frame it returns ErrLost.
func (c *Conn) Receive(data io.Writer, resize func(runtime.Terminal)) error {
	buffer := make([]byte, maxFrame)
	for {
		var header [headerSize]byte
		if _, err := io.ReadFull(c.in, header[:]); err != nil {
			return fmt.Errorf("%w: %w", ErrLost, err)
		}
		length := binary.BigEndian.Uint32(header[1:])
		if length > maxFrame {
			return fmt.Errorf("a frame of %d bytes is too long", length)
		}
		payload := buffer[:length]
		if _, err := io.ReadFull(c.in, payload); err != nil {
			return fmt.Errorf("%w: %w", ErrLost, err)
		}
		switch header[0] {
		case frameData:
			if _, err := data.Write(payload); err != nil {
				return err
			}
		case frameResize:
			if length != 4 {
				return errors.New("a resize frame has an unknown format")
			}
			if resize != nil {
				resize(runtime.Terminal{Columns: bounded(payload[:2]), Rows: bounded(payload[2:])})
			}
		case frameReceived, frameEOF:
			if err := c.receiveInputState(header[0], payload); err != nil {
				return err
			}
		case frameEnd:
			if length == 0 {
				return nil
			}
			return &EndError{Message: string(payload)}
		default:
			// A later version may send other kinds of frames; unknown kinds are ignored.
		}
	}
}
