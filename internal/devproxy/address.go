// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// phase determines what happens to a new request.
type phase int

const (
	// held holds the request.
	held phase = iota
	// open forwards the request.
	open
	// refused rejects the request immediately.
	refused
)

// state is the state of an address. A state is immutable; a change replaces it with a new one.
type state struct {
	phase   phase
	backend *backend // set while the address is open, or if the backend did not accept connections
	// version counts how often the address was opened. A request can wait for a newer version; see hold.failedVersion.
	version int64
	reason  Reason
	// over is closed when the state is replaced.
	over chan struct{}
}

// address is one port and the server behind it.
type address struct {
	name    string
	options Options
	port    atomic.Int32
	server  *http.Server
	// connections is the quota of this address; the other quotas are shared by all addresses.
	connections, allConnections, heldBytes *quota
	// hosts are the host names that requests may use besides those of this machine.
	hosts atomic.Pointer[[]string]
	// handedOver is the listener through which net/http takes over connections.
	handedOver *handovers
	// leaving reports whether the address is being closed: each connection is closed as soon as no request is in flight on it.
	leaving atomic.Bool
	// ctx is done when the address is closed. This also ends the requests in flight.
	ctx    context.Context
	cancel context.CancelFunc

	// mu guards the fields below, and every change of the state.
	mu        sync.Mutex
	listeners []net.Listener
	overIPv6  bool  // one of the listeners is on ::1
	ipv6      error // why there is no listener on ::1; nil if the machine has no IPv6
	newest    int64 // the newest incarnation for which the address was opened
	ended     int64 // the newest incarnation that was ended
	left      bool  // the address is being closed
	clients   map[*client]bool
	state     atomic.Pointer[state]
	// retired is the previous backend. Its connections are closed as they become idle, so that the server can shut down cleanly.
	retired atomic.Pointer[backend]
	waiting atomic.Int64
	// work tracks background goroutines, serving tracks the connections that client.serve handles, and handlers tracks the requests that net/http serves.
	work    sync.WaitGroup
	serving sync.WaitGroup
	// gate guards shutting. While shutting is true, no request is added to handlers.
	gate     sync.RWMutex
	shutting bool
	handlers sync.WaitGroup
}

// headerTime is how long a client may take to send the header of a request. idleTime is how long a connection may be idle between two requests.
const (
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
)

// silent discards log messages of net/http about clients that disconnect.
var silent = log.New(io.Discard, "", 0)

func newAddress(name string, f *Proxies) *address {
	a := &address{
		name: name, options: f.options,
		connections: &quota{limit: max(f.connections.limit/2, 1)}, allConnections: f.connections, heldBytes: f.heldBytes,
		handedOver: newHandovers(), clients: map[*client]bool{},
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.state.Store(&state{reason: Reason{Reason: "Starting", Message: "the server is not ready yet"}, over: make(chan struct{})})
	a.server = &http.Server{
		Handler:           a.handler(),
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		BaseContext:       func(net.Listener) context.Context { return a.ctx },
		ConnContext:       withHanded,
		ErrorLog:          silent,
	}
	a.work.Go(func() { _ = a.server.Serve(a.handedOver) })
	return a
}

// listen replaces all listeners of the address with the given one.
func (a *address) listen(port int32, listener *net.TCPListener) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, listener := range a.listeners {
		_ = listener.Close()
	}
	a.port.Store(port)
	a.listeners, a.overIPv6 = nil, false
	a.serve(listener)
}

// serve accepts connections from an additional listener. The caller holds the lock.
func (a *address) serve(listener *net.TCPListener) {
	a.listeners = append(a.listeners, listener)
	limited := &limitedListener{TCPListener: listener, own: a.connections, all: a.allConnections}
	a.work.Go(func() { a.accept(limited) })
}

// acceptPause is how long the address waits after a failed accept, for example because too many files are open.
const acceptPause = 20 * time.Millisecond

// accept serves the connections of a listener until the listener is closed.
func (a *address) accept(listener *limitedListener) {
	for {
		connection, err := listener.accept()
		switch {
		case err == nil:
			a.takeClient(connection)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			select {
			case <-a.ctx.Done():
			case <-time.After(acceptPause):
			}
		}
	}
}

// takeClient starts serving a connection in its own goroutine, or closes it if the address is being closed.
func (a *address) takeClient(connection *countedConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaving.Load() {
		_ = connection.Close()
		return
	}
	c := newClient(a, connection)
	a.clients[c] = true
	a.serving.Go(func() {
		c.serve()
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.clients, c)
	})
}

