// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"bufio"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// handedOverConn is a connection that net/http takes over, together with the bytes already read from it.
type handedOverConn struct {
	*countedConn
	in *bufio.Reader
	// begun is the exchange of the first request if that request was already sent to the server, else nil.
	begun atomic.Pointer[exchange]
}

// exchange is a request that was already sent to a server.
type exchange struct {
	state *state
	line  *pooledConn
}

// handOver passes the connection to net/http. begun is the exchange of a request that was already sent, or nil.
func (c *client) handOver(begun *exchange) next {
	_ = c.SetReadDeadline(time.Time{})
	h := &handedOverConn{countedConn: c.countedConn, in: c.in}
	h.begun.Store(begun)
	select {
	case c.address.handedOver.connections <- h:
		return handsOver
	case <-c.address.handedOver.closed:
		h.release()
		return closes
	}
}

// Read implements net.Conn.
func (h *handedOverConn) Read(p []byte) (int, error) {
	if h.in != nil && h.in.Buffered() > 0 {
		return h.in.Read(p)
	}
	h.in = nil
	return h.countedConn.Read(p)
}

// Close implements net.Conn.
func (h *handedOverConn) Close() error {
	h.release()
	return h.countedConn.Close()
}

func (h *handedOverConn) release() {
	if e := h.begun.Swap(nil); e != nil {
		e.line.close()
	}
}

type begunKey struct{}

// withHanded stores the connection in the context of its requests; it is the ConnContext of the http.Server.
func withHanded(ctx context.Context, connection net.Conn) context.Context {
	return context.WithValue(ctx, begunKey{}, connection)
}

// begun returns the exchange of a request that was sent to the server before the handover of its connection. It returns nil if the request was not sent.
func begun(ctx context.Context) *exchange {
	if h, ok := ctx.Value(begunKey{}).(*handedOverConn); ok {
		return h.begun.Swap(nil)
	}
	return nil
}

// handovers is the listener from which net/http takes connections.
type handovers struct {
	connections chan net.Conn
	closed      chan struct{}
	close       func()
}

func newHandovers() *handovers {
	h := &handovers{connections: make(chan net.Conn), closed: make(chan struct{})}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	return h
}

// Accept implements net.Listener.
func (h *handovers) Accept() (net.Conn, error) {
	select {
	case connection := <-h.connections:
		return connection, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handovers) Close() error {
	h.close()
	return nil
}

// Addr implements net.Listener.
func (h *handovers) Addr() net.Addr { return &net.TCPAddr{} }
