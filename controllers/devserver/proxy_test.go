// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/devproxy"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/test/need"
)

func behindProxy(dev *v1alpha1.DevServer) { dev.Spec.Proxy = v1alpha1.ProxyEnabled }

func backendPort(port int32) func(*v1alpha1.DevServer) {
	return func(dev *v1alpha1.DevServer) { dev.Status.BackendPort = port }
}

var publicPorts atomic.Int32

// publicPort returns a free port outside the ephemeral range.
func publicPort(t *testing.T) int32 {
	t.Helper()
	for range 2000 {
		port := 18000 + (int32(os.Getpid()%2000)+publicPorts.Add(1))%2000
		if bindable(port) {
			return port
		}
	}
	t.Fatal("no free port to listen on")
	return 0
}

// listenable reports whether a program can listen on the port. Unlike bindable, it ignores connections in TIME_WAIT.
func listenable(port int32) bool {
	listener, err := net.Listen("tcp4", join("127.0.0.1", port))
	return err == nil && listener.Close() == nil
}

// applyDecision passes a decision of the reconcile loop to the kind: the readiness, its reason, and the step.
func (s *fixture) applyDecision(dev *v1alpha1.DevServer, ready bool, reason string, step lifecycle.Step) {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	process.SetCondition(dev, epoch, v1alpha1.ConditionReady, status, reason, "Message of "+reason+".")
	s.g.Expect(s.BeforeAction(context.Background(), dev, dev, step, true)).To(Succeed())
}

// setStalled sets the condition Stalled.
func setStalled(dev *v1alpha1.DevServer, stalled bool) {
	status := metav1.ConditionFalse
	if stalled {
		status = metav1.ConditionTrue
	}
	process.SetCondition(dev, epoch, v1alpha1.ConditionStalled, status, "Test", "")
}

// fetch requests address on a new connection.
func fetch(address string) (status int, reason, body string, err error) {
	browser := &http.Client{Timeout: long, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := browser.Get(address)
	if err != nil {
		return 0, "", "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header.Get(devproxy.HeaderReason), string(text), err
}

func TestProxy_ListensOnPortAndServerOnBackendPort(t *testing.T) {
	s := newFixture(t)
	public := publicPort(t)
	dev := server("web", 0, fixedPort(public), behindProxy)
	start := s.prepare(dev)
	s.g.Expect(start.Blocked).To(BeNil())
	s.g.Expect(dev.Status.Port).To(Equal(public))
	backend := dev.Status.BackendPort
	s.g.Expect(backend).To(And(BeNumerically(">=", 20000), BeNumerically("<=", 20009)))
	s.g.Expect(start.Variables).To(HaveKeyWithValue("PORT", list([]int32{backend})))
	s.g.Expect(start.Fingerprint).To(Equal([]string{"port=" + list([]int32{public}), "proxy"}))
	s.g.Expect(s.proxies.Listens(dev.UID, public)).To(BeTrue(), "before the server starts")

	again := s.prepare(dev)
	s.g.Expect(dev.Status.BackendPort).To(Equal(backend), "the backend port stays")
	s.g.Expect(again.Fingerprint).To(Equal(start.Fingerprint))
	s.Forget(dev.UID)
	s.g.Expect(listenable(public)).To(BeTrue(), "the port is released with the object")
}

func TestProxy_AllocatesBothPorts(t *testing.T) {
	s := newFixture(t)
	first := publicPort(t)
	s.ports = Range{First: first, Last: first + 1}
	dev := server("web", 0, behindProxy)
	s.g.Expect(s.prepare(dev).Blocked).To(BeNil())
	s.g.Expect([]int32{dev.Status.Port, dev.Status.BackendPort}).To(ConsistOf(first, first+1))
	s.g.Expect(s.prepare(server("other", 1)).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonNoFreePort)))
}

