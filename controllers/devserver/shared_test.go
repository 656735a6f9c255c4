// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/probe"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/reuseport"
)

// sharedAddresses are the addresses at which two sockets listen on one port, and which connections the second one takes from the first.
var sharedAddresses = map[string]struct {
	own, rival string
	ownV6Only  bool
	takes      bool
}{
	"the same address":                      {"127.0.0.1", "127.0.0.1", false, true},
	"the same IPv6 address":                 {"::1", "::1", false, true},
	"all addresses and all addresses":       {"0.0.0.0", "0.0.0.0", false, true},
	"all IPv6 addresses twice":              {"::", "::", false, true},
	"a more specific address":               {"0.0.0.0", "127.0.0.1", false, true},
	"a less specific address":               {"127.0.0.1", "0.0.0.0", false, false},
	"a more specific IPv6 address":          {"::", "::1", false, true},
	"a less specific IPv6 address":          {"::1", "::", false, false},
	"both families and IPv4 loopback":       {"::", "127.0.0.1", false, true},
	"both families and all of IPv4":         {"::", "0.0.0.0", false, true},
	"all of IPv4 and both families":         {"0.0.0.0", "::", false, false},
	"IPv4 loopback and both families":       {"127.0.0.1", "::", false, false},
	"only IPv6 and IPv4 loopback":           {"::", "127.0.0.1", true, false},
	"only IPv6 and all of IPv4":             {"::", "0.0.0.0", true, false},
	"another loopback address":              {"127.0.0.1", "127.0.0.2", false, false},
	"another address of all":                {"0.0.0.0", "127.0.0.2", false, true},
	"IPv6 loopback and IPv4 loopback":       {"::1", "127.0.0.1", false, false},
	"all of IPv4 and an IPv6 address":       {"0.0.0.0", "::1", false, false},
	"only IPv6 and a more specific address": {"::", "::1", true, true},
}

func TestTakes_FollowsKernelRule(t *testing.T) {
	for name, tc := range sharedAddresses {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			own := runtime.Listener{Address: tc.own, Port: 80, IPv6Only: tc.ownV6Only}
			g.Expect(takes(runtime.Listener{Address: tc.rival, Port: 80}, own)).To(Equal(tc.takes))
		})
	}
}

// The kernel distributes real connections as the table states.
func TestTakes_MatchesKernel(t *testing.T) {
	if probe, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		need.Machine(t, fmt.Errorf("this machine has no IPv6: %w", err))
	} else {
		_ = probe.Close()
	}
	for name, tc := range sharedAddresses {
		t.Run(name, func(t *testing.T) {
			own := listenShared(t, tc.own, 0, tc.ownV6Only)
			port := own.Addr().(*net.TCPAddr).Port
			count := func(ln net.Listener) (reached func() int) {
				accepted := make(chan struct{}, 1000)
				go func() {
					for {
						connection, err := ln.Accept()
						if err != nil {
							return
						}
						accepted <- struct{}{}
						_ = connection.Close()
					}
				}()
				return func() int { return len(accepted) }
			}
			before := count(own)
			reached := map[string]bool{}
			for _, host := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
				reached[host] = dial(host, port) == nil
			}
			g := NewWithT(t)
			g.Eventually(before).ShouldNot(BeZero())
			rival := count(listenShared(t, tc.rival, port, false))
			attempts := 0
			for host, served := range reached {
				for range 40 {
					if served && dial(host, port) == nil {
						attempts++
					}
				}
			}
			g.Expect(attempts).NotTo(BeZero())
			if tc.takes {
				g.Eventually(rival).ShouldNot(BeZero())
				return
			}
			g.Eventually(before).Should(BeNumerically(">", attempts))
			g.Expect(rival()).To(BeZero())
		})
	}
}

func listenShared(t *testing.T, address string, port int, v6Only bool) net.Listener {
	t.Helper()
	family := "tcp4"
	if netip.MustParseAddr(address).Is6() {
		family = "tcp6"
	}
	listener, err := reuseport.Listen(t.Context(), family, net.JoinHostPort(address, strconv.Itoa(port)), v6Only)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func dial(host string, port int) error {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), time.Second)
	if err == nil {
		_ = connection.Close()
	}
	return err
}

// readyServer returns a Ready server that listens on a real port, which is its assigned port.
func (s *fixture) readyServer(t *testing.T, change ...func(*v1alpha1.DevServer)) (*v1alpha1.DevServer, int32) {
	t.Helper()
	here := newSite(t)
	dev := server("web", 0, append([]func(*v1alpha1.DevServer){running(here.port)}, change...)...)
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.awaitReadiness(dev, 1, true)
	s.clock.Step(time.Hour)
	return dev, here.port
}

