// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lspclient is a small client of language servers for tests. It has its own code for reading and writing frames, so that it does not share
// mistakes with the multiplexer.
package lspclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"sync"
	"sync/atomic"
)

// Error is an error response of a server.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%d) %s", e.Message, e.Code, e.Data) }

// MultiplexerData is the data of error responses that the multiplexer itself creates.
type MultiplexerData struct {
	Reason       string `json:"reason"`
	Incarnation  int64  `json:"incarnation"`
	Retriable    bool   `json:"retriable"`
	RetryAfterMS int64  `json:"retryAfterMs"`
	Outcome      string `json:"outcome"`
}

// MultiplexerData decodes the data of an error. It returns the zero value if there is none.
func (e *Error) MultiplexerData() (data MultiplexerData) {
	_ = json.Unmarshal(e.Data, &data) // the data of other servers may have any format
	return data
}

// ErrClosed is the error of calls on a closed connection.
var ErrClosed = errors.New("connection closed")

// Message is a received message.
type Message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

// Options configures a client.
type Options struct {
	// AnswerRequest returns the answer to a request of the server. If AnswerRequest is nil, the answer is null, or a list with one null for each requested
	// setting.
	AnswerRequest func(method string, params json.RawMessage) (any, *Error)
	// OnNotification is called with every notification, in order.
	OnNotification func(method string, params json.RawMessage)
}

// Client is one connection.
type Client struct {
	conn    io.ReadWriteCloser
	options Options
	done    chan struct{}

	writing sync.Mutex
	next    atomic.Int64

	mu          sync.Mutex
	pending     map[int64]chan Message
	unexpected  []Message
	diagnostics map[string]Diagnostics
	changed     chan struct{} // closed and replaced when diagnostics arrive
	err         error
}

// Dial connects to a socket.
func Dial(ctx context.Context, path string, options Options) (*Client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to the language server: %w", err)
	}
	return New(conn, options), nil
}

// New returns a client that reads from the connection until Close.
func New(conn io.ReadWriteCloser, options Options) *Client {
	c := &Client{
		conn: conn, options: options, done: make(chan struct{}),
		pending: map[int64]chan Message{}, diagnostics: map[string]Diagnostics{}, changed: make(chan struct{}),
	}
	go c.read()
	return c
}

// Close closes the connection and waits until the client has stopped reading.
func (c *Client) Close() {
	_ = c.conn.Close()
	<-c.done
}

// Done returns a channel that is closed when the connection ends. Err returns the reason.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended, or nil while it is open.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// UnexpectedResponses returns responses to unknown or already answered requests. A correct server sends none.
func (c *Client) UnexpectedResponses() []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unexpected
}

func (c *Client) read() {
	defer close(c.done)
	reader := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		body, err := ReadFrame(reader)
		if err == nil {
			var m Message
			if err = json.Unmarshal(body, &m); err == nil {
				c.handle(m)
				continue
			}
			err = fmt.Errorf("invalid message: %w", err)
		}
		c.mu.Lock()
		c.err = fmt.Errorf("%w: %w", ErrClosed, err)
		for id, answer := range c.pending {
			close(answer)
			delete(c.pending, id)
		}
		c.mu.Unlock()
		_ = c.conn.Close()
		return
	}
}

// limit is the maximum length of a message in bytes. Every message of the tests is shorter, and a message of this length fits into memory.
const limit = 256 << 20

// ReadFrame reads one message.
func ReadFrame(reader *bufio.Reader) ([]byte, error) {
	header, err := textproto.NewReader(reader).ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	length, err := strconv.Atoi(header.Get("Content-Length"))
	if err != nil || length < 0 || length > limit {
		return nil, fmt.Errorf("invalid Content-Length in header %v", header)
	}
	body := make([]byte, length)
	_, err = io.ReadFull(reader, body)
	return body, err
}

func (c *Client) handle(m Message) {
	switch {
	case m.Method == "":
		c.deliverResponse(m)
	case m.ID != nil:
		c.answerRequest(m)
	default:
		if m.Method == "textDocument/publishDiagnostics" {
			c.recordDiagnostics(m.Params)
		}
		if c.options.OnNotification != nil {
			c.options.OnNotification(m.Method, m.Params)
		}
	}
}

func (c *Client) deliverResponse(m Message) {
	id, err := strconv.ParseInt(string(m.ID), 10, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, ok := c.pending[id]
	if err != nil || !ok {
		c.unexpected = append(c.unexpected, m)
		return
	}
	delete(c.pending, id)
	answer <- m
}

// answerRequest answers a request of the server.
func (c *Client) answerRequest(m Message) {
	var result any
	var refused *Error
	switch {
	case c.options.AnswerRequest != nil:
		result, refused = c.options.AnswerRequest(m.Method, m.Params)
	case m.Method == "workspace/configuration":
		var params struct {
			Items []json.RawMessage `json:"items"`
		}
		_ = json.Unmarshal(m.Params, &params)
		result = make([]any, len(params.Items))
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": m.ID}
	if refused != nil {
		answer["error"] = refused
	} else {
		answer["result"] = result
	}
	_ = c.Write(answer) // the reader detects a closed connection
}

// Write sends a message in one write.
func (c *Client) Write(message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return c.WriteFrame(append(fmt.Appendf(nil, "Content-Length: %d\r\n\r\n", len(body)), body...))
}

// WriteFrame sends bytes unchanged.
func (c *Client) WriteFrame(frame []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := c.conn.Write(frame)
	return err
}

// Notify sends a notification.
func (c *Client) Notify(method string, params any) error {
	return c.Write(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
}

// Call sends a request and waits for the response. If the context ends first, Call cancels the request. result may be nil.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	call, err := c.StartCall(method, params)
	if err != nil {
		return err
	}
	return call.Wait(ctx, result)
}

// Call is a pending request.
type Call struct {
	ID     int64
	method string
	client *Client
	answer chan Message
}

// StartCall sends a request and returns without waiting for the response.
func (c *Client) StartCall(method string, params any) (*Call, error) {
	call := &Call{ID: c.next.Add(1), method: method, client: c, answer: make(chan Message, 1)}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.pending[call.ID] = call.answer
	c.mu.Unlock()
	if err := c.Write(map[string]any{"jsonrpc": "2.0", "id": call.ID, "method": method, "params": params}); err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return call, nil
}

// Wait waits for the response and decodes it into result, which may be nil. If the context ends first, Wait cancels the request.
func (call *Call) Wait(ctx context.Context, result any) error {
	select {
	case m, ok := <-call.answer:
		switch {
		case !ok:
			return fmt.Errorf("%s: %w", call.method, call.client.Err())
		case m.Error != nil:
			return fmt.Errorf("%s: %w", call.method, m.Error)
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(m.Result, result); err != nil {
			return fmt.Errorf("%s: decode response %s: %w", call.method, m.Result, err)
		}
		return nil
	case <-ctx.Done():
		_ = call.client.Notify("$/cancelRequest", map[string]any{"id": call.ID})
		return fmt.Errorf("%s: no response: %w", call.method, ctx.Err())
	}
}