func TestBackendPort_MovesWhenTaken(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, fixedPort(publicPort(t)), behindProxy, ended("Failed"))
	dev.Generation = 2
	start := s.prepare(dev)
	taken := dev.Status.BackendPort
	s.backend.owners[taken] = &runtime.PortOwner{PID: 7, Command: "x"}
	s.inUse[taken] = true
	after := s.prepare(dev)
	s.g.Expect(after.Blocked).To(BeNil())
	s.g.Expect(dev.Status.BackendPort).NotTo(Equal(taken))
	s.g.Expect(after.Fingerprint).To(Equal(start.Fingerprint), "the backend port is not part of the fingerprint")
}

func TestProxy_BlocksWhilePortIsInUse(t *testing.T) {
	s := newFixture(t)
	listener, port := listenOutside(t, "127.0.0.1")
	dev := server("web", 0, fixedPort(port), behindProxy)
	blocked := s.prepare(dev).Blocked
	s.g.Expect(blocked).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonPortInUse), HaveField("Conflict", true))))
	s.g.Expect(blocked.Message).To(ContainSubstring("The proxy cannot listen on port " + list([]int32{port})))
	s.g.Expect(dev.Status.Port).To(BeZero())
	s.g.Expect(listener.Close()).To(Succeed())
	s.g.Eventually(func() any { return s.prepare(dev).Blocked }).WithTimeout(long).Should(BeNil())
}

func TestProxy_KeepsPortClaimWhileStopped(t *testing.T) {
	rested := []func(*v1alpha1.DevServer){fixedPort(8080), assignedPort(8080), behindProxy, backendPort(20003), ended("Stopped"), stopped}
	s := newFixture(t, server("a", 0, rested...))
	s.g.Expect(s.prepare(server("b", 1, fixedPort(8080))).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortClaimed)))
	s.g.Expect(s.prepare(server("b", 1, fixedPort(20003))).Blocked).To(BeNil(), "the backend port of a stopped server is free")
	s = newFixture(t, server("a", 0, fixedPort(8080), running(8080), behindProxy, backendPort(20003)))
	s.g.Expect(s.prepare(server("b", 1, fixedPort(20003))).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortClaimed)))
	for range 9 {
		s.Forget("uid-c")
		c := server("c", 1)
		s.g.Expect(s.prepare(c).Blocked).To(BeNil())
		s.g.Expect(c.Status.Port).NotTo(BeEquivalentTo(20003))
		s.inUse[c.Status.Port] = true
	}
	released := server("a", 0, append(rested, func(dev *v1alpha1.DevServer) { dev.Spec.Proxy = v1alpha1.ProxyDisabled })...)
	s = newFixture(t, released)
	s.g.Expect(s.prepare(server("b", 1, fixedPort(8080))).Blocked).To(BeNil())
	s.g.Expect(contested.Changed().Update(event.UpdateEvent{
		ObjectOld: server("a", 0, rested...), ObjectNew: server("a", 0, fixedPort(8080), assignedPort(8080), ended("Stopped"), stopped),
	})).To(BeTrue())
}

// newProxiedServer returns a DevServer behind a proxy, and the real HTTP server that answers for it.
func (s *fixture) newProxiedServer(t *testing.T) (*v1alpha1.DevServer, *site) {
	t.Helper()
	here := newSite(t)
	dev := server("web", 0, fixedPort(publicPort(t)), behindProxy)
	s.g.Expect(s.prepare(dev).Blocked).To(BeNil())
	dev.Status.BackendPort = here.port
	running(dev.Status.Port)(dev)
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	return dev, here
}

