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

	"github.com/berth-dev/berth/internal/lsp"
)

// errClosed is the error if the connection to the multiplexer has ended.
var errClosed = errors.New("the connection to the language-server multiplexer was closed")

// Client is the manager's end of a control socket. Its methods are safe for concurrent use.
type Client struct {
	conn     net.Conn
	onReport func(lsp.Report)
	ended    chan struct{} // closed when reading has ended

	writing sync.Mutex
	mu      sync.Mutex
	next    int64
	waiting map[int64]chan lsp.Answer
}

// Converse starts a client on a connection to a multiplexer, and takes ownership of the connection. It passes the first report to onReport before it returns.
// Later calls of onReport come from one goroutine, one at a time. If a command causes a report, Do returns only after onReport has returned for that report.
func Converse(ctx context.Context, conn net.Conn, onReport func(lsp.Report)) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	reader := bufio.NewReaderSize(conn, 64<<10)
	var first lsp.Message
	err := readLine(reader, &first)
	if err == nil && first.Report == nil {
		err = errors.New("the first line is not a report")
	}
	if err == nil && (first.Report.Protocol < lsp.Protocol-1 || first.Report.Protocol > lsp.Protocol) {
		err = fmt.Errorf("the multiplexer uses protocol version %d, but this program uses version %d", first.Report.Protocol, lsp.Protocol)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("read the report of the language-server multiplexer: %w", err)
	}
	c := &Client{conn: conn, onReport: onReport, ended: make(chan struct{}), waiting: map[int64]chan lsp.Answer{}}
	onReport(*first.Report)
	go c.read(reader)
	return c, nil
}

func (c *Client) read(reader *bufio.Reader) {
	for {
		var message lsp.Message
		if readLine(reader, &message) != nil {
			break
		}
		if message.Report != nil {
			c.onReport(*message.Report)
		}
		if message.Answer != nil {
			c.answered(*message.Answer)
		}
	}
	_ = c.conn.Close()
	close(c.ended)
}

func (c *Client) answered(answer lsp.Answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if waiting := c.waiting[answer.ID]; waiting != nil {
		delete(c.waiting, answer.ID)
		waiting <- answer
	}
}

// Do sends a command and waits for its answer. If there is no answer, it is unknown whether the command was carried out.
func (c *Client) Do(ctx context.Context, command lsp.Command) (lsp.Answer, error) {
	answer := make(chan lsp.Answer, 1)
	c.mu.Lock()
	c.next++
	command.ID = c.next
	c.waiting[command.ID] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, command.ID)
		c.mu.Unlock()
	}()
	c.writing.Lock()
	err := writeLine(c.conn, command)
	c.writing.Unlock()
	if err != nil {
		_ = c.conn.Close() // a partial line may have been written
		return lsp.Answer{}, fmt.Errorf("send the command to the language-server multiplexer: %w", err)
	}
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return lsp.Answer{}, fmt.Errorf("the language-server multiplexer does not respond: %w", ctx.Err())
	case <-c.ended:
	}
	select {
	case a := <-answer: // read just before the connection ended
		return a, nil
	default:
		return lsp.Answer{}, errClosed
	}
}

// Close closes the connection.
func (c *Client) Close() { _ = c.conn.Close() }

// Ended returns a channel that is closed when the connection has ended, after the last call of onReport.
func (c *Client) Ended() <-chan struct{} { return c.ended }
