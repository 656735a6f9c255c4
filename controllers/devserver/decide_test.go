// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// TestDecide_ChoosesPortURLAndCondition checks the port, the URL and the condition PortVerified for each combination of facts that matters. The server was
// given port 3000.
func TestDecide_ChoosesPortURLAndCondition(t *testing.T) {
	const wasURL = "http://127.0.0.1:4000/"
	now := epoch.Add(time.Hour)
	long, short := now.Add(-time.Minute), now.Add(-time.Second)
	printed := []found{{Scheme: "http", Host: "localhost", Port: 4000, Path: "/app"}}
	at := func(ports ...int32) []runtime.Listener {
		var listeners []runtime.Listener
		for _, port := range ports {
			listeners = append(listeners, listenerOn("127.0.0.1", port))
		}
		return listeners
	}
	hosts := map[int32]string{3000: "127.0.0.1", 4000: "127.0.0.1", 5000: "127.0.0.1"}
	for name, c := range map[string]struct {
		snapshot       snapshot
		status         string // status.url before
		backendPort    int32  // set for a server behind a proxy
		port, awaited  int32
		url, verified  string
		probePort      int32
		backend        string
		direct         string // not checked if empty
		outputComplete bool
	}{
		"no socket yet": {verified: v1alpha1.ReasonNotListening},
		"the assigned port": {
			snapshot: snapshot{listeners: at(3000, 4000)},
			port:     3000, url: "http://127.0.0.1:3000/", verified: v1alpha1.ReasonListening, probePort: 3000,
		},
		"another port, which the server may still replace": {
			snapshot: snapshot{listeners: at(5000), history: history{listeningSince: short}},
			verified: v1alpha1.ReasonNotListening,
		},
		"another port after settleTime": {
			snapshot: snapshot{listeners: at(5000), history: history{listeningSince: long}},
			port:     5000, url: "http://127.0.0.1:5000/", verified: v1alpha1.ReasonOtherPort, probePort: 5000, outputComplete: true,
		},
		"the printed port, with the printed host": {
			snapshot: snapshot{listeners: at(4000, 5000), urls: printed, newOutput: true, reaches: map[string]bool{"localhost:4000": true}},
			port:     4000, url: "http://localhost:4000/app", verified: v1alpha1.ReasonOtherPort, probePort: 4000,
		},
		"the printed port, whose printed host leads to another program": {
			snapshot: snapshot{listeners: at(4000), urls: printed, newOutput: true, reaches: map[string]bool{"localhost:4000": false}},
			port:     4000, url: "http://127.0.0.1:4000/app", verified: v1alpha1.ReasonOtherPort, probePort: 4000,
		},
		"the port of status.url is closed for a moment": {
			snapshot: snapshot{listeners: at(5000), history: history{listeningSince: long, proven: true, chosen: 4000, absentSince: short, probePort: 4000}},
			status:   wasURL, awaited: 4000, url: wasURL, verified: v1alpha1.ReasonNotListening, probePort: 4000, outputComplete: true,
		},
		"the port of status.url stays closed": {
			snapshot: snapshot{listeners: at(5000), history: history{listeningSince: long, proven: true, chosen: 4000, absentSince: long}},
			status:   wasURL, port: 5000, url: "http://127.0.0.1:5000/", verified: v1alpha1.ReasonOtherPort, probePort: 5000, outputComplete: true,
		},
		"the first port is closed before the server was Ready": {
			snapshot: snapshot{listeners: at(5000), history: history{listeningSince: long, chosen: 4000, absentSince: short}},
			port:     5000, url: "http://127.0.0.1:5000/", verified: v1alpha1.ReasonOtherPort, probePort: 5000, outputComplete: true,
		},
		"a new manager keeps the port that an earlier one chose": {
			snapshot: snapshot{wasReady: true, listeners: at(4000, 5000)},
			status:   wasURL, port: 4000, url: wasURL, verified: v1alpha1.ReasonOtherPort, probePort: 4000,
		},
		"the sockets cannot be read": {
			snapshot: snapshot{blind: "unreadable", history: history{proven: true, probePort: 4000}},
			status:   wasURL, url: wasURL, probePort: 4000,
		},
		"behind a proxy": {
			snapshot:    snapshot{listeners: at(4000), proxyHost: "localhost"},
			backendPort: 4000, port: 4000, url: "http://localhost:3000/", verified: v1alpha1.ReasonListening, probePort: 4000, backend: "http://127.0.0.1:4000",
		},
		"behind a proxy, and the sockets cannot be read": {
			snapshot:    snapshot{blind: "unreadable", proxyHost: "localhost"},
			backendPort: 4000, backend: "http://127.0.0.1:4000",
		},
		"behind a proxy, and the sockets can no longer be read": {
			snapshot:    snapshot{blind: "unreadable", proxyHost: "localhost", history: history{backend: "http://127.0.0.1:5000"}},
			backendPort: 4000, backend: "http://127.0.0.1:5000",
		},
		"behind a proxy that cannot listen on ::1": {
			snapshot:    snapshot{listeners: at(4000), proxyHost: "127.0.0.1", ipv6Error: errors.New("in use")},
			backendPort: 4000, port: 4000, url: "http://127.0.0.1:3000/", verified: v1alpha1.ReasonListening, probePort: 4000, backend: "http://127.0.0.1:4000",
		},
		"in a Pod without an address": {
			snapshot: snapshot{remote: true, blind: "The Pod has no IP address yet."},
		},
		"in a Pod": {
			snapshot: snapshot{
				remote: true, address: "10.0.0.7", serviceHost: "web.default.svc",
				listeners: []runtime.Listener{listenerOn("10.0.0.7", 3000)}, hosts: map[int32]string{3000: "10.0.0.7"},
			},
			port: 3000, url: "http://web.default.svc:3000/", probePort: 3000, direct: "http://10.0.0.7:3000/",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dev := server("web", 0, running(3000))
			dev.Status.URL, dev.Status.BackendPort = c.status, c.backendPort
			before := dev.DeepCopy()
			c.snapshot.now = now
			if c.snapshot.hosts == nil {
				c.snapshot.hosts = hosts
			}
			d := decide(dev, c.snapshot)
			g.Expect(dev).To(Equal(before), "decide has no side effects")
			g.Expect([]int32{d.port, d.awaited, d.probePort}).To(Equal([]int32{c.port, c.awaited, c.probePort}), "port, awaited, probePort")
			g.Expect(d.url).To(Equal(c.url))
			g.Expect(d.backend).To(Equal(c.backend))
			if c.direct != "" {
				g.Expect(d.direct).To(Equal(c.direct))
			}
			g.Expect(d.outputRead).To(Equal(c.outputComplete))
			if c.verified == "" {
				g.Expect(d.portVerified).To(BeNil())
				return
			}
			g.Expect(d.portVerified.reason).To(Equal(c.verified))
			g.Expect(d.portVerified.ok).To(Equal(c.verified == v1alpha1.ReasonListening))
			if d.portVerified.ok && c.snapshot.ipv6Error == nil {
				g.Expect(d.portVerified.message).To(BeEmpty())
			} else {
				g.Expect(d.portVerified.message).NotTo(BeEmpty(), "a message says what is unusual")
			}
		})
	}
}