func TestProxy_HoldsRequestsDuringRestart(t *testing.T) {
	s := newFixture(t)
	dev, here := s.newProxiedServer(t)
	s.awaitReadiness(dev, 1, true)
	address := fmt.Sprintf("http://localhost:%d/", dev.Status.Port)
	s.g.Expect(dev.Status.URL).To(Equal(address), "the URL is that of the proxy")
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(BeEmpty())
	s.g.Expect(here.requests.Load()).To(BeNumerically(">", 0), "probes bypass the proxy, which does not forward requests yet")

	asked := here.requests.Load()
	s.applyDecision(dev, true, "Running", lifecycle.Step{})
	status, _, _, err := fetch(address)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(status).To(Equal(http.StatusOK))
	s.g.Expect(here.requests.Load()).To(Equal(asked + 1))

	// During a restart, new requests wait for the next incarnation, although the old one still answers and a stale status says Ready.
	s.applyDecision(dev, false, "Requested", lifecycle.Step{Action: lifecycle.StopProcess, Incarnation: 1})
	s.applyDecision(dev, true, "Running", lifecycle.Step{})
	got := make(chan int, 1)
	go func() {
		status, _, _, _ := fetch(address)
		got <- status
	}()
	s.g.Consistently(got).WithTimeout(100 * time.Millisecond).ShouldNot(Receive())
	s.ObserveStopped(t.Context(), dev)
	s.applyDecision(dev, false, "Starting", lifecycle.Step{})
	dev.Status.Incarnation, dev.Status.Process.Incarnation = 2, 2
	s.applyDecision(dev, true, "Running", lifecycle.Step{}) // incarnation 2 has not been observed yet
	s.g.Expect(here.requests.Load()).To(Equal(asked + 1))
	setReady(dev, false)
	s.awaitReadiness(dev, 2, true)
	s.applyDecision(dev, true, "Running", lifecycle.Step{})
	s.g.Eventually(got).WithTimeout(long).Should(Receive(Equal(http.StatusOK)))
	s.g.Expect(dev.Status.URL).To(Equal(address))
}

// A pre-started server may listen on its port before the status shows that the previous incarnation has exited.
func TestProxy_HoldsRequestsFromPreStart(t *testing.T) {
	s := newFixture(t)
	dev, here := s.newProxiedServer(t)
	s.awaitReadiness(dev, 1, true)
	s.applyDecision(dev, true, "Running", lifecycle.Step{})
	asked := here.requests.Load()
	s.ObserveStopped(t.Context(), dev)
	preStart := lifecycle.Step{Action: lifecycle.StartProcess, Incarnation: 2, PreStart: true}
	s.applyDecision(dev, true, "Running", preStart)
	setStalled(dev, true) // requests to an object at rest are refused, but this object starts again
	s.applyDecision(dev, false, "Failed", preStart)
	setStalled(dev, false)
	got := make(chan int, 1)
	go func() {
		status, _, _, _ := fetch(fmt.Sprintf("http://localhost:%d/", dev.Status.Port))
		got <- status
	}()
	s.g.Consistently(got).WithTimeout(100 * time.Millisecond).ShouldNot(Receive())
	s.g.Expect(here.requests.Load()).To(Equal(asked), "incarnation 2 is not ready yet")
	dev.Status.Incarnation, dev.Status.Process.Incarnation = 2, 2
	setReady(dev, false)
	s.awaitReadiness(dev, 2, true)
	s.applyDecision(dev, true, "Running", lifecycle.Step{})
	s.g.Eventually(got).WithTimeout(long).Should(Receive(Equal(http.StatusOK)))
}

