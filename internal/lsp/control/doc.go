// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control is the socket between a manager and the multiplexer of a language server: one JSON value a line, both ways.
//
// The manager sends lsp.Command, the multiplexer lsp.Message. The first line of a connection is a report, and the report that shows what a
// command has done comes before its answer. One manager is connected at a time: a new connection takes the place of the old one.
package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	// maxLine bounds what one line may hold; a Launch can have a large environment and large settings.
	maxLine = 64 << 20
	// writeTimeout is how long the other side may take to read a line.
	writeTimeout = 5 * time.Second
	// pace is how long it takes at least from one report to the next, unless it is urgent.
	pace = 100 * time.Millisecond
)

var errLong = fmt.Errorf("a line on the control socket is longer than %d MiB", maxLine>>20)

// readLine reads one JSON value, in memory that grows as it arrives.
func readLine(r *bufio.Reader, value any) error {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		if len(line)+len(piece) > maxLine {
			return errLong
		}
		line = append(line, piece...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	if err := json.Unmarshal(line, value); err != nil {
		return fmt.Errorf("a line on the control socket is damaged: %w", err)
	}
	return nil
}

func writeLine(conn net.Conn, value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(line) >= maxLine {
		return errLong
	}
	if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err = conn.Write(append(line, '\n'))
	return err
}
