// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devproxy provides dev servers with stable addresses. An address is a listener of the manager that forwards requests to the ready incarnation of the
// server. While no incarnation is ready, it holds requests, limited in time and number. A rejected client receives the reason and a Retry-After header.
//
// The package makes no decisions. The reconciler determines which incarnation may be used (Open), whether to wait for one (Hold), whether there is none
// (Refuse), and which one is about to be stopped (End). An ended incarnation is never used again, even if a stale read of the object suggests it.
package devproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Options configure the addresses. The zero value selects the defaults.
type Options struct {
	// HoldTime is the maximum total time for which a request is held; 0 means 30 seconds.
	HoldTime time.Duration
	// HoldRequests is the maximum number of held requests per address; 0 means 1024. Their bodies are not read while they are held.
	HoldRequests int
	// HoldBytes is the maximum memory of the held requests at all addresses together, in bytes; 0 means 64 MiB.
	HoldBytes int64
	// Connections is the maximum number of client connections to all addresses together; 0 means 2048, or a quarter of the open-file limit of the process if
	// that is lower. One address may use half of them.
	Connections int
}

const (
	defaultHoldTime     = 30 * time.Second
	defaultHoldRequests = 1024
	// drainTime is how long requests in flight may take when their address is closed.
	drainTime = 2 * time.Second
)

// Reason is why requests are held or rejected: the reason and the message of a condition of the object, or those of the proxy.
type Reason struct {
	Reason, Message string
	// Until is when the server will be started again, if known.
	Until time.Time
}

// Proxies holds the addresses of one manager. It is a Runnable of the manager, and closes all addresses when the manager stops.
type Proxies struct {
	options Options
	// connections and heldBytes are shared by all addresses.
	connections, heldBytes *quota

	mu        sync.Mutex
	addresses map[types.UID]*address
	ended     bool
	closing   sync.WaitGroup
}

// New returns Proxies without addresses.
func New(options Options) *Proxies {
	options.HoldTime = cmp.Or(options.HoldTime, defaultHoldTime)
	options.HoldRequests = cmp.Or(options.HoldRequests, defaultHoldRequests)
	options.HoldBytes = cmp.Or(options.HoldBytes, defaultHoldBytes)
	options.Connections = cmp.Or(options.Connections, connections(openFiles()))
	return &Proxies{
		options: options, addresses: map[types.UID]*address{},
		connections: &quota{limit: int64(options.Connections)}, heldBytes: &quota{limit: options.HoldBytes},
	}
}

// ErrEnded means that an address was not opened because the manager is shutting down. It does not mean that the port is in use.
var ErrEnded = errors.New("the manager is shutting down")

// Listen reserves the port for the object on loopback, and releases the object's previous port. name is used in messages. hosts are the host names that
// requests may use besides those of this machine; see CheckHost. Listen returns ErrEnded after the manager has stopped, and an error if it cannot bind the
// port on 127.0.0.1. A failure to bind the port on ::1 is not an error; IPv6 reports it.
func (f *Proxies) Listen(uid types.UID, name string, port int32, hosts ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return ErrEnded
	}
	a := f.addresses[uid]
	if a == nil || a.port.Load() != port {
		listener, err := bind("tcp4", "127.0.0.1", port)
		if err != nil {
			return fmt.Errorf("listen on port %d: %w", port, err)
		}
		if a == nil {
			a = newAddress(name, f)
			f.addresses[uid] = a
		}
		a.hosts.Store(&hosts)
		a.listen(port, listener)
	}
	a.hosts.Store(&hosts)
	a.listenOverIPv6()
	return nil
}

// IPv6 returns why the address of an object does not listen on ::1. It returns nil if the address listens there, or if the machine has no IPv6.
func (f *Proxies) IPv6(uid types.UID) error {
	if a := f.of(uid); a != nil {
		return a.withoutIPv6()
	}
	return nil
}

// Listens reports whether the port is reserved for the object.
func (f *Proxies) Listens(uid types.UID, port int32) bool {
	a := f.of(uid)
	return a != nil && a.port.Load() == port
}

// Open forwards requests to an incarnation at backend, a URL such as http://127.0.0.1:20001. It ignores an incarnation that was ended, or that is older than
// the newest opened one. It returns an error for an invalid URL.
func (f *Proxies) Open(uid types.UID, incarnation int64, backend string) error {
	target, err := url.Parse(backend)
	if err != nil {
		return fmt.Errorf("open the proxy: %w", err)
	}
	if a := f.of(uid); a != nil {
		a.open(incarnation, target)
	}
	return nil
}

// Hold makes the address hold requests instead of forwarding them.
func (f *Proxies) Hold(uid types.UID, reason Reason) {
	if a := f.of(uid); a != nil {
		a.close(held, reason)
	}
}

// Refuse rejects all requests immediately, because there is no server.
func (f *Proxies) Refuse(uid types.UID, reason Reason) {
	if a := f.of(uid); a != nil {
		a.close(refused, reason)
	}
}

// End permanently stops forwarding requests to this incarnation and older ones. The reconciler calls it before it stops the incarnation, or starts the next one.
func (f *Proxies) End(uid types.UID, incarnation int64) {
	if a := f.of(uid); a != nil {
		a.end(incarnation)
	}
}

// Close closes the address of an object. The port is free when Close returns.
func (f *Proxies) Close(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.addresses[uid]
	if a == nil {
		return
	}
	delete(f.addresses, uid)
	a.leave(gone)
	f.closing.Go(a.shut)
}

func (f *Proxies) of(uid types.UID) *address {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addresses[uid]
}

// Start blocks until the context is done; then it closes the addresses. Requests in flight may take up to drainTime to complete.
func (f *Proxies) Start(ctx context.Context) error {
	<-ctx.Done()
	f.mu.Lock()
	f.ended = true
	for uid, a := range f.addresses {
		delete(f.addresses, uid)
		a.leave(restarting)
		f.closing.Go(a.shut)
	}
	f.mu.Unlock()
	f.closing.Wait()
	return nil
}

// Reasons in responses at an address that is being closed.
var (
	gone       = Reason{Reason: "Gone", Message: "this address is being removed"}
	restarting = Reason{Reason: "ManagerEnding", Message: "the manager of this address is shutting down; another manager takes over the address"}
)

func bind(network, host string, port int32) (*net.TCPListener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil // the network is TCP
}

// absent reports whether ::1 cannot be bound because the machine has no IPv6.
func absent(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EPROTONOSUPPORT)
}