func TestProxy_Answers503WithReason(t *testing.T) {
	s := newFixture(t)
	dev, _ := s.newProxiedServer(t)
	address := fmt.Sprintf("http://127.0.0.1:%d/", dev.Status.Port)
	expect := func(reason string) {
		t.Helper()
		status, got, body, err := fetch(address)
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(status).To(Equal(http.StatusServiceUnavailable))
		s.g.Expect(got).To(Equal(reason))
		s.g.Expect(body).To(Equal("devservers/default/web is not available: " + reason + ": Message of " + reason + ".\n"))
	}
	setStalled(dev, true)
	later := metav1.NewMicroTime(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	dev.Status.NextRestartTime = &later
	s.g.Expect(startsAt(dev)).To(BeTemporally("==", later.Time))
	s.applyDecision(dev, false, v1alpha1.ReasonCircuitOpen, lifecycle.Step{})
	expect(v1alpha1.ReasonCircuitOpen)
	setStalled(dev, false)
	s.applyDecision(dev, false, v1alpha1.ReasonBackOff, lifecycle.Step{})
	expect(v1alpha1.ReasonBackOff)
	dev.Status.NextRestartTime = nil
	dev.Spec.State = v1alpha1.StateStopped
	s.applyDecision(dev, false, v1alpha1.ReasonStopping, lifecycle.Step{Action: lifecycle.StopProcess, Incarnation: 1})
	expect(v1alpha1.ReasonStopping)
}

func TestNewManager_ListensOnProxyPortAgain(t *testing.T) {
	s := newFixture(t)
	dev, here := s.newProxiedServer(t)
	s.awaitReadiness(dev, 1, true)
	s.restartManager(t)
	address := fmt.Sprintf("http://127.0.0.1:%d/", dev.Status.Port)
	_, _, _, err := fetch(address)
	s.g.Expect(err).To(HaveOccurred(), "no manager listens on the port")
	asked := here.requests.Load()
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()))
	s.g.Expect(s.BeforeAction(t.Context(), dev, dev, lifecycle.Step{}, true)).To(Succeed())
	status, _, _, err := fetch(address)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(status).To(Equal(http.StatusOK))
	s.g.Expect(here.requests.Load()).To(Equal(asked + 1))

	// The server is stopped, and the manager restarts again.
	s.restartManager(t)
	stopped(dev)
	ended("Stopped")(dev)
	dev.Status.Process = nil
	s.ObserveStopped(t.Context(), dev)
	for _, rest := range []struct {
		state  v1alpha1.ProcessState
		reason string
	}{{v1alpha1.StateRunning, v1alpha1.ReasonCompleted}, {v1alpha1.StateStopped, v1alpha1.ReasonStopped}} {
		dev.Spec.State = rest.state
		s.applyDecision(dev, true, rest.reason, lifecycle.Step{}) // at rest an object is Ready without a process
		status, reason, _, err := fetch(address)
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(fmt.Sprint(status, " ", reason)).To(Equal("503 " + rest.reason))
	}

	// The proxy is disabled.
	dev.Spec.Proxy = v1alpha1.ProxyDisabled
	s.ObserveStopped(t.Context(), dev)
	s.g.Expect(dev.Status.BackendPort).To(BeZero())
	s.g.Expect(s.BeforeAction(t.Context(), dev, dev, lifecycle.Step{}, true)).To(Succeed())
	s.g.Expect(listenable(dev.Status.Port)).To(BeTrue())
}

func TestProxy_ReportsForbiddenPort(t *testing.T) {
	g := NewWithT(t)
	refused := &net.OpError{Op: "listen", Net: "tcp4", Err: os.NewSyscallError("bind", syscall.EACCES)}
	blocked := portRefused(80, fmt.Errorf("listen on port 80: %w", refused))
	g.Expect(blocked.Reason).To(Equal(v1alpha1.ReasonPortForbidden))
	g.Expect(blocked.Conflict).To(BeFalse(), "no process holds the port")
	g.Expect(blocked.Message).To(And(ContainSubstring("port 80"), ContainSubstring("CAP_NET_BIND_SERVICE"), ContainSubstring("Set spec.port to 1024 or higher")))
}

func TestProxy_LostPortMakesServerNotReady(t *testing.T) {
	s := newFixture(t)
	dev, _ := s.newProxiedServer(t)
	s.awaitReadiness(dev, 1, true)
	s.restartManager(t)
	thief, err := net.Listen("tcp4", join("127.0.0.1", dev.Status.Port))
	s.g.Expect(err).NotTo(HaveOccurred())
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()))
	s.g.Expect(observed.NotReady).To(HavePrefix("The proxy cannot listen on port"))
	s.g.Expect(thief.Close()).To(Succeed())
	s.g.Eventually(func() *bool { observed, _ = s.observe(dev, 1); return observed.Ready }).WithTimeout(long).Should(HaveValue(BeTrue()))
}