func TestSharedPort_NamesOutsider(t *testing.T) {
	s := newFixture(t, &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent", UID: "uid-agent"}},
		&v1alpha1.LanguageServer{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "ts", UID: "uid-ts"}})
	dev, port := s.readyServer(t)
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Contested).To(BeNil())
	s.g.Expect(s.backend.owned).To(BeZero(), "nothing is inspected while no other process listens")

	for owner, want := range map[runtime.PortOwner]string{
		{Socket: 1, PID: 12, Command: "node server.js"}:       "pid 12 (node server.js)",
		{Socket: 2, User: 1001}:                               "a process of user 1001 whose PID cannot be determined",
		{Socket: 3, PID: 13, Command: "x", UID: "uid-agent"}:  "pid 13 (x) of Instance default/agent",
		{Socket: 4, PID: 14, Command: "x", UID: "uid-ts"}:     "pid 14 of a LanguageServer in another namespace",
		{Socket: 5, PID: 15, Command: "x", UID: "uid-absent"}: "pid 15",
	} {
		s.backend.share("127.0.0.1", port, owner)
		s.clock.Step(ownersPause)
		observed, retry := s.observe(dev, 1)
		s.g.Expect(observed.Contested).To(HaveValue(Equal(lifecycle.Contested{
			Reason: v1alpha1.ReasonPortShared, Yields: true, Obstructs: true,
			Message: fmt.Sprintf("Connections to port %d also reach %s. Stop the other server, or set another spec.port.", port, want),
		})))
		s.g.Expect(observed.Ready).To(HaveValue(BeTrue()))
		s.g.Expect(retry).To(Equal(lookSettled))
	}
	s.backend.others = nil
	observed, _ = s.observe(dev, 1)
	s.g.Expect(observed.Contested).To(BeNil())
}

// Sockets that do not change are inspected rarely, because that reads the open files of all processes.
func TestSharedPort_InspectsOwnersRarely(t *testing.T) {
	s := newFixture(t)
	dev, port := s.readyServer(t)
	s.backend.share("127.0.0.1", port, runtime.PortOwner{Socket: 1, PID: 12, Command: "a"})
	first, _ := s.observe(dev, 1)
	for range 10 {
		s.clock.Step(lookSettled)
		again, _ := s.observe(dev, 1)
		s.g.Expect(again.Contested).To(Equal(first.Contested))
	}
	s.g.Expect(s.backend.owned).To(Equal(1))
	s.backend.share("127.0.0.1", port, runtime.PortOwner{Socket: 1, PID: 13, Command: "its child"})
	s.clock.Step(ownersTime)
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Contested.Message).To(ContainSubstring("pid 13"), "the socket has passed to another process")
	s.g.Expect(s.backend.owned).To(Equal(2))
	s.backend.share("127.0.0.1", port, runtime.PortOwner{Socket: 2, PID: 14, Command: "another"})
	observed, _ = s.observe(dev, 1)
	s.g.Expect(observed.Contested).To(BeNil(), "the socket is closed, and the owner of the new one is not known yet")
	s.g.Expect(s.backend.owned).To(Equal(2))
	s.clock.Step(ownersPause)
	observed, _ = s.observe(dev, 1)
	s.g.Expect(observed.Contested.Message).To(ContainSubstring("pid 14"))
}

func TestSharedPort_IgnoresWhatIsNoOutsider(t *testing.T) {
	s := newFixture(t)
	dev, port := s.readyServer(t)
	none := func(why string) {
		t.Helper()
		s.clock.Step(ownersTime)
		observed, _ := s.observe(dev, 1)
		s.g.Expect(observed.Contested).To(BeNil(), why)
	}
	s.backend.share("127.0.0.1", port, runtime.PortOwner{Socket: 1, PID: 12, UID: dev.UID})
	none("a worker that the server has just started")
	s.backend.share("127.0.0.1", port, runtime.PortOwner{Socket: 1, PID: 12})
	s.backend.others[0].Socket = 2
	none("the socket was closed before its owner was determined")
	s.backend.share("::1", port, runtime.PortOwner{Socket: 3, PID: 12})
	none("at another address")
	s.backend.share("0.0.0.0", port, runtime.PortOwner{Socket: 4, PID: 12})
	none("at a less specific address, which receives nothing")
	s.backend.share("127.0.0.1", port, runtime.PortOwner{Socket: 5, PID: 12})
	s.clock.Step(ownersTime)
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Contested).NotTo(BeNil(), "an outsider")
}

