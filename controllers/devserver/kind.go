// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devserver is what is special to DevServers: a port, an address, and probes.
package devserver

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/owner"
	"github.com/berth-dev/berth/controllers/place"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/front"
	"github.com/berth-dev/berth/internal/probe"
	"github.com/berth-dev/berth/internal/runtime"
)

// Kind is the kind DevServer. What it keeps in memory only saves work, or guards the moment between a decision and its write.
type Kind struct {
	client    client.Client
	reader    client.Reader
	owners    owner.Setter
	clock     clock.PassiveClock
	timers    clock.Clock
	runtimes  *runtime.Registry
	inspector runtime.Inspection // of this machine; nil if the backend has none
	logs      runtime.Logs       // of this machine; nil if the backend has none
	probes    *probe.Manager
	fronts    *front.Fronts
	ports     Range
	network   network

	// everybody tells who else may claim a port.
	everybody everybody
	// claiming lets one object at a time find out whether a port is its own.
	claiming     sync.Mutex
	reservations map[int32]reservation

	mu       sync.Mutex
	began    time.Time // when the first port was asked for
	memories map[types.UID]*memory
}

var (
	_ process.Kind           = (*Kind)(nil)
	_ process.ActionObserver = (*Kind)(nil)
)

// network is what is asked of this machine's network, so that tests can say what it answers.
type network struct {
	// free says that a port can be bound on all addresses.
	free func(port int32) bool
	// answers says that somebody takes connections there.
	answers func(ctx context.Context, address string) bool
	// resolve returns the IP addresses of a host, and none if the resolver does not know it.
	resolve func(ctx context.Context, host string) []netip.Addr
}

// memory is what is kept of one object while this manager runs.
type memory struct {
	// plan is that of the newest reconcile. It holds the environment that probes are run with.
	plan *process.Plan
	// logEnd is where the output of earlier incarnations ends; logKnown says that it was seen.
	logEnd   int64
	logKnown bool

	// What follows belongs to one incarnation.
	incarnation    int64
	text           *text
	listeningSince time.Time
	proven         bool             // it was ready
	aim            int32            // the port that probes go to which name none
	hosts          map[int32]string // where each port is, or was, listened on
	overV4         map[int32]bool   // whether a port that is bound over IPv6 takes IPv4 too
	chosen         int32            // the port of status.url; with a proxy, the port of the server
	absentSince    time.Time        // when chosen was first found closed; zero while it is open
	printed        string           // the printed host that was last resolved
	resolved       []netip.Addr     // the addresses of printed
	elsewhere      map[string]bool  // addresses at which another program accepts connections
	blind          bool             // it was said already that its sockets cannot be read
	pod            string           // the address of its Pod
	backend        string           // where a proxy finds it, such as http://127.0.0.1:20001
}

// join makes host:port of an address.
func join(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// Resource is the plural lower-case name.
func (k *Kind) Resource() string { return "devservers" }

// New gives an empty DevServer.
func (k *Kind) New() process.Object { return &v1alpha1.DevServer{} }

// NewList gives an empty list of DevServers.
func (k *Kind) NewList() client.ObjectList { return &v1alpha1.DevServerList{} }

// Runtime returns the backend that the spec names.
func (k *Kind) Runtime(object process.Object) runtime.Runtime {
	return k.runtimes.For(k.Traits(object).Runtime)
}

// Traits implements process.Kind.
func (*Kind) Traits(object process.Object) process.Traits {
	return process.Traits{Runtime: place.Type(devServer(object).Spec.Runtime)}
}

// Asleep implements process.Kind: a DevServer does not sleep.
func (*Kind) Asleep(context.Context, process.Object, time.Time) bool { return false }

// Forget ends the probes of an object that is gone, and frees its ports.
func (k *Kind) Forget(uid types.UID) {
	k.probes.Forget(uid)
	k.fronts.Close(uid)
	k.release(uid)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.memories, uid)
}

// memory gives what is kept of an object. One reconcile at a time uses it.
func (k *Kind) memory(uid types.UID) *memory {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, ok := k.memories[uid]
	if !ok {
		m = &memory{}
		k.memories[uid] = m
	}
	return m
}

// enter prepares the memory for an incarnation and drops what it holds about another one. It reports whether the incarnation was not observed before.
func (k *Kind) enter(uid types.UID, m *memory, incarnation int64) bool {
	if m.incarnation == incarnation {
		return false
	}
	k.probes.Keep(uid, incarnation)
	*m = memory{
		plan: m.plan, logEnd: m.logEnd, logKnown: m.logKnown,
		incarnation: incarnation, hosts: map[int32]string{}, overV4: map[int32]bool{},
		elsewhere: map[string]bool{},
	}
	return true
}

func devServer(object process.Object) *v1alpha1.DevServer {
	return object.(*v1alpha1.DevServer) // New gives nothing else
}
