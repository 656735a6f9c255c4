// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"net"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// snapshot holds the facts that one check of an incarnation found. The function decide uses only these facts and the object.
type snapshot struct {
	now time.Time
	// started is when the incarnation was started, as if the machine had been awake since then and its clock had not been set.
	started time.Time
	// wasReady reports that the status records this incarnation as Ready, from an earlier check or an earlier manager.
	wasReady bool
	// remote reports that the server does not run on this machine: its sockets and its output cannot be read, and commands cannot run beside it. address is its IP
	// address, empty while it has none, and serviceHost the host at which clients reach it.
	remote               bool
	address, serviceHost string

	listeners []runtime.Listener
	// others are the sockets of other processes on the same ports, and shared are the ports whose connections such processes receive.
	others []runtime.Listener
	shared []sharedPort
	// blind is why the sockets could not be read; empty if they could.
	blind string
	// hosts holds the host at which each port is reached, for the ports that are or were open.
	hosts map[int32]string
	// urls are the URLs in the output. newOutput reports that they come from this incarnation and not from an earlier one.
	urls      []found
	newOutput bool
	// reaches reports, for each host:port in the output or in status.url, whether a client that connects to it reaches this server and no other program.
	reaches map[string]bool

	// proxyHost is the host at which clients reach the proxy; proxyError is why the proxy cannot listen, and ipv6Error why it cannot listen on ::1.
	proxyHost             string
	proxyError, ipv6Error error

	history
}

// history is what one check of an incarnation leaves for the next one.
type history struct {
	listeningSince time.Time // zero until the server listens
	proven         bool      // the incarnation was Ready
	probePort      int32     // the port for probes that name none; 0 if unknown
	chosen         int32     // the port of status.url; with a proxy, the port of the server
	absentSince    time.Time // when chosen was first found closed; zero while it is open
	backend        string    // the URL at which the proxy reaches the server, such as http://127.0.0.1:20001
}

// collect reads the sockets, the output and the state of the proxy. It also makes the proxy listen, and starts the reader of the output, if they are not
// running.
func (k *Kind) collect(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, current facts.Incarnation) snapshot {
	k.enter(dev.UID, m, current.Number)
	s := snapshot{
		now:      k.clock.Now(),
		started:  current.StartedAt,
		wasReady: recordsReady(dev, current.Number),
		history:  m.history,
	}
	if !s.started.IsZero() {
		s.started = s.now.Add(-k.clock.Since(s.started))
	}
	if inPod(dev) {
		s.remote, s.address, s.serviceHost = true, current.Address, serviceHost(dev)
	}
	k.readSockets(ctx, dev, m, &s)
	byPort := map[int32][]runtime.Listener{} // a process can have very many sockets
	for _, l := range s.listeners {
		byPort[l.Port] = append(byPort[l.Port], l)
	}
	for port, listeners := range byPort {
		m.hosts[port] = hostFor(listeners, port)
	}
	s.hosts = m.hosts
	s.urls, s.newOutput = k.urls(dev, m, current.Number), m.logKnown
	s.proxyError, s.ipv6Error = k.listenAgain(ctx, dev), k.proxies.IPv6(dev.UID)
	s.proxyHost = proxyHost(s.ipv6Error)
	s.reaches = k.reachable(ctx, dev, m, &s)
	return s
}

// recordsReady reports whether the status records this incarnation as ready. The status of a pre-started incarnation still describes the previous one.
func recordsReady(dev *v1alpha1.DevServer, incarnation int64) bool {
	return dev.Status.Incarnation == incarnation && lifecycle.RecordsReady(&dev.Status.ProcessStatus)
}

// readSockets lists the sockets of the object's own processes. If the backend cannot list sockets, readSockets assumes that the server listens on the port that
// it was given. The sockets of a Pod cannot be listed either; the server must respond at the address of the Pod to become Ready.
func (k *Kind) readSockets(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, s *snapshot) {
	if s.remote {
		if s.address == "" {
			s.blind = "The Pod has no IP address yet."
			return
		}
		s.listeners = []runtime.Listener{{Address: s.address, Port: dev.Status.Port}}
		return
	}
	sockets, err := k.listeners(ctx, dev)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		s.listeners = []runtime.Listener{{Address: "127.0.0.1", Port: recordedPorts(dev).own()}}
	case errors.Is(err, runtime.ErrNotFound): // the process has just exited; the next reconcile records the exit
	case err != nil:
		if !m.blind {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot list the listening sockets of a DevServer")
		}
		s.blind = "Cannot read the listening sockets of the server; see the log of the manager."
	default:
		s.listeners, s.others = sockets.Own, sockets.Others
		s.shared = k.sharedPorts(ctx, dev, m, sockets)
	}
	m.blind = s.blind != ""
}

func (k *Kind) listeners(ctx context.Context, dev *v1alpha1.DevServer) (runtime.Sockets, error) {
	if k.inspector == nil {
		return runtime.Sockets{}, errors.ErrUnsupported
	}
	return k.inspector.Listeners(ctx, dev.UID)
}

// reachable checks the addresses that status.url may have: those in the output, and the current one. A URL that leads to the proxy or to a Service needs no
// check.
func (k *Kind) reachable(ctx context.Context, dev *v1alpha1.DevServer, m *objectCache, s *snapshot) map[string]bool {
	reaches := map[string]bool{}
	if s.remote || recordedPorts(dev).proxied {
		return reaches
	}
	check := func(host string, port int32) {
		address := join(host, port)
		if _, known := reaches[address]; !known && host != "" {
			reaches[address] = k.leads(ctx, m, s, host, port)
		}
	}
	for _, u := range s.urls {
		check(u.Host, u.Port)
	}
	if host, _, err := net.SplitHostPort(hostOf(dev.Status.URL)); err == nil {
		check(host, portOf(dev.Status.URL))
	}
	return reaches
}