// A process can have very many sockets. The port of status.url comes first, and the number of searches is bounded.
func TestSharedPort_BoundsWork(t *testing.T) {
	s := newFixture(t)
	dev, port := s.readyServer(t)
	own := []runtime.Listener{listenerOn("127.0.0.1", port)}
	var others []runtime.Listener
	for i := range 20000 {
		ip := netip.AddrFrom4([4]byte{127, 1, byte(i / 256), byte(i % 256)}).String()
		own = append(own, listenerOn(ip, int32(1+i%3)), listenerOn(ip, 1))
		foreign := netip.AddrFrom4([4]byte{127, 2, byte(i / 256), byte(i % 256)}).String()
		others = append(others, runtime.Listener{Address: foreign, Port: 1})
		if i < 1000 {
			others = append(others, runtime.Listener{Address: ip, Port: int32(1 + i%3), Socket: uint64(i + 10)})
		}
	}
	s.backend.listen(own...)
	s.backend.share("127.0.0.1", port, runtime.PortOwner{Socket: 1, PID: 12, Command: "node"})
	s.backend.others = append(others, s.backend.others...)
	begun := time.Now() //nolint:forbidigo // measures the real cost
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Contested.Message).To(HavePrefix("Connections to port %d also reach pid 12 (node).", port))
	s.g.Expect(s.backend.owned).To(Equal(maxSharedPorts))
	s.g.Expect(time.Since(begun)).To(BeNumerically("<", 10*time.Second), "comparing all with all takes minutes") //nolint:forbidigo // as above
}

// Only the port of status.url decides whether the server is usable.
func TestSharedPort_OnAnotherPortIsOnlyReported(t *testing.T) {
	s := newFixture(t)
	dev, port := s.readyServer(t)
	s.backend.listen(listenerOn("127.0.0.1", port), listenerOn("127.0.0.1", 24678))
	s.backend.share("127.0.0.1", 24678, runtime.PortOwner{Socket: 1, PID: 12, Command: "vite"})
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Contested).To(HaveValue(Equal(lifecycle.Contested{
		Reason:  v1alpha1.ReasonPortShared,
		Message: "Connections to port 24678 also reach pid 12 (vite). Stop the other server, or pass $(PORT) to the program.",
	})))
}

// Two DevServers whose programs listen on one fixed port instead of $(PORT).
func TestSharedPort_OneDevServerHasPrecedence(t *testing.T) {
	older, younger := server("older", 0, running(20000)), server("younger", 5, running(20001))
	for name, tc := range map[string]struct {
		dev, other *v1alpha1.DevServer
		change     func(dev, other *v1alpha1.DevServer, port int32)
		yields     bool
	}{
		"the older one":                       {older, younger, nil, false},
		"the younger one":                     {younger, older, nil, true},
		"the older one, on the port of other": {older, younger, func(_, other *v1alpha1.DevServer, port int32) { other.Status.Port = port }, true},
		"the younger one, on its own port":    {younger, older, func(dev, _ *v1alpha1.DevServer, port int32) { dev.Status.Port = port }, false},
		"the older one, started later":        {older, younger, func(_, other *v1alpha1.DevServer, port int32) { serve(other, port) }, true},
		"the younger one, started first":      {younger, older, func(dev, _ *v1alpha1.DevServer, port int32) { serve(dev, port) }, false},
		"the younger one, Ready, on the port of the other": {younger, older, func(dev, other *v1alpha1.DevServer, port int32) {
			serve(dev, port)
			other.Status.Port = port
		}, true},
		"the older one, both Ready": {older, younger, func(dev, other *v1alpha1.DevServer, port int32) {
			serve(dev, port)
			serve(other, port)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			here := newSite(t)
			dev, other := tc.dev.DeepCopy(), tc.other.DeepCopy()
			if tc.change != nil {
				tc.change(dev, other, here.port)
			}
			s := newFixture(t, dev, other)
			s.backend.listen(listenerOn("127.0.0.1", here.port))
			s.observe(dev, 1)
			s.clock.Step(settleTime)
			ready := meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionReady)
			s.awaitReadiness(dev, 1, true)
			setReady(dev, ready) // the other server listens before this one is recorded as Ready
			s.backend.share("127.0.0.1", here.port, runtime.PortOwner{Socket: 1, PID: 12, Command: "node", UID: other.UID})
			observed, _ := s.observe(dev, 1)
			s.g.Expect(observed.Contested.Yields).To(Equal(tc.yields))
			s.g.Expect(observed.Contested.Message).To(ContainSubstring("also reach pid 12 (node) of DevServer default/" + other.Name))
			s.g.Expect(observed.Contested.Obstructs).To(Equal(dev.Status.Port == here.port))
		})
	}
}

