// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"net"
	"net/http/httputil"
	"strconv"
	"sync/atomic"
	"time"
)

// client is a connection from a client. The proxy forwards plain requests and their responses without net/http. At the first request or response that is not
// plain, the proxy hands the connection over to net/http, which then serves the connection until it closes.
type client struct {
	*countedConn
	address *address
	in      *bufio.Reader
	out     *bufio.Writer
	// head is the composed head of the next request or response to send.
	head []byte
	ip   string
	// activity is idle, busy or left.
	activity atomic.Int32
	// deadline is the read deadline of the connection.
	deadline time.Time
	// line is the connection to the server while a request is in flight.
	line *pooledConn
	// watch checks for a disconnect of the client if a response takes longer than watchDelay; watched receives the result.
	watch    *time.Timer
	watched  chan bool
	answered atomic.Bool
}

const (
	idle = iota
	busy
	left

	// clientBuffer is the size of the longest head that is forwarded without net/http, in bytes.
	clientBuffer = 8 << 10
	// watchDelay is how long a response may take before the proxy checks whether the client is still connected.
	watchDelay = 100 * time.Millisecond
	// deadlineSlack is how much earlier than idleTime an idle connection may be closed, so that serve need not set the deadline after each request.
	deadlineSlack = 5 * time.Second
)

func newClient(a *address, connection *countedConn) *client {
	c := &client{countedConn: connection, address: a, watched: make(chan bool, 1)}
	c.in, c.out = bufio.NewReaderSize(connection, clientBuffer), bufio.NewWriter(connection)
	c.ip, _, _ = net.SplitHostPort(connection.RemoteAddr().String())
	c.watch = time.AfterFunc(math.MaxInt64, c.watchClient)
	c.watch.Stop()
	return c
}

// serve forwards requests until the connection ends or is handed over.
func (c *client) serve() {
	c.deadline = time.Now().Add(headerTime)
	_ = c.SetReadDeadline(c.deadline)
	for {
		if _, err := c.in.Peek(1); err != nil || !c.activity.CompareAndSwap(idle, busy) {
			_ = c.Close()
			return
		}
		next := c.forward()
		if b := c.address.retired.Load(); b != nil {
			b.rest()
		}
		switch next {
		case closes:
			_ = c.Close()
			return
		case handsOver:
			return
		}
		if now := time.Now(); c.deadline.Before(now.Add(idleTime - deadlineSlack)) {
			c.deadline = now.Add(idleTime)
			_ = c.SetReadDeadline(c.deadline)
		}
		c.activity.Store(idle)
		if c.address.leaving.Load() {
			_ = c.Close()
			return
		}
	}
}

// leave closes the connection if no request is in flight. If anyway is true, it always closes the connection.
func (c *client) leave(anyway bool) {
	if c.activity.CompareAndSwap(idle, left) || anyway {
		_ = c.Close()
	}
}

// next is what happens to a connection after a request.
type next int

const (
	continues next = iota
	closes
	handsOver
)

// forward sends one request to the server and its response to the client. The request remains in the buffer until a byte of the response is sent to the client,
// so that net/http can take over.
func (c *client) forward() next {
	s := c.address.state.Load()
	buffered, _ := c.in.Peek(c.in.Buffered())
	size := headSize(buffered)
	r, plain := c.parseRequest(buffered[:size])
	if !plain || s.phase != open || s.backend.wire == nil || r.last && size < len(buffered) {
		return c.handOver(nil)
	}
	l, kept, err := s.backend.wire.line(c.address.ctx)
	if err != nil {
		return c.handOver(nil)
	}
	c.line = l
	c.answered.Store(false)
	c.watch.Reset(watchDelay)
	a, plain, err := c.exchange(l, r, size < len(buffered))
	if err == nil && plain {
		_, _ = c.in.Discard(size)
		return c.pass(l, r, a)
	}
	switch {
	case c.unwatch():
		l.close()
		return closes
	case err != nil && kept && !l.heard: // the server closed the kept connection before this request
		l.close()
		return c.handOver(nil)
	}
	return c.handOver(&exchange{state: s, line: l})
}

