// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package devserver implements what is specific to DevServers: ports, URLs and probes.
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
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/owner"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/devproxy"
	"github.com/berth-dev/berth/internal/perobject"
	"github.com/berth-dev/berth/internal/probe"
	"github.com/berth-dev/berth/internal/runtime"
)

// Kind implements process.Kind for DevServers. Its in-memory state only saves work, or holds a decision until the decision is written to a status.
type Kind struct {
	client    client.Client
	reader    client.Reader
	owners    owner.Setter
	clock     clock.PassiveClock
	timers    clock.Clock
	inspector runtime.Inspection // of this machine; nil if the backend has none
	logs      runtime.Logs       // of this machine; nil if the backend has none
	probes    *probe.Manager
	proxies   *devproxy.Proxies
	ports     Range
	network   network
	// permission decides which other objects compete for ports; nil permits all namespaces.
	permission *process.Permission

	// lister lists the DevServers that may claim a port.
	lister listCoalescer
	// claiming serializes the assignment of ports. It is not held while the processes of this machine are inspected.
	claiming sync.Mutex
	reserved arbitration.Reservations[int32, types.UID] // ports

	mu    sync.Mutex
	began time.Time // when this manager first assigned a port; mu protects it

	memories perobject.Map[objectCache]
}

var (
	_ process.Kind           = (*Kind)(nil)
	_ process.ActionObserver = (*Kind)(nil)
)

// network holds the network functions of this machine, so that tests can replace them.
type network struct {
	// free reports whether a port can be bound on all addresses.
	free func(port int32) bool
	// answers reports whether a program accepts connections at an address.
	answers func(ctx context.Context, address string) bool
	// resolve returns the IP addresses of a host, and none if the resolver does not know it.
	resolve func(ctx context.Context, host string) []netip.Addr
}

// objectCache is what the manager caches for one object.
type objectCache struct {
	// start is the StartSpec of the current reconcile, between Prepare and ObserveRunning or ObserveStopped. It is part of everything that the reconcile knows, so
	// it is not kept for longer. exec is what exec probes need of it; nil if they cannot run.
	start *process.StartSpec
	exec  *runtime.Process
	// logEnd is the offset where the output of earlier incarnations ends; logKnown reports whether it is known.
	logEnd   int64
	logKnown bool

	// The following fields belong to one incarnation.
	incarnation int64
	history
	text      *text
	hosts     map[int32]string        // the host for each port that is or was open
	resolved  map[string][]netip.Addr // the addresses of each host in the output
	elsewhere map[string]bool         // addresses at which another program accepts connections
	rivals    socketOwners            // the owners of other sockets on the same ports
	blind     bool                    // the failure to read the sockets was already logged
}

// join returns host:port of an address.
func join(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// Resource implements process.Kind.
func (k *Kind) Resource() string { return "devservers" }

// New returns an empty DevServer.
func (k *Kind) New() process.Object { return &v1alpha1.DevServer{} }

// NewList returns an empty list of DevServers.
func (k *Kind) NewList() client.ObjectList { return &v1alpha1.DevServerList{} }

// Traits implements process.Kind.
func (*Kind) Traits(object process.Object) process.Traits {
	spec := devServer(object).Spec.Runtime
	return process.Traits{Runtime: podspec.Type(spec), Template: podspec.Template(spec)}
}

// Asleep implements process.Kind: a DevServer does not sleep.
func (*Kind) Asleep(context.Context, process.Object, time.Time) bool { return false }

// Forget implements process.Kind: it stops the probes of the object and releases its ports.
func (k *Kind) Forget(uid types.UID) {
	k.probes.Forget(uid)
	k.proxies.Close(uid)
	k.reserved.Release(uid, k.clock.Now())
	k.memories.Forget(uid)
}

// cacheOf returns the cache of an object. Only one reconcile at a time uses it.
func (k *Kind) cacheOf(uid types.UID) *objectCache { return k.memories.Keep(uid) }

// takeStart takes what exec probes need from the StartSpec of the current reconcile. Without one, because the object is to stop, the earlier probes continue.
func (m *objectCache) takeStart(dev *v1alpha1.DevServer) {
	if m.start == nil {
		return
	}
	m.exec = nil
	if m.start.Blocked == nil && (runsProgram(dev.Spec.Readiness) || runsProgram(dev.Spec.Liveness)) {
		p := m.start.Process
		p.Config, p.Inputs = nil, nil
		m.exec = &p
	}
	m.start = nil
}

func runsProgram(probe *v1alpha1.Probe) bool { return probe != nil && probe.Exec != nil }

// enter prepares m for an incarnation: it drops the values of every other incarnation.
func (k *Kind) enter(uid types.UID, m *objectCache, incarnation int64) {
	if m.incarnation == incarnation {
		return
	}
	k.probes.Keep(uid, incarnation)
	*m = objectCache{
		start: m.start, exec: m.exec, logEnd: m.logEnd, logKnown: m.logKnown,
		incarnation: incarnation, hosts: map[int32]string{},
		resolved: map[string][]netip.Addr{}, elsewhere: map[string]bool{},
	}
}

func devServer(object process.Object) *v1alpha1.DevServer {
	return object.(*v1alpha1.DevServer) // New returns nothing else
}
