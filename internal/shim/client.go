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

// ErrNoTerminal means: the program was not started in a terminal.
var ErrNoTerminal = errors.New("the process has no terminal")

// ErrImpostor means: whoever answers is not the shim that was started.
var ErrImpostor = errors.New("the process that answers is not the shim that was started: its token differs")

// Client is a connection to a shim. Its methods are not safe for concurrent use, but for Resize and Write beside reads of Conn.
type Client struct {
	Conn net.Conn
	// Replay is how many bytes of what comes from Conn after Attach are earlier output.
	Replay int

	version int
	timeout time.Duration
}

// NewClient says Hello on a connection and makes sure that the shim at its other end is the one with this token; an empty token is any.
// It closes the connection on error.
func NewClient(conn net.Conn, token string, timeout time.Duration) (*Client, error) {
	c := &Client{Conn: conn, version: Version, timeout: timeout}
	answer, err := c.call(Call{Verb: VerbHello})
	if err == nil {
		err = c.accept(answer, token)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *Client) accept(answer *Answer, token string) error {
	if answer.Version < PreviousVersion || answer.Version > Version {
		return fmt.Errorf("the shim speaks version %d of the protocol, this program %d and %d", answer.Version, PreviousVersion, Version)
	}
	if token != "" && answer.Token != token {
		return ErrImpostor
	}
	c.version = answer.Version
	return nil
}

func (c *Client) call(call Call) (*Answer, error) {
	call.Version = c.version
	if err := c.Conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return nil, err
	}
	if err := writeFrame(c.Conn, call); err != nil {
		return nil, fmt.Errorf("ask the shim: %w", err)
	}
	var answer Answer
	if err := readFrame(c.Conn, &answer); err != nil {
		return nil, fmt.Errorf("read the shim's answer: %w", err)
	}
	if answer.NoTerminal {
		return nil, ErrNoTerminal
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	_ = c.Conn.SetDeadline(time.Time{}) // should it fail, so will what is done with the connection next
	return &answer, nil
}

// Status asks the shim who it is and what it holds.
func (c *Client) Status() (*Identity, error) {
	identity, _, err := c.Records()
	return identity, err
}

// Records returns what the shim has in memory of its files IdentityFile and RecordFile. An older shim has only the first.
func (c *Client) Records() (*Identity, *Record, error) {
	answer, err := c.call(Call{Verb: VerbStatus})
	if err != nil {
		return nil, nil, err
	}
	return answer.Identity, answer.Record, nil
}

// Input returns how the foreground process group of the terminal reads it. It returns ErrNoTerminal if there is no terminal. An older shim refuses the call.
func (c *Client) Input() (facts.Input, error) {
	answer, err := c.call(Call{Verb: VerbInput})
	if err != nil || answer.Input == nil {
		return facts.Input{}, err
	}
	return *answer.Input, nil
}

// Signal sends a signal, such as SIGTERM, to every process of the tree.
func (c *Client) Signal(name string) error {
	_, err := c.call(Call{Verb: VerbSignal, Signal: name})
	return err
}

// Shutdown ends the tree without grace, and with it the shim.
func (c *Client) Shutdown() error {
	_, err := c.call(Call{Verb: VerbShutdown})
	return err
}

// Attach turns the connection into a terminal: read the output from Conn, write with Write and Resize. ErrNoTerminal when there is none.
func (c *Client) Attach(columns, rows int32) error {
	answer, err := c.call(Call{Verb: VerbAttach, Columns: columns, Rows: rows})
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

// Resize changes the size of the terminal.
func (c *Client) Resize(columns, rows int32) error {
	return writeInput(c.Conn, inputResize, sizePayload(columns, rows))
}

func sizePayload(columns, rows int32) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, uint16(columns)), uint16(rows))
}
