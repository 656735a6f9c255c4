// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/berth-dev/berth/internal/facts"
)

// ErrNoTerminal is the error for a program that was started without a terminal.
var ErrNoTerminal = errors.New("the process has no terminal")

// ErrImpostor is the error for a peer that is not the shim that was started.
var ErrImpostor = errors.New("the process that answers is not the shim that was started: its token differs")

// Client is a connection to a shim. After Attach, Resize and Write may run concurrently with each other and with reads of
// Conn; the other methods are not safe for concurrent use.
type Client struct {
	Conn net.Conn
	// Replay is how many of the first bytes read from Conn after Attach are earlier output of an older shim, which the client has to filter.
	Replay int

	version int
	timeout time.Duration
}

// newClient sends Hello on a connection and verifies that the shim at the other end has this token; an empty token accepts any shim. It closes the connection
// on error. It returns ErrImpostor if the token differs.
func newClient(conn net.Conn, token string, timeout time.Duration) (*Client, error) {
	c := &Client{Conn: conn, version: Version, timeout: timeout}
	answer, err := c.call(callFrame{Verb: verbHello})
	if err == nil {
		err = c.accept(answer, token)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *Client) accept(answer *answerFrame, token string) error {
	if answer.Version < previousVersion || answer.Version > Version {
		return fmt.Errorf("the shim uses protocol version %d, but this program supports versions %d and %d", answer.Version, previousVersion, Version)
	}
	if token != "" && answer.Token != token {
		return ErrImpostor
	}
	c.version = answer.Version
	return nil
}

func (c *Client) call(call callFrame) (*answerFrame, error) {
	if err := c.Conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, err
	}
	answer, err := c.exchange(call)
	if err == nil {
		_ = c.Conn.SetDeadline(time.Time{}) // an error here recurs on the next use of the connection
	}
	return answer, err
}

// exchange sends a call and waits for the answer, without a limit.
func (c *Client) exchange(call callFrame) (*answerFrame, error) {
	call.Version = c.version
	if err := writeFrame(c.Conn, call); err != nil {
		return nil, fmt.Errorf("send the request to the shim: %w", err)
	}
	var answer answerFrame
	if err := readFrame(c.Conn, &answer); err != nil {
		return nil, fmt.Errorf("read the response of the shim: %w", err)
	}
	if answer.NoTerminal {
		return nil, ErrNoTerminal
	}
	if answer.Error != "" {
		return nil, refusedError(answer.Error)
	}
	return &answer, nil
}

// refusedError is the error of a call that the shim has answered with an error.
type refusedError string

func (e refusedError) Error() string { return string(e) }

// Records returns the shim's in-memory copies of IdentityFile and RecordFile. The record is nil for an older shim.
func (c *Client) Records() (*Identity, *Record, error) {
	answer, err := c.call(callFrame{Verb: verbStatus})
	if err != nil {
		return nil, nil, err
	}
	return answer.Identity, answer.Record, nil
}

// Input returns how the foreground process group reads the terminal. It returns ErrNoTerminal if there is no terminal, and an error if the shim is too old.
func (c *Client) Input() (facts.Input, error) {
	answer, err := c.call(callFrame{Verb: verbInput})
	if err != nil || answer.Input == nil {
		return facts.Input{}, err
	}
	return *answer.Input, nil
}

// Told returns what the program has told its terminal. It returns ErrNoTerminal if there is no terminal, and an error if the shim is too old.
func (c *Client) Told() (facts.Signals, error) {
	answer, err := c.call(callFrame{Verb: verbTold})
	if err != nil || answer.Told == nil {
		return facts.Signals{}, err
	}
	return *answer.Told, nil
}

// Size returns the current size of the terminal. It returns ErrNoTerminal if there is no terminal, and an error if the shim is too old.
func (c *Client) Size() (columns, rows int32, err error) {
	answer, err := c.call(callFrame{Verb: verbSize})
	if err != nil {
		return 0, 0, err
	}
	return answer.Columns, answer.Rows, nil
}

// Keys are a piece of a stream of counted input: the bytes of the stream after Offset, and whether the stream ends after them.
type Keys struct {
	Stream string // a name that no other stream has
	Resume bool   // the shim must know the stream
	Offset int64
	Data   []byte // at most MaxKeys bytes
	End    bool
}

// MaxKeys is the maximum length of the data of Keys.
const MaxKeys = 32 << 10

// ErrUnknownStream is the error of Type if the shim must know a stream and does not.
var ErrUnknownStream = errors.New("the process has received no earlier input of this attachment")

// Type types the part of the keys that the terminal has not received before, and returns what it has received of the stream then. It waits until the terminal
// accepts the input, so it can take until the connection is closed. If the program reads lines at the end of the stream, it reads the end of its input. An
// older shim returns an error that wraps errors.ErrUnsupported.
func (c *Client) Type(keys Keys) (facts.Receipt, error) {
	answer, err := c.exchange(callFrame{Verb: verbType, Stream: keys.Stream, Resume: keys.Resume, Offset: keys.Offset, Data: keys.Data, End: keys.End})
	refused := refusedError("")
	switch {
	case errors.As(err, &refused):
		return facts.Receipt{}, fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	case err != nil:
		return facts.Receipt{}, err
	case answer.UnknownStream:
		return facts.Receipt{}, ErrUnknownStream
	case answer.Receipt == nil:
		return facts.Receipt{}, errors.New("the answer of the shim does not state what the terminal has received")
	}
	return *answer.Receipt, nil
}

// Attach turns the connection into a terminal stream: read output from Conn, send input with Write and Resize. A size that is not 0 is that of the client's
// terminal, as for Resize. It returns ErrNoTerminal if there is no terminal.
func (c *Client) Attach(columns, rows int32) error {
	return c.attach(callFrame{Verb: verbAttach, Columns: columns, Rows: rows})
}

// AttachBehind does the same as Attach for a client that is always there: until it is resized, all other clients with a terminal own the size before it, also
// if they attached earlier.
func (c *Client) AttachBehind(columns, rows int32) error {
	return c.attach(callFrame{Verb: verbAttach, Columns: columns, Rows: rows, Behind: true})
}

func (c *Client) attach(call callFrame) error {
	answer, err := c.call(call)
	if err == nil {
		c.Replay = answer.Replay
	}
	return err
}

// Write sends input to the terminal.
func (c *Client) Write(p []byte) (int, error) {
	for written := 0; written < len(p); {
		piece := p[written:min(len(p), written+maxFrame)]
		if err := writeInput(c.Conn, inputData, piece); err != nil {
			return written, err
		}
		written += len(piece)
	}
	return len(p), nil
}

// Resize reports the size of the client's terminal. If it is another one than before, the client now owns the size of the program's terminal.
func (c *Client) Resize(columns, rows int32) error {
	return writeInput(c.Conn, inputResize, sizePayload(columns, rows))
}

func sizePayload(columns, rows int32) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, uint16(columns)), uint16(rows))
}
