// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package front gives dev servers addresses that stay: a listener of the manager, and behind it whichever incarnation of the server is ready.
// While none is, requests wait, bounded in time and number; who can't be served is told why and when to come again.
//
// It decides nothing: the reconciler says which incarnation may be used (Open), that there is one to wait for (Hold), that there is none
// (Refuse), and which one is about to be ended (End), which is then never used again, whatever an older look at the object may say.
package front

import (
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

// Options is what can be chosen. The zero value is the default.
type Options struct {
	// HoldTime is how long one request may wait altogether; 0 means 30 seconds.
	HoldTime time.Duration
	// HoldRequests is how many requests may wait at one address; 0 means 1024. Their bodies are not read meanwhile.
	HoldRequests int
	// HoldBytes is how many bytes the requests that wait may take, at all addresses together; 0 means 64 MiB.
	HoldBytes int64
	// Connections is how many connections clients may have to all addresses together; 0 means 2048, or a quarter of the files that the process may have
	// open if that is less. One address may have half of them.
	Connections int
}

const (
	defaultHoldTime     = 30 * time.Second
	defaultHoldRequests = 1024
	// drainTime is how long requests that are being answered may take when their address is given up.
	drainTime = 2 * time.Second
)

// Reason is why requests are held or refused, in the words of the object's conditions.
type Reason struct {
	Reason, Message string
	// Until is when the server is started again, if that is known.
	Until time.Time
}

// Fronts are the addresses that one manager holds. It is a Runnable of the manager: when that ends, all are closed.
type Fronts struct {
	options Options
	// connections and heldBytes are those of all addresses together.
	connections, heldBytes *quota

	mu        sync.Mutex
	addresses map[types.UID]*address
	ended     bool
	closing   sync.WaitGroup
}

// New gives an empty set of addresses.
func New(options Options) *Fronts {
	if options.HoldTime == 0 {
		options.HoldTime = defaultHoldTime
	}
	if options.HoldRequests == 0 {
		options.HoldRequests = defaultHoldRequests
	}
	if options.HoldBytes == 0 {
		options.HoldBytes = defaultHoldBytes
	}
	if options.Connections == 0 {
		options.Connections = connections(openFiles())
	}
	return &Fronts{
		options: options, addresses: map[types.UID]*address{},
		connections: &quota{limit: int64(options.Connections)}, heldBytes: &quota{limit: options.HoldBytes},
	}
}

// ErrEnded refuses an address because the manager is being ended. It says nothing about the port.
var ErrEnded = errors.New("the manager is being ended")

// Listen holds the port for the object from now on, on the loopback, and gives up another one that it held. Name is for messages. Requests may name
// this machine or one of hosts: see CheckHost.
func (f *Fronts) Listen(uid types.UID, name string, port int32, hosts ...string) error {
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

// IPv6 returns why the address of an object does not listen on ::1. It returns nil if it does, and if the machine has no IPv6.
func (f *Fronts) IPv6(uid types.UID) error {
	if a := f.of(uid); a != nil {
		return a.withoutIPv6()
	}
	return nil
}

// Listens says whether the port is held for that object.
func (f *Fronts) Listens(uid types.UID, port int32) bool {
	a := f.of(uid)
	return a != nil && a.port.Load() == port
}

// Open lets requests through to an incarnation, at an address such as http://127.0.0.1:20001. One that was ended, or an older one than was let
// through before, is not opened.
func (f *Fronts) Open(uid types.UID, incarnation int64, backend string) error {
	target, err := url.Parse(backend)
	if err != nil {
		return fmt.Errorf("open the front: %w", err)
	}
	if a := f.of(uid); a != nil {
		a.open(incarnation, target)
	}
	return nil
}

// Hold lets no request through and has them wait.
func (f *Fronts) Hold(uid types.UID, reason Reason) {
	if a := f.of(uid); a != nil {
		a.close(held, reason)
	}
}

// Refuse answers all requests at once that there is no server.
func (f *Fronts) Refuse(uid types.UID, reason Reason) {
	if a := f.of(uid); a != nil {
		a.close(refused, reason)
	}
}

// End lets no request through to that incarnation or an older one, ever again: it is about to be asked to end.
func (f *Fronts) End(uid types.UID, incarnation int64) {
	if a := f.of(uid); a != nil {
		a.end(incarnation)
	}
}

// Close gives up the address of an object. The port is free when it returns.
func (f *Fronts) Close(uid types.UID) {
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

func (f *Fronts) of(uid types.UID) *address {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addresses[uid]
}

// Start holds the addresses until the context ends; then it closes them, and who is being answered has a moment to read on.
func (f *Fronts) Start(ctx context.Context) error {
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

// What is said at an address that is being given up.
var (
	gone       = Reason{Reason: "Gone", Message: "this address is being given up"}
	restarting = Reason{Reason: "ManagerEnding", Message: "the manager of this address is being ended; another one takes it over"}
)

func bind(network, host string, port int32) (*net.TCPListener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil // as the network is TCP
}

// absent reports whether ::1 cannot be bound because the machine has no IPv6.
func absent(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EPROTONOSUPPORT)
}
