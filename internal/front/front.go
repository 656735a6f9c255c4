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
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Options is what can be chosen. The zero value is the default.
type Options struct {
	// HoldTime is how long one request may wait altogether; 0 means 30 seconds.
	HoldTime time.Duration
	// HoldRequests is how many requests may wait at one address; 0 means 1024. Their bodies are not read meanwhile.
	HoldRequests int
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
	return &Fronts{options: options, addresses: map[types.UID]*address{}}
}

// ErrEnded refuses an address because the manager is being ended. It says nothing about the port.
var ErrEnded = errors.New("the manager is being ended")

// Listen holds the port for the object from now on, on the loopback, and gives up another one that it held. Name is for messages.
func (f *Fronts) Listen(uid types.UID, name string, port int32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return ErrEnded
	}
	a := f.addresses[uid]
	if a != nil && a.port.Load() == port {
		return nil
	}
	listeners, err := bind(port)
	if err != nil {
		return err
	}
	if a == nil {
		a = newAddress(name, f.options)
		f.addresses[uid] = a
	}
	a.listen(port, listeners)
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

// bind listens on the loopback: over IPv4, which it has to, and over IPv6 if the port is free there.
func bind(port int32) ([]net.Listener, error) {
	var config net.ListenConfig
	number := strconv.Itoa(int(port))
	v4, err := config.Listen(context.Background(), "tcp4", net.JoinHostPort("127.0.0.1", number))
	if err != nil {
		return nil, fmt.Errorf("listen on port %s: %w", number, err)
	}
	listeners := []net.Listener{v4}
	if v6, err := config.Listen(context.Background(), "tcp6", net.JoinHostPort("::1", number)); err == nil {
		listeners = append(listeners, v6)
	}
	return listeners, nil
}
