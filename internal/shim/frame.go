// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/berth-dev/berth/internal/facts"
)

// Version is the version of the socket protocol. A shim and a manager also accept previousVersion, so that either can be upgraded first.
const (
	Version         = 1
	previousVersion = Version - 1
)

// Verbs of the protocol. Hello is the first call on every connection; Attach turns the connection into a stream.
const (
	verbHello  = "Hello"
	verbStatus = "Status"
	verbAttach = "Attach"
	verbInput  = "Input"
	verbSize   = "Size"
	verbTold   = "Told"
	verbType   = "Type"
)

// maxFrame is the largest message, in bytes. It bounds the memory that a peer can make the other side allocate.
const maxFrame = 64 << 10

// callFrame is one request.
type callFrame struct {
	Version int    `json:"version"`
	Verb    string `json:"verb"`
	Columns int32  `json:"columns,omitempty"`
	Rows    int32  `json:"rows,omitempty"`
	// Behind makes a client that attaches own the size only while no other client has a terminal.
	Behind bool `json:"behind,omitempty"`
	// Stream, Resume, Offset, Data and End are the arguments of verbType (Keys).
	Stream string `json:"stream,omitempty"`
	Resume bool   `json:"resume,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Data   []byte `json:"data,omitempty"`
	End    bool   `json:"end,omitempty"`
}

// answerFrame is the response to one callFrame. Token proves that the shim is the one that was started for the record.
type answerFrame struct {
	Version     int       `json:"version"`
	Error       string    `json:"error,omitempty"`
	NoTerminal  bool      `json:"noTerminal,omitempty"`
	Token       string    `json:"token,omitempty"`
	Incarnation int64     `json:"incarnation,omitempty"`
	Identity    *Identity `json:"identity,omitempty"`
	Record      *Record   `json:"record,omitempty"` // sent with Identity; older shims do not send it
	// Input is the response to verbInput, which older shims reject.
	Input *facts.Input `json:"input,omitempty"`
	// Replay is how many of the first bytes after Attach are earlier output that the client has to filter. Only older shims, which do not filter it, send it.
	Replay int `json:"replay,omitempty"`
	// Columns and Rows are the response to verbSize, which older shims reject.
	Columns int32 `json:"columns,omitempty"`
	Rows    int32 `json:"rows,omitempty"`
	// Told is the response to verbTold, which older shims reject.
	Told *facts.Signals `json:"told,omitempty"`
	// Receipt is the response to verbType, which older shims reject. UnknownStream means that the stream has no receipt here, although it must have one.
	Receipt       *facts.Receipt `json:"receipt,omitempty"`
	UnknownStream bool           `json:"unknownStream,omitempty"`
}

func writeFrame(w io.Writer, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, len(data)+4), uint32(len(data)))
	_, err = w.Write(append(frame, data...))
	return err
}

func readFrame(r io.Reader, value any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxFrame {
		return fmt.Errorf("a message of %d bytes is longer than the %d allowed", size, maxFrame)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return err
	}
	return json.Unmarshal(data, value)
}

// Kinds of messages that a client sends after Attach: one byte for the kind, four bytes for the length, then the payload. The opposite direction is raw output.
const (
	inputData   = 0
	inputResize = 1
)

func writeInput(w io.Writer, kind byte, payload []byte) error {
	frame := append(make([]byte, 0, len(payload)+5), kind)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	_, err := w.Write(append(frame, payload...))
	return err
}

// readInput reads one input message into buf, which it grows up to maxFrame.
func readInput(r io.Reader, buf []byte) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxFrame {
		return 0, nil, fmt.Errorf("input of %d bytes is longer than the %d allowed", size, maxFrame)
	}
	if int(size) > cap(buf) {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	_, err = io.ReadFull(r, buf)
	return head[0], buf, err
}