func TestStoppedManager_KeepsServerReady(t *testing.T) {
	s := newFixture(t)
	dev, _ := s.newProxiedServer(t)
	s.awaitReadiness(dev, 1, true)
	s.stopManager()
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()), "the server itself is still ready")
	s.g.Expect(s.prepare(server("other", 1, fixedPort(publicPort(t)), behindProxy)).Blocked).To(BeNil())
}

func TestProxy_FollowsServerToOtherPort(t *testing.T) {
	s := newFixture(t)
	dev, here := s.newProxiedServer(t)
	dev.Status.BackendPort = 4 // the server ignores this port
	s.observe(dev, 1)
	s.clock.Step(settleTime)
	s.awaitReadiness(dev, 1, true)
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(Equal("False OtherPort"))
	s.applyDecision(dev, true, "Running", lifecycle.Step{})
	asked := here.requests.Load()
	_, _, _, err := fetch(dev.Status.URL)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(here.requests.Load()).To(Equal(asked+1), "the proxy follows the server to its port")
	address, err := url.Parse(dev.Status.URL)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(address.Host).To(Equal(join(proxyHost(s.proxies.IPv6(dev.UID)), dev.Status.Port)))
}

func TestProxy_KeepsPortWhileServerReloads(t *testing.T) {
	s := newFixture(t)
	dev, here := s.newProxiedServer(t)
	s.awaitReadiness(dev, 1, true)
	s.clock.Step(settleTime)
	backend := "http://" + join("127.0.0.1", here.port)
	s.backend.listen(listenerOn("127.0.0.1", 4)) // for example a port for hot reload
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()), "the proxy holds requests")
	s.g.Expect(s.cacheOf(dev.UID).backend).To(Equal(backend))
	s.backend.listen(listenerOn("127.0.0.1", 4), listenerOn("127.0.0.1", here.port))
	observed, _ = s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()))
	s.g.Expect(s.cacheOf(dev.UID).backend).To(Equal(backend))
}

func TestProxy_URLHasPathOfPrintedURL(t *testing.T) {
	s := newFixture(t)
	dev, here := s.newProxiedServer(t)
	s.backend.log = newLog(fmt.Sprintf("Local: https://localhost:%d/app/\n", here.port))
	s.g.Eventually(func() string { s.observe(dev, 1); return dev.Status.URL }).WithTimeout(long).
		Should(Equal("http://"+join(proxyHost(s.proxies.IPv6(dev.UID)), dev.Status.Port)+"/app/"), "the path comes from the server, the rest from the proxy")
	m := s.cacheOf(dev.UID)
	s.g.Expect(m.backend).To(Equal("http://" + join("127.0.0.1", here.port)))
	dev.Spec.URL.Scheme = v1alpha1.SchemeHTTPS
	s.observe(dev, 1)
	s.g.Expect(m.backend).To(Equal("https://" + join("127.0.0.1", here.port)))
	s.g.Expect(dev.Status.URL).To(HavePrefix("http://"))
}

func TestProxy_IsEnabledAndDisabledByRestart(t *testing.T) {
	s := newFixture(t)
	public := publicPort(t)
	dev := server("web", 0, fixedPort(public), running(public))
	before := s.prepareRunning(dev, &facts.Incarnation{Number: 1})
	behindProxy(dev)
	dev.Generation = 2
	beside := s.prepareRunning(dev, &facts.Incarnation{Number: 1})
	s.g.Expect(beside.Blocked).To(BeNil())
	s.g.Expect(beside.Fingerprint).NotTo(Equal(before.Fingerprint), "the server needs another port")
	s.g.Expect(beside.Variables).To(HaveKeyWithValue("PORT", list([]int32{public})), "the running process has this port")
	s.g.Expect(dev.Status.BackendPort).To(BeZero())
	s.g.Expect(s.proxies.Listens(dev.UID, public)).To(BeFalse(), "the server itself listens there")

	dev.Status.Process = nil
	ended("SpecChanged")(dev)
	s.g.Expect(s.prepare(dev).Fingerprint).To(Equal(beside.Fingerprint))
	s.g.Expect(dev.Status.BackendPort).NotTo(BeZero())
	s.g.Expect(s.proxies.Listens(dev.UID, public)).To(BeTrue())

	dev.Spec.Proxy = v1alpha1.ProxyDisabled
	dev.Generation = 3
	s.g.Expect(s.prepareRunning(dev, &facts.Incarnation{Number: 1}).Fingerprint).To(Equal(before.Fingerprint))
	s.g.Expect(s.proxies.Listens(dev.UID, public)).To(BeTrue(), "until the server has exited")
	s.g.Expect(s.prepare(dev).Blocked).To(BeNil())
	s.g.Expect(s.proxies.Listens(dev.UID, public)).To(BeFalse())
	s.g.Expect(dev.Status.BackendPort).To(BeZero())
	s.g.Expect(listenable(public)).To(BeTrue())
}

