// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package front

import (
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// quota bounds a sum: of connections, or of bytes.
type quota struct {
	limit int64
	used  atomic.Int64
}

// take adds n, unless the sum would exceed the limit.
func (q *quota) take(n int64) bool {
	if q.used.Add(n) > q.limit {
		q.used.Add(-n)
		return false
	}
	return true
}

func (q *quota) give(n int64) { q.used.Add(-n) }

const (
	// defaultConnections is for all addresses together, if the process may have enough files open.
	defaultConnections = 2048
	// connectionShare is the part of the files that the process may have open: each connection may need another one to the server.
	connectionShare = 4
	// headerBytes is how long the head of a request may be; net/http adds 4 KiB of slack.
	headerBytes = 64 << 10
	// defaultHoldBytes is for the requests that wait at all addresses together.
	defaultHoldBytes = 64 << 20
	// heldOverhead is what a request that waits takes beside its head: two goroutines, buffers, and the copy that is sent on.
	heldOverhead = 16 << 10
	// fieldOverhead is what a header field takes beside its text.
	fieldOverhead = 64
)

// connections returns how many connections all addresses together may have in a process that may have so many files open; 0 means unknown.
func connections(files uint64) int {
	if files == 0 || files/connectionShare >= defaultConnections {
		return defaultConnections
	}
	return max(int(files/connectionShare), 2) //nolint:gosec // below defaultConnections
}

// weight estimates how many bytes a request takes while it waits.
func weight(r *http.Request) int64 {
	n := heldOverhead + len(r.Method) + len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			n += len(name) + len(value) + fieldOverhead
		}
	}
	return int64(n)
}

// limitedListener accepts connections as long as both quotas have room; it answers the others with 503 and closes them.
type limitedListener struct {
	*net.TCPListener
	own, all *quota
}

// accept returns the next connection that may be served.
func (l *limitedListener) accept() (*countedConn, error) {
	for {
		connection, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if l.own.take(1) {
			if l.all.take(1) {
				return &countedConn{TCPConn: connection, give: sync.OnceFunc(func() {
					l.own.give(1)
					l.all.give(1)
				})}, nil
			}
			l.own.give(1)
		}
		turnedAway.Inc()
		turnAway(connection)
	}
}

// countedConn keeps the methods of a TCP connection with which net/http copies without buffers.
type countedConn struct {
	*net.TCPConn
	give func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.give()
	return c.TCPConn.Close()
}

// turnAwayTime bounds how long the answer to a connection above the limit may take: it fits into the buffer of a new socket.
const turnAwayTime = 100 * time.Millisecond

const tooManyConnections = "HTTP/1.1 503 Service Unavailable\r\n" + HeaderReason + ": TooManyConnections\r\nRetry-After: 1\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n" +
	"Too many connections to the proxy are open. Close some, or retry later.\n"

func turnAway(connection net.Conn) {
	_ = connection.SetWriteDeadline(time.Now().Add(turnAwayTime))
	_, _ = io.WriteString(connection, tooManyConnections)
	_ = connection.Close()
}
