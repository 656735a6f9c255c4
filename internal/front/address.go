// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package front

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

// phase is what becomes of a request that comes now.
type phase int

const (
	// held has it wait.
	held phase = iota
	// open lets it through.
	open
	// refused answers it at once.
	refused
)

// state is how an address is. It never changes: another one takes its place.
type state struct {
	phase   phase
	backend *backend // while it is open, or was found not to take connections
	// version counts how often the address was opened, so that a request which was lost does not meet what lost it.
	version int64
	reason  Reason
	// over is closed when another state has taken its place.
	over chan struct{}
}

// address is one port, and what is behind it.
type address struct {
	name    string
	options Options
	port    atomic.Int32
	server  *http.Server
	// connections are those of this address; the other quotas are shared by all.
	connections, allConnections, heldBytes *quota
	// hosts are the names that requests may ask for beside those of this machine.
	hosts atomic.Pointer[[]string]
	// handedOver is the listener through which net/http takes over connections.
	handedOver *handovers
	// leaving reports whether the address is being closed: each connection is closed as soon as no request is in flight on it.
	leaving atomic.Bool
	// ctx ends with the address, and with it everything that is still being answered.
	ctx    context.Context
	cancel context.CancelFunc

	// mu guards what follows, and every change of the state.
	mu        sync.Mutex
	listeners []net.Listener
	overIPv6  bool  // one of the listeners is on ::1
	ipv6      error // why none is; nil if the machine has no IPv6
	newest    int64 // the newest incarnation that was opened
	ended     int64 // the newest incarnation that was ended
	left      bool  // the address is being given up
	clients   map[*client]bool
	state     atomic.Pointer[state]
	// retired is the last backend while it is not used any more: its connections are closed as they become idle, so that it can end well.
	retired atomic.Pointer[backend]
	waiting atomic.Int64
	// work counts background goroutines, serving the connections of plain clients, and handlers the requests that net/http serves.
	work     sync.WaitGroup
	serving  sync.WaitGroup
	gate     sync.RWMutex
	shutting bool
	handlers sync.WaitGroup
}

// Limits of a client that says nothing.
const (
	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
)

// silent drops what a server or a proxy would log of clients that go away.
var silent = log.New(io.Discard, "", 0)

func newAddress(name string, f *Fronts) *address {
	a := &address{
		name: name, options: f.options,
		connections: &quota{limit: max(f.connections.limit/2, 1)}, allConnections: f.connections, heldBytes: f.heldBytes,
		handedOver: newHandovers(), clients: map[*client]bool{},
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.state.Store(&state{reason: Reason{Reason: "Starting", Message: "the server has not been ready yet"}, over: make(chan struct{})})
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

// listen takes requests from this listener and no other.
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

// serve takes requests from one listener more; the lock is held.
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

// closeClients closes the connections on which no request is in flight, or all.
func (a *address) closeClients(all bool) {
	a.leaving.Store(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.clients {
		c.leave(all)
	}
}

// listenOverIPv6 listens on ::1 too, unless it does.
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

// open lets requests through to an incarnation.
func (a *address) open(incarnation int64, target *url.URL) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left || incarnation <= a.ended || incarnation < a.newest {
		return
	}
	now := a.state.Load()
	if now.backend.is(incarnation, target) {
		return // it is open, or nobody takes connections there at the moment
	}
	b := a.retired.Load()
	if !b.is(incarnation, target) {
		b = newBackend(incarnation, target)
	}
	a.newest = incarnation
	a.retired.Store(nil)
	a.become(&state{phase: open, backend: b, version: now.version + 1})
}

// close lets no request through, for the reason given.
func (a *address) close(to phase, reason Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.state.Load()
	if a.left || now.phase == to && now.backend == nil && now.reason == reason {
		return
	}
	a.become(&state{phase: to, version: now.version, reason: reason})
}

// end lets no request through to that incarnation or an older one, ever again.
func (a *address) end(incarnation int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = max(a.ended, incarnation)
	now := a.state.Load()
	if a.left || now.backend == nil || now.backend.incarnation > incarnation {
		return
	}
	a.become(&state{version: now.version, reason: Reason{Reason: "Restarting", Message: "the server is being ended"}})
}

// suspect has requests wait although the server is said to be ready: it takes no connections. They go on when it does again.
func (a *address) suspect(doubted *state) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left || a.state.Load() != doubted {
		return // that is known already
	}
	suspected := &state{
		backend: doubted.backend, version: doubted.version,
		reason: Reason{Reason: "NotReachable", Message: "the server takes no connections"},
	}
	a.become(suspected)
	a.work.Go(func() { a.revive(suspected) })
}

// knockInterval is how often a server that takes no connections is tried.
const knockInterval = 50 * time.Millisecond

// revive opens the address again once the server takes connections, unless something else is decided about it before.
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
		a.become(&state{phase: open, backend: suspected.backend, version: suspected.version + 1})
	}
}

// become puts another state in the place of this one; the lock is held.
func (a *address) become(next *state) {
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

// leave frees the port and refuses whoever waits.
func (a *address) leave(reason Reason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, listener := range a.listeners {
		_ = listener.Close()
	}
	a.listeners = nil
	if !a.left {
		a.left = true
		a.become(&state{phase: refused, version: a.state.Load().version, reason: reason})
	}
}

// shut ends what is being answered, after it had some time, and returns when nothing of the address is left.
func (a *address) shut() {
	ctx, cancel := context.WithTimeout(a.ctx, drainTime)
	a.closeClients(false)
	served := make(chan struct{})
	a.work.Go(func() {
		a.serving.Wait()
		close(served)
	})
	_ = a.server.Shutdown(ctx) // what it leaves is ended below
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

// enter counts a request, unless the address is gone.
func (a *address) enter() bool {
	a.gate.RLock()
	defer a.gate.RUnlock()
	if a.shutting {
		return false
	}
	a.handlers.Add(1)
	return true
}