// serve makes a server Ready with a port in status.url.
func serve(dev *v1alpha1.DevServer, port int32) {
	dev.Status.URL = "http://" + join("127.0.0.1", port) + "/"
	setReady(dev, true)
}

// Restarting a server behind a proxy gives it another private port.
func TestSharedPort_RestartMovesServerBehindProxy(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	dev := server("web", 0, running(20001), func(dev *v1alpha1.DevServer) {
		dev.Spec.Proxy, dev.Status.BackendPort = v1alpha1.ProxyEnabled, here.port
	})
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.awaitReadiness(dev, 1, true)
	s.backend.share("127.0.0.1", here.port, runtime.PortOwner{Socket: 1, PID: 12, Command: "node"})
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Contested).To(HaveValue(Equal(lifecycle.Contested{
		Reason: v1alpha1.ReasonPortShared, Yields: true,
		Message: fmt.Sprintf("Connections to port %d also reach pid 12 (node). Stop the other server, or restart the server, which then gets another port.", here.port),
	})))
}

// The response to a liveness probe may come from the other process, so it is no reason to restart the server.
func TestSharedPort_SuspendsLiveness(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	dev := server("web", 0, running(here.port), func(dev *v1alpha1.DevServer) {
		dev.Spec.Liveness = &v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetProbe{Path: "/"}}
	})
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.awaitReadiness(dev, 1, true)
	here.status.Store(500)
	s.backend.share("127.0.0.1", here.port, runtime.PortOwner{Socket: 1, PID: 12, Command: "node"})
	key := probe.Key{UID: dev.UID, Incarnation: 1, Kind: probe.Liveness}
	s.g.Eventually(func() probe.Result {
		observed, _ := s.observe(dev, 1)
		s.g.Expect(observed.Unhealthy).To(BeEmpty())
		s.advanceProbes()
		return s.probes.Result(key)
	}, long, time.Millisecond).Should(And(HaveField("Known", true), HaveField("OK", false)))
	s.backend.others = nil
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Unhealthy).NotTo(BeEmpty())
}

// A new manager and an observation that fails change nothing.
func TestSharedPort_StaysAtRest(t *testing.T) {
	s := newFixture(t)
	dev, port := s.readyServer(t)
	s.backend.share("127.0.0.1", port, runtime.PortOwner{Socket: 1, PID: 12, Command: "node"})
	first, _ := s.observe(dev, 1)
	setReady(dev, false)
	process.SetCondition(dev, epoch, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonPortShared, first.Contested.Message)
	process.SetCondition(dev, epoch, v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonPortShared, first.Contested.Message)
	before := dev.DeepCopy()
	s.restartManager(t)
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Contested).To(Equal(first.Contested))
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()), "the incarnation is still ready")
	s.g.Expect(dev).To(Equal(before))

	s.backend.socketsErr = errors.New("the kernel does not answer")
	observed, _ = s.observe(dev, 1)
	s.g.Expect(observed.Contested.Message).To(Equal(first.Contested.Message))
	s.g.Expect(observed.Contested.Yields).To(BeTrue())
	s.g.Expect(dev).To(Equal(before))

	meta.RemoveStatusCondition(&dev.Status.Conditions, v1alpha1.ConditionConflict)
	observed, _ = s.observe(dev, 1)
	s.g.Expect(observed.Contested).To(BeNil())
}

// A server on all IPv6 addresses that does not accept IPv4 connections is not at 127.0.0.1, even if another program answers there.
func TestSharedPort_URLDoesNotLeadToOutsider(t *testing.T) {
	for printed, want := range map[string]string{"localhost": "[::1]:80", "127.0.0.1": "[::1]:80", "[::1]": "[::1]:80"} {
		s := newFixture(t)
		s.others["127.0.0.1:80"] = true
		s.backend.log = newLog("http://" + printed + ":80/\n")
		dev := server("web", 0, running(80))
		s.backend.listen(runtime.Listener{Address: "::", Port: 80, IPv6Only: true})
		s.backend.share("127.0.0.1", 80, runtime.PortOwner{Socket: 1, PID: 12})
		s.g.Eventually(func() string { s.observe(dev, 1); return conditionSummary(dev, v1alpha1.ConditionURLDetected) }, long).Should(Equal("True Detected"))
		s.g.Expect(dev.Status.URL).To(Equal("http://" + want + "/"))
		observed, _ := s.observe(dev, 1)
		s.g.Expect(observed.Contested).To(BeNil(), "the other program receives no connection of the server")
	}
}
