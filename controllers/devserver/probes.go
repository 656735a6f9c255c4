// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/probe"
)

// defaultPeriod and defaultTimeout, in seconds, and defaultThreshold are the defaults of the API. They are used for objects that were stored before the API
// had them.
const (
	defaultPeriod    = 5
	defaultTimeout   = 2
	defaultThreshold = 3
)

// firstAnswer is the timeout for the first response of a server. It is long, because some servers compile everything on the first request. A server that has
// accepted the connection and sends nothing within this time counts as ready: it presumably uses a protocol in which the client speaks first.
const firstAnswer = 10 * time.Second

// probe runs the probes of the server and determines its readiness and liveness.
func (k *Kind) probe(dev *v1alpha1.DevServer, m *objectCache, s snapshot, d decision, incarnation int64, observed *lifecycle.Observed) {
	key := probe.Key{UID: dev.UID, Incarnation: incarnation, Kind: probe.Readiness}
	if dev.Spec.Readiness == nil {
		k.defaultReadiness(dev, key, s, d, observed)
	} else {
		k.specReadiness(dev, m, key, s, observed)
	}
	if observed.Ready != nil && *observed.Ready {
		m.proven = true
	}
	k.liveness(dev, m, incarnation, s, observed)
}

// listening determines from the sockets whether a server without a probe in the spec is ready. known is false if readiness also depends on whether the server
// has responded, which the sockets do not show. A nil ready leaves the recorded readiness unchanged.
func (d *decision) listening(dev *v1alpha1.DevServer, s snapshot) (ready *bool, message string, known bool) {
	switch {
	case s.blind != "":
		return nil, s.blind, true
	case len(s.listeners) == 0:
		return ptr.To(false), notListening(dev, s), true
	case d.awaited != 0:
		return ptr.To(false), fmt.Sprintf("The server closed port %d and listens on %s. Waiting for it to open port %d again.", d.awaited, list(s.ports()), d.awaited), true
	case d.proven:
		return ptr.To(true), "", true
	case d.port == 0:
		return ptr.To(false), fmt.Sprintf("The server listens on %s but not yet on its assigned port %d.", list(s.ports()), recordedPorts(dev).own()), true
	}
	return nil, "", false
}

// notListening returns the message for a server that listens on no port. If it has not been ready within adviceTime, the message adds advice.
func notListening(dev *v1alpha1.DevServer, s snapshot) string {
	message := fmt.Sprintf("The server does not listen on a TCP port yet; its assigned port is %d.", recordedPorts(dev).own())
	if !s.wasReady && !s.proven && !s.started.IsZero() && s.now.Sub(s.started) >= adviceTime {
		message += " Pass $(PORT) in spec.process.command, or let the program read the variable PORT. If it is not a server, use the kind Instance."
	}
	return message
}

// defaultReadiness determines readiness without a probe in the spec: the server listens, and has responded once since the incarnation started.
func (k *Kind) defaultReadiness(dev *v1alpha1.DevServer, key probe.Key, s snapshot, d decision, observed *lifecycle.Observed) {
	ready, message, known := d.listening(dev, s)
	if known {
		observed.Ready, observed.NotReady = ready, message
		return
	}
	k.probes.Ensure(key, probe.Config{
		Check:     probe.Check{HTTP: &probe.HTTP{URL: d.direct, Serving: true}},
		Period:    defaultPeriod * time.Second,
		Timeout:   firstAnswer,
		Threshold: 1,
		Once:      true,
	})
	result := k.probes.Result(key)
	observed.Ready = ptr.To(result.OK)
	if !result.OK {
		observed.NotReady = cmp.Or(result.Message, "The server listens. Waiting for its first response at "+d.direct)
	}
}

// specReadiness determines readiness with the probe of the spec.
func (k *Kind) specReadiness(dev *v1alpha1.DevServer, m *objectCache, key probe.Key, s snapshot, observed *lifecycle.Observed) {
	config, ok := k.config(dev, key, dev.Spec.Readiness, m, s)
	if !ok {
		k.probes.Stop(key)
		observed.NotReady = cmp.Or(s.blind, notListening(dev, s))
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
	observed.NotReady = "Waiting for the first result of the readiness probe."
	if result.Message != "" {
		observed.NotReady = "The readiness probe failed: " + result.Message
	}
}

// liveness determines whether the server must be restarted. The liveness probe runs only after the incarnation was Ready for the first time.
func (k *Kind) liveness(dev *v1alpha1.DevServer, m *objectCache, incarnation int64, s snapshot, observed *lifecycle.Observed) {
	key := probe.Key{UID: dev.UID, Incarnation: incarnation, Kind: probe.Liveness}
	if dev.Spec.Liveness == nil || !m.proven {
		k.probes.Stop(key)
		return
	}
	config, ok := k.config(dev, key, dev.Spec.Liveness, m, s)
	if !ok {
		return
	}
	k.probes.Ensure(key, config)
	if result := k.probes.Result(key); result.Known && !result.OK {
		observed.Unhealthy = result.Message
	}
}

// config converts a probe of the spec. It returns false while the target is unknown.
func (k *Kind) config(dev *v1alpha1.DevServer, key probe.Key, spec *v1alpha1.Probe, m *objectCache, s snapshot) (probe.Config, bool) {
	if s.remote && (s.address == "" || spec.Exec != nil) {
		return probe.Config{}, false // probes of a Pod need its address, and exec probes cannot run in a Pod
	}
	config := probe.Config{
		Period:    process.Seconds(spec.PeriodSeconds, defaultPeriod),
		Timeout:   process.Seconds(spec.TimeoutSeconds, defaultTimeout),
		Threshold: int(ptr.Deref(spec.FailureThreshold, defaultThreshold)),
		Proven:    m.proven,
	}
	switch {
	case spec.HTTPGet != nil:
		port := cmp.Or(ptr.Deref(spec.HTTPGet.Port, 0), m.probePort)
		config.Check.HTTP = &probe.HTTP{URL: cmp.Or(lower(spec.HTTPGet.Scheme), "http") + "://" + s.socket(port) + cmp.Or(spec.HTTPGet.Path, "/")}
		return config, port != 0
	case spec.TCPSocket != nil:
		port := cmp.Or(ptr.Deref(spec.TCPSocket.Port, 0), m.probePort)
		config.Check.TCP = &probe.TCP{Address: s.socket(port)}
		return config, port != 0
	case spec.Exec != nil && m.exec != nil:
		p := *m.exec
		port := strconv.Itoa(int(recordedPorts(dev).own())) // of the running incarnation; the StartSpec has the port of the next one
		p.UID, p.Incarnation = key.UID, key.Incarnation
		p.Command = process.Expand(spec.Exec.Command, map[string]string{"PORT": port})
		p.Env = slices.DeleteFunc(slices.Clone(p.Env), func(entry string) bool { return strings.HasPrefix(entry, "PORT=") })
		p.Env = append(p.Env, "PORT="+port)
		config.Check.Exec = &probe.Exec{Inspection: k.inspector, Process: p}
		return config, true
	}
	return config, false
}