// A URL that an earlier manager found is replaced only by output that certainly comes from this incarnation.
func TestDecide_KeepsDetectedURLUnlessOutputIsNew(t *testing.T) {
	for newOutput, url := range map[bool]string{true: "http://127.0.0.1:3000/new", false: "http://127.0.0.1:3000/old"} {
		g := NewWithT(t)
		dev := server("web", 0, running(3000))
		dev.Status.URL = "http://127.0.0.1:3000/old"
		process.SetCondition(dev, epoch, v1alpha1.ConditionURLDetected, metav1.ConditionTrue, v1alpha1.ReasonDetected, "")
		d := decide(dev, snapshot{
			now: epoch, wasReady: true, listeners: []runtime.Listener{listenerOn("127.0.0.1", 3000)}, hosts: map[int32]string{3000: "127.0.0.1"},
			urls: []found{{Scheme: "http", Host: "127.0.0.1", Port: 3000, Path: "/new"}}, newOutput: newOutput,
		})
		g.Expect(d.url).To(Equal(url))
	}
}

func TestConclude_VerifiesPortOfPodByReadiness(t *testing.T) {
	f := newFixture(t)
	dev := server("web", 0, running(3000))
	for _, c := range []struct {
		ready     *bool
		condition string
	}{{nil, ""}, {ptr.To(false), "False NotListening"}, {nil, "False NotListening"}, {ptr.To(true), ""}} {
		f.conclude(dev, snapshot{remote: true}, &lifecycle.Observed{Ready: c.ready})
		f.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(Equal(c.condition))
	}
}
