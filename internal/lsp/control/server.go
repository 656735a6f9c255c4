// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
)

// Handler carries out commands and reports the state. The multiplexer implements it.
type Handler interface {
	// Do carries out a command. Calls are serialized.
	Do(lsp.Command) lsp.Answer
	// Report returns the current state.
	Report() lsp.Report
	// Changes returns a channel that receives a value when the report has changed. Urgent returns a channel that receives a value when the change must be sent
	// immediately. Both channels have a buffer of one value.
	Changes() <-chan struct{}
	Urgent() <-chan struct{}
}

// Serve serves managers until the context ends or the listener fails. It closes all connections before it returns.
func Serve(ctx context.Context, l net.Listener, h Handler) error {
	s := &server{handler: h}
	var all sync.WaitGroup
	defer all.Wait()
	defer func() { _ = s.use(nil) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all.Go(func() { s.push(ctx) })
	err := Accept(ctx, l, func(conn net.Conn) {
		if s.use(conn) != nil {
			_ = conn.Close()
			return
		}
		all.Go(func() { s.converse(conn) })
	}, func(error) {})
	if err != nil {
		return fmt.Errorf("accept connections of managers: %w", err)
	}
	return nil
}

// acceptPause is how long Accept waits after an error.
const acceptPause = time.Second

// Accept passes the connections of a listener to the function serve until the context ends, which closes the listener. It returns an error if something else
// closes the listener. After other errors, such as a lack of file descriptors, it calls failed and continues.
func Accept(ctx context.Context, l net.Listener, serve func(net.Conn), failed func(error)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			serve(conn)
			continue
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		}
		failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(acceptPause):
		}
	}
}

type server struct {
	handler Handler

	doing sync.Mutex // serializes commands, also across connections
	mu    sync.Mutex // guards conn and writes to it
	conn  net.Conn
}

// use makes conn the current connection, sends it a report, and closes the previous connection. If conn is nil, use only closes the previous connection.
func (s *server) use(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.conn = conn
	if conn == nil {
		return nil
	}
	if err := writeLine(conn, s.report()); err != nil {
		s.conn = nil
		return err
	}
	return nil
}

func (s *server) report() lsp.Message {
	report := s.handler.Report()
	return lsp.Message{Report: &report}
}

// converse carries out the commands of one manager.
func (s *server) converse(conn net.Conn) {
	defer s.drop(conn)
	reader := bufio.NewReaderSize(conn, 64<<10)
	for {
		var command lsp.Command
		if err := readLine(reader, &command); err != nil {
			return
		}
		s.doing.Lock()
		answer := s.handler.Do(command)
		s.doing.Unlock()
		answer.ID = command.ID
		if !s.tell(conn, lsp.Message{Answer: &answer}) {
			return
		}
	}
}

// drop closes a connection that has ended.
func (s *server) drop(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == conn {
		s.conn = nil
	}
	_ = conn.Close()
}

// tell sends an answer, preceded by the report that shows the effect of the command. It returns false if conn has been replaced or a write fails.
func (s *server) tell(conn net.Conn, answer lsp.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != conn {
		return false
	}
	return writeLine(conn, s.report()) == nil && writeLine(conn, answer) == nil
}

// push sends reports when the state changes.
func (s *server) push(ctx context.Context) {
	pause := time.NewTimer(pace)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.handler.Urgent():
		case <-s.handler.Changes():
		}
		s.pushOne()
		pause.Reset(pace)
		select {
		case <-ctx.Done():
			return
		case <-s.handler.Urgent():
			s.pushOne()
		case <-pause.C:
		}
	}
}

func (s *server) pushOne() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return
	}
	// A manager that does not read has to reconnect, and then receives a report first.
	if err := writeLine(s.conn, s.report()); err != nil && !errors.Is(err, net.ErrClosed) {
		_ = s.conn.Close()
	}
}