// closeClients closes the connections without a request in flight, or every connection if all is true.
func (a *address) closeClients(all bool) {
	a.leaving.Store(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.clients {
		c.leave(all)
	}
}

// listenOverIPv6 also listens on ::1, unless the address already does.
func (a *address) listenOverIPv6() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.overIPv6 || a.left {
		return
	}
	listener, err := bind("tcp6", "::1", a.port.Load())
	if err == nil {
		a.overIPv6 = true
		a.serve(listener)
	}
	a.ipv6 = err
	if absent(err) {
		a.ipv6 = nil
	}
}

func (a *address) withoutIPv6() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ipv6
}

// open forwards requests to an incarnation. It ignores an incarnation that was ended or is older than the newest one.
func (a *address) open(incarnation int64, target *url.URL) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left || incarnation <= a.ended || incarnation < a.newest {
		return
	}
	now := a.state.Load()
	if now.backend.is(incarnation, target) {
		return // the address is already open to this backend, or waits until the backend accepts connections
	}
	b := a.retired.Load()
	if !b.is(incarnation, target) {
		b = newBackend(incarnation, target)
	}
	a.newest = incarnation
	a.retired.Store(nil)
	a.setState(&state{phase: open, backend: b, version: now.version + 1})
}

// close stops forwarding requests, for the given reason. The parameter to is the next phase, held or refused.
func (a *address) close(to phase, reason Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.state.Load()
	if a.left || now.phase == to && now.backend == nil && now.reason == reason {
		return
	}
	a.setState(&state{phase: to, version: now.version, reason: reason})
}

// end permanently stops forwarding requests to this incarnation and older ones.
func (a *address) end(incarnation int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = max(a.ended, incarnation)
	now := a.state.Load()
	if a.left || now.backend == nil || now.backend.incarnation > incarnation {
		return
	}
	a.setState(&state{version: now.version, reason: Reason{Reason: "Restarting", Message: "the server restarts"}})
}

// suspect holds requests because the server accepts no connections, although its status is Ready. The address opens again when the server accepts a connection.
// This concerns only requests, which cannot wait for a reconcile. Whether the process restarts is decided in internal/lifecycle, from the probes.
func (a *address) suspect(doubted *state) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left || a.state.Load() != doubted {
		return // the state has already changed
	}
	suspected := &state{
		backend: doubted.backend, version: doubted.version,
		reason: Reason{Reason: "NotReachable", Message: "the server does not accept connections"},
	}
	a.setState(suspected)
	a.work.Go(func() { a.revive(suspected) })
}

// knockInterval is how often the proxy tries to connect to a server that accepts no connections.
const knockInterval = 50 * time.Millisecond

// revive opens the address again once the server accepts connections, unless the state changes first.
func (a *address) revive(suspected *state) {
	ticker := time.NewTicker(knockInterval)
	defer ticker.Stop()
	for !suspected.backend.answers(a.ctx) {
		select {
		case <-a.ctx.Done():
			return
		case <-suspected.over:
			return
		case <-ticker.C:
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state.Load() == suspected {
		a.setState(&state{phase: open, backend: suspected.backend, version: suspected.version + 1})
	}
}

// setState replaces the state. The caller holds the lock.
func (a *address) setState(next *state) {
	next.over = make(chan struct{})
	now := a.state.Swap(next)
	if now.backend != nil && now.backend != next.backend {
		a.retired.Store(now.backend)
		now.backend.rest()
	}
	if next.phase == open {
		a.retired.Store(nil)
	}
	close(now.over)
}

// leave releases the port and rejects held requests.
func (a *address) leave(reason Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, listener := range a.listeners {
		_ = listener.Close()
	}
	a.listeners = nil
	if !a.left {
		a.left = true
		a.setState(&state{phase: refused, version: a.state.Load().version, reason: reason})
	}
}

// shut gives requests in flight up to drainTime to complete, then cancels them. It returns when all connections and goroutines of the address have ended.
func (a *address) shut() {
	ctx, cancel := context.WithTimeout(a.ctx, drainTime)
	a.closeClients(false)
	served := make(chan struct{})
	a.work.Go(func() {
		a.serving.Wait()
		close(served)
	})
	_ = a.server.Shutdown(ctx) // the requests that are still in flight afterwards are ended below
	select {
	case <-served:
	case <-ctx.Done():
	}
	cancel()
	a.closeClients(true)
	a.gate.Lock()
	a.shutting = true
	a.gate.Unlock()
	a.cancel()
	_ = a.server.Close()
	a.handlers.Wait()
	a.work.Wait()
	if b := a.retired.Load(); b != nil {
		b.rest()
	}
}

// enter adds a request to handlers. It returns false if the address is closed.
func (a *address) enter() bool {
	a.gate.RLock()
	defer a.gate.RUnlock()
	if a.shutting {
		return false
	}
	a.handlers.Add(1)
	return true
}
