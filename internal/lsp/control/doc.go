// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control implements the socket between a manager and the multiplexer of a language server: one JSON value per line, in both directions.
//
// The manager sends values of lsp.Command, and the multiplexer values of lsp.Message. The first line of a connection is a report. Before the multiplexer
// answers a command, it sends a report that shows the effect of the command. One manager is connected at a time: a new connection replaces the old one.
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
	// maxLine is the maximum length of a line; a Launch may have a large environment and large settings.
	maxLine = 64 << 20
	// writeTimeout is how long the peer may take to read a line.
	writeTimeout = 5 * time.Second
	// pace is the minimum interval between two reports, unless one is urgent.
	pace = 100 * time.Millisecond
)

var errLong = fmt.Errorf("a line on the control socket is longer than %d MiB", maxLine>>20)

// readLine reads one JSON value. It allocates memory only for data that has arrived.
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
		return fmt.Errorf("invalid line on the control socket: %w", err)
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