func TestRivals_IncludeBackendPort(t *testing.T) {
	a, b := server("a", 0, fixedPort(8080), behindProxy, backendPort(20003)), server("b", 1, fixedPort(20003))
	s := newFixture(t, a, b)
	s.g.Expect(byPort(a)).To(Equal([]string{"8080", "20003"}))
	s.g.Expect(byPort(client.Object(b))).To(Equal([]string{"20003"}))
	s.g.Expect(contested.Rivals(t.Context(), s.client, a)).To(HaveLen(1))
	s.g.Expect(strings.Join(byPort(server("c", 2)), "")).To(BeEmpty())
}

func TestProxy_ForwardsOnlyAllowedHosts(t *testing.T) {
	s := newFixture(t)
	dev, _ := s.newProxiedServer(t)
	s.awaitReadiness(dev, 1, true)
	ask := func(host string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", dev.Status.Port), nil)
		s.g.Expect(err).NotTo(HaveOccurred())
		r.Host = host
		browser := &http.Client{Timeout: long, Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := browser.Do(r)
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(response.Body.Close()).To(Succeed())
		return response.StatusCode
	}
	s.applyDecision(dev, true, "Running", lifecycle.Step{})
	s.g.Expect(ask("dev.example.com")).To(Equal(http.StatusForbidden))
	dev.Spec.AllowedHosts = []string{"dev.example.com"}
	s.g.Expect(s.prepare(dev).Fingerprint).To(HaveLen(2), "allowedHosts does not concern the process, so no restart follows")
	s.applyDecision(dev, true, "Running", lifecycle.Step{})
	s.g.Expect(ask("dev.example.com")).To(Equal(http.StatusOK))
	s.g.Expect(ask("other.example.com")).To(Equal(http.StatusForbidden))
}

func TestProxy_ReportsMissingIPv6(t *testing.T) {
	s := newFixture(t)
	public := publicPort(t)
	other, err := net.Listen("tcp6", join("::1", public))
	if err != nil {
		need.Machine(t, fmt.Errorf("no IPv6 on this machine: %w", err))
	}
	t.Cleanup(func() { _ = other.Close() })
	here := newSite(t)
	dev := server("web", 0, fixedPort(public), behindProxy)
	s.network.free = func(int32) bool { return true }
	s.g.Expect(s.prepare(dev).Blocked).To(BeNil())
	dev.Status.BackendPort = here.port
	running(dev.Status.Port)(dev)
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.awaitReadiness(dev, 1, true)
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(Equal("True Listening"))
	s.g.Expect(condition(dev, v1alpha1.ConditionPortVerified).Message).To(ContainSubstring("not on [::1]:" + list([]int32{public})))
	s.g.Expect(len(condition(dev, v1alpha1.ConditionPortVerified).Message)).To(BeNumerically("<=", 250))
	s.g.Expect(dev.Status.URL).To(Equal(fmt.Sprintf("http://127.0.0.1:%d/", public)), "localhost may resolve to the other program")

	before := dev.DeepCopy()
	s.restartManager(t)
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal(before.Status.URL), "the first call of a new manager changes nothing")
}