// exchange sends the request and parses the head of the response. more reports whether further requests were received after this one.
func (c *client) exchange(l *pooledConn, r plainRequest, more bool) (a plainAnswer, plain bool, err error) {
	head, err := l.forward(c.head)
	if err != nil {
		return a, false, err
	}
	a, plain = c.parseAnswer(head, r)
	if plain && a.length > 0 && l.in.Buffered() == a.head {
		_, err = l.in.Peek(a.head + 1) // wait for the body, because the request can only be retried while the client has no byte of the response
	}
	return a, plain && (!more || !a.untilEnd()), err // an untilEnd response closes the connection, which would lose further requests
}

// pass sends the response to the client.
func (c *client) pass(l *pooledConn, r plainRequest, a plainAnswer) next {
	countAnswer(a.status)
	_, _ = l.in.Discard(a.head)
	l.room = math.MaxInt64
	_, _ = c.out.Write(c.head)
	whole := c.answer(l, a)
	if c.unwatch() || !whole || a.last || l.in.Buffered() > 0 {
		l.close()
	} else {
		l.wire.keep(l)
	}
	if c.out.Flush() != nil || !whole || r.last || a.untilEnd() {
		return closes
	}
	return continues
}

// watchClient closes the connection to the server if the client disconnects before it has the response.
func (c *client) watchClient() {
	_ = c.SetReadDeadline(time.Time{})
	left := !c.answered.Load() && waitClosed(c.TCPConn)
	if left {
		c.line.close()
	}
	c.watched <- left
}

// unwatch ends the watch and reports whether the client has disconnected.
func (c *client) unwatch() bool {
	if c.watch.Stop() {
		return false
	}
	c.answered.Store(true)
	_ = c.SetReadDeadline(time.Unix(1, 0))
	gone := <-c.watched
	_ = c.SetReadDeadline(c.deadline)
	return gone
}

// answer copies the body of a response and reports whether the body was complete.
func (c *client) answer(l *pooledConn, a plainAnswer) bool {
	if a.length >= 0 && int64(l.in.Buffered()) >= a.length {
		body, _ := l.in.Peek(int(a.length))
		_, err := c.out.Write(body)
		_, _ = l.in.Discard(len(body))
		return err == nil
	}
	switch {
	case a.chunked:
		return c.copyChunks(l)
	case a.length < 0:
		_, err := c.copy(l, l.in, false)
		return err == nil
	}
	n, err := c.copy(l, io.LimitReader(l.in, a.length), false)
	return err == nil && n == a.length
}

// copy sends the client everything that can be read from the given reader, in chunked encoding if chunks is true. It flushes the data before it waits for more.
func (c *client) copy(l *pooledConn, from io.Reader, chunks bool) (n int64, err error) {
	buffer := buffers.Get()
	defer buffers.Put(buffer)
	for {
		if l.in.Buffered() == 0 {
			if err := c.out.Flush(); err != nil {
				return n, err
			}
		}
		part, err := from.Read(buffer)
		n += int64(part)
		if part > 0 && chunks {
			_, _ = c.out.WriteString(strconv.FormatInt(int64(part), 16) + "\r\n")
		}
		_, failed := c.out.Write(buffer[:part])
		if part > 0 && chunks {
			_, failed = c.out.WriteString("\r\n")
		}
		switch {
		case failed != nil:
			return n, failed
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// copyChunks copies a chunked body and its trailers.
func (c *client) copyChunks(l *pooledConn) bool {
	if _, err := c.copy(l, httputil.NewChunkedReader(l.in), true); err != nil {
		return false
	}
	_, _ = c.out.WriteString("0\r\n")
	for size := 0; size < clientBuffer; {
		trailer, err := l.in.ReadSlice('\n')
		if err != nil {
			return false
		}
		_, _ = c.out.Write(trailer)
		if len(bytes.TrimRight(trailer, "\r\n")) == 0 {
			return true
		}
		size += len(trailer)
	}
	return false
}
