// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connections is the maximum number of open connections. It bounds the memory of the shim.
	connections = 64
	callTimeout = 30 * time.Second
	// answerTimeout is how long a client may take to read an answer.
	answerTimeout = 5 * time.Second
)

func (s *shim) listen() error {
	_ = os.Remove(SocketFile)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: SocketFile, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.listener = listener
	return os.Chmod(SocketFile, 0o600)
}

func (s *shim) serve() {
	slots := make(chan struct{}, connections)
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
			go func() {
				defer func() { <-slots }()
				defer func() { _ = conn.Close() }()
				if Allowed(conn) {
					s.converse(conn)
				}
			}()
		default:
			_ = conn.Close()
		}
	}
}

// Allowed reports whether the peer of a connection runs as the same user as this process, or as root.
func Allowed(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && failed == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
}

// converse answers the calls of one connection. The first call must be Hello.
func (s *shim) converse(conn net.Conn) {
	version := -1
	var call callFrame
	for {
		_ = conn.SetDeadline(time.Now().Add(callTimeout))
		if call.Verb == verbType {
			_ = conn.SetDeadline(time.Time{}) // the user types when they want
		}
		call = callFrame{}
		if err := readFrame(conn, &call); err != nil {
			return
		}
		if version < 0 {
			answer := s.hello(call)
			if err := writeFrame(conn, answer); err != nil || answer.Error != "" {
				return
			}
			version = answer.Version
			continue
		}
		answer := s.answer(call)
		answer.Version = version
		_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
		if err := writeFrame(conn, answer); err != nil {
			return
		}
		if call.Verb == verbAttach && answer.Error == "" && !answer.NoTerminal {
			_ = conn.SetDeadline(time.Time{})
			s.attached(conn, call)
			return
		}
	}
}

// hello selects the older of the two versions, and rejects versions older than previousVersion.
func (s *shim) hello(call callFrame) answerFrame {
	version := min(call.Version, Version)
	if call.Verb != verbHello {
		return answerFrame{Version: Version, Error: "the first request must be Hello"}
	}
	if version < previousVersion {
		return answerFrame{Version: Version, Error: fmt.Sprintf("protocol version %d is too old; the shim supports versions %d and %d", call.Version, previousVersion, Version)}
	}
	return answerFrame{Version: version, Token: s.identity.Token, Incarnation: s.identity.Incarnation}
}

func (s *shim) answer(call callFrame) answerFrame {
	switch call.Verb {
	case verbStatus:
		return answerFrame{Identity: s.snapshot(), Record: &s.launch.Record}
	case verbAttach:
		if s.terminal == nil {
			return answerFrame{NoTerminal: true}
		}
		return answerFrame{} // the shim itself removes from earlier output what must happen once only
	case verbInput:
		return s.input()
	case verbTold:
		if s.terminal == nil {
			return answerFrame{NoTerminal: true}
		}
		told := s.terminal.Told()
		return answerFrame{Told: &told}
	case verbSize:
		if s.terminal == nil {
			return answerFrame{NoTerminal: true}
		}
		columns, rows := s.terminal.device.Size()
		return answerFrame{Columns: columns, Rows: rows}
	case verbType:
		if s.terminal == nil {
			return answerFrame{NoTerminal: true}
		}
		return s.terminal.counted.take(call, s.terminal.master)
	}
	return answerFrame{Error: fmt.Sprintf("unknown request %q; the shim uses protocol version %d", call.Verb, Version)}
}

// input reports how the foreground process group reads from the terminal.
func (s *shim) input() answerFrame {
	if s.terminal == nil {
		return answerFrame{NoTerminal: true}
	}
	members, err := s.tree.Members()
	if err != nil {
		return answerFrame{Error: err.Error()}
	}
	input, err := InspectInput(s.terminal.master, members)
	if err != nil {
		return answerFrame{Error: err.Error()}
	}
	return answerFrame{Input: &input}
}

// attached copies between a client and the terminal until either closes.
func (s *shim) attached(conn net.Conn, call callFrame) {
	view := s.terminal.Join(conn)
	s.terminal.Resized(view, call.Columns, call.Rows, call.Behind)
	defer s.terminal.Leave(view)
	reader := bufio.NewReaderSize(conn, 4<<10)
	buf := make([]byte, 4<<10)
	for {
		kind, payload, err := readInput(reader, buf)
		if err != nil {
			return
		}
		buf = payload[:cap(payload)]
		switch {
		case kind == inputResize && len(payload) == 4:
			s.terminal.Resized(view, int32(binary.BigEndian.Uint16(payload)), int32(binary.BigEndian.Uint16(payload[2:])), false)
		case kind == inputData:
			if _, err := s.terminal.master.Write(payload); err != nil {
				return
			}
		}
	}
}
