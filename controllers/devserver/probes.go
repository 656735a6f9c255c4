// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/probe"
)

// The defaults of the API, for objects that were stored before the API had them.
const (
	defaultPeriod    = 5
	defaultTimeout   = 2
	defaultThreshold = 3
)

// firstAnswer is the timeout for the first response of a server. It is long, because some servers compile everything on the first request. A server that has
// accepted the connection and sends nothing within this time counts as ready: it presumably uses a protocol in which the client speaks first.
const firstAnswer = 10 * time.Second

// readiness determines whether the server is Ready.
func (k *Kind) readiness(dev *v1alpha1.DevServer, m *objectCache, incarnation int64, s *socketSnapshot, observed *lifecycle.Observed) {
	key := probe.Key{UID: dev.UID, Incarnation: incarnation, Kind: probe.Readiness}
	if dev.Spec.Readiness == nil {
		k.serving(dev, m, key, s, observed)
	} else {
		k.probed(dev, m, key, s, observed)
	}
	if observed.Ready != nil && *observed.Ready {
		m.proven = true
	}
}

// serving determines readiness without a probe in the spec: the server listens, and has responded once since the incarnation started.
func (k *Kind) serving(dev *v1alpha1.DevServer, m *objectCache, key probe.Key, s *socketSnapshot, observed *lifecycle.Observed) {
	switch {
	case s.blind != "":
		observed.NotReady = s.blind
		return // the recorded readiness stands
	case len(s.listeners) == 0:
		observed.Ready, observed.NotReady = ptr.To(false), fmt.Sprintf("The server does not listen on a TCP port yet; its assigned port is %d.", assigned(dev).own())
		return
	case s.awaited != 0:
		observed.Ready, observed.NotReady = ptr.To(false),
			fmt.Sprintf("The server closed port %d and listens on %s. Waiting for it to open port %d again.", s.awaited, list(s.ports()), s.awaited)
		return
	case m.proven:
		observed.Ready = ptr.To(true)
		return
	case s.port == 0:
		observed.Ready, observed.NotReady = ptr.To(false),
			fmt.Sprintf("The server listens on %s but not yet on its assigned port %d.", list(s.ports()), assigned(dev).own())
		return
	}
	address := k.direct(dev, m, s)
	k.probes.Ensure(key, probe.Config{
		Check:     probe.Check{HTTP: &probe.HTTP{URL: address, Serving: true}},
		Period:    defaultPeriod * time.Second,
		Timeout:   firstAnswer,
		Threshold: 1,
		Once:      true,
	})
	result := k.probes.Result(key)
	observed.Ready = ptr.To(result.OK)
	if !result.OK {
		observed.NotReady = cmp.Or(result.Message, "The server listens. Waiting for its first response at "+address)
	}
}

// probed determines readiness with the probe of the spec.
func (k *Kind) probed(dev *v1alpha1.DevServer, m *objectCache, key probe.Key, s *socketSnapshot, observed *lifecycle.Observed) {
	config, ok := k.config(key, dev.Spec.Readiness, m)
	if !ok {
		k.probes.Stop(key)
		observed.NotReady = cmp.Or(s.blind, fmt.Sprintf("The server does not listen on a TCP port yet; its assigned port is %d.", assigned(dev).own()))
		if s.blind == "" && !m.proven {
			observed.Ready = ptr.To(false)
		}
		return
	}
	k.probes.Ensure(key, config)
	result := k.probes.Result(key)
	if result.Known {
		observed.Ready = ptr.To(result.OK)
	}
	observed.NotReady = cmp.Or(result.Message, "Waiting for the first result of the readiness probe.")
}

// liveness determines whether the server must be restarted. The liveness probe runs only after the incarnation was Ready for the first time.
func (k *Kind) liveness(dev *v1alpha1.DevServer, m *objectCache, incarnation int64, observed *lifecycle.Observed) {
	key := probe.Key{UID: dev.UID, Incarnation: incarnation, Kind: probe.Liveness}
	if dev.Spec.Liveness == nil || !m.proven {
		k.probes.Stop(key)
		return
	}
	config, ok := k.config(key, dev.Spec.Liveness, m)
	if !ok {
		return
	}
	k.probes.Ensure(key, config)
	if result := k.probes.Result(key); result.Known && !result.OK {
		observed.Unhealthy = result.Message
	}
}

// aim sets the port for probes that name none: the port on which the server listens, otherwise the one on which it last listened. If this manager has not seen
// the server listen, but the server was Ready, aim uses the port in status.url, otherwise the port that the server was given.
func (k *Kind) aim(dev *v1alpha1.DevServer, m *objectCache, s *socketSnapshot) {
	switch {
	case s.port != 0:
		m.aim = s.port
	case m.aim == 0 && m.proven && s.blind == "":
		m.aim = cmp.Or(k.sofar(dev, m), assigned(dev).own())
	}
}

// config converts a probe of the spec. It returns false while the target is unknown.
func (k *Kind) config(key probe.Key, spec *v1alpha1.Probe, m *objectCache) (probe.Config, bool) {
	if m.pod == nowhere || m.pod != "" && spec.Exec != nil {
		return probe.Config{}, false // probes of a Pod need its address, and exec probes cannot run in a Pod
	}
	config := probe.Config{
		Period:    seconds(spec.PeriodSeconds, defaultPeriod),
		Timeout:   seconds(spec.TimeoutSeconds, defaultTimeout),
		Threshold: int(ptr.Deref(spec.FailureThreshold, defaultThreshold)),
		Proven:    m.proven,
	}
	switch {
	case spec.HTTPGet != nil:
		port := cmp.Or(ptr.Deref(spec.HTTPGet.Port, 0), m.aim)
		config.Check.HTTP = &probe.HTTP{URL: cmp.Or(spec.HTTPGet.Scheme, "http") + "://" + m.socket(port) + cmp.Or(spec.HTTPGet.Path, "/")}
		return config, port != 0
	case spec.TCPSocket != nil:
		port := cmp.Or(ptr.Deref(spec.TCPSocket.Port, 0), m.aim)
		config.Check.TCP = &probe.TCP{Address: m.socket(port)}
		return config, port != 0
	case spec.Exec != nil && m.plan != nil:
		p := m.plan.Process
		p.UID, p.Incarnation, p.Command, p.Env = key.UID, key.Incarnation, spec.Exec.Command, slices.Clone(p.Env)
		config.Check.Exec = &probe.Exec{Inspection: k.inspector, Process: p}
		return config, m.plan.Blocked == nil
	}
	return config, false
}

// socket returns host:port for a port of the server, with the host at which the server last listened on that port.
func (m *objectCache) socket(port int32) string {
	return join(cmp.Or(m.hosts[port], m.pod, "127.0.0.1"), port)
}

func seconds(n *int32, otherwise int32) time.Duration {
	return time.Duration(ptr.Deref(n, otherwise)) * time.Second
}
