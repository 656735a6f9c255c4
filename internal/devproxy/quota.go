// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// quota limits a total number of connections or bytes.
type quota struct {
	limit int64
	used  atomic.Int64
}

// take adds n and returns true, or returns false if the sum would exceed the limit.
func (q *quota) take(n int64) bool {
	if q.used.Add(n) > q.limit {
		q.used.Add(-n)
		return false
	}
	return true
}

func (q *quota) give(n int64) { q.used.Add(-n) }

const (
	// defaultConnections is the maximum number of connections to all addresses together, unless the open-file limit of the process requires a lower one.
	defaultConnections = 2048
	// connectionShare is the divisor of the open-file limit: only a quarter of it is used for client connections, because each may need another connection
	// to the server, and the manager also needs files for its processes.
	connectionShare = 4
	// headerBytes is the maximum length of the head of a request; net/http adds 4 KiB of slack.
	headerBytes = 64 << 10
	// defaultHoldBytes is the maximum memory of the held requests at all addresses together.
	defaultHoldBytes = 64 << 20
	// heldOverhead is the memory of a held request besides its head: two goroutines, buffers, and the copy that is forwarded.
	heldOverhead = 16 << 10
	// fieldOverhead is the memory of a header field besides its text.
	fieldOverhead = 64
)

// connections returns the maximum number of connections to all addresses together, for the given open-file limit of the process; 0 means that the limit is
// unknown.
func connections(files uint64) int {
	if files == 0 || files/connectionShare >= defaultConnections {
		return defaultConnections
	}
	return max(int(files/connectionShare), 2) //nolint:gosec // below defaultConnections
}

// weight estimates the memory of a held request, in bytes.
func weight(r *http.Request) int64 {
	n := heldOverhead + len(r.Method) + len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			n += len(name) + len(value) + fieldOverhead
		}
	}
	return int64(n)
}

// limitedListener accepts connections while both quotas have room. It responds to further connections with 503 and closes them.
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

// countedConn is a connection that is counted in the quotas. It keeps the methods of a TCP connection that net/http uses to copy without buffers.
type countedConn struct {
	*net.TCPConn
	give func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.give()
	return c.TCPConn.Close()
}

// turnAwayTime bounds how long the response to a connection above the limit may take. The response fits into the buffer of a new socket.
const turnAwayTime = 100 * time.Millisecond

const tooManyConnections = "HTTP/1.1 503 Service Unavailable\r\n" + HeaderReason + ": TooManyConnections\r\nRetry-After: 1\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n" +
	"Too many connections to the proxy are open. Close some, or retry later.\n"

func turnAway(connection net.Conn) {
	_ = connection.SetWriteDeadline(time.Now().Add(turnAwayTime))
	_, _ = io.WriteString(connection, tooManyConnections)
	_ = connection.Close()
}
