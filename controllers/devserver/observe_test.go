// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	goruntime "runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/probe"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/weburl"
)

// site is a real HTTP server that answers with the status that the test sets.
type site struct {
	port     int32
	status   atomic.Int64
	requests atomic.Int64
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{}
	s.status.Store(http.StatusOK)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.requests.Add(1)
		w.WriteHeader(int(s.status.Load()))
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	s.port = int32(port)
	return s
}

// awaitReadiness calls observe repeatedly, as the reconcile loop does, until the observed readiness of the server equals ready.
func (s *fixture) awaitReadiness(dev *v1alpha1.DevServer, number int64, ready bool) {
	s.g.Eventually(func() *bool {
		observed, _ := s.observe(dev, number)
		recordReady(dev, observed)
		s.advanceProbes()
		return observed.Ready
	}, long, time.Millisecond).Should(HaveValue(Equal(ready)))
}

// advanceProbes advances the clock so that waiting probes run again. Use it only in tests that do not depend on settleTime, because the advanced clock also
// shortens the remaining settleTime.
func (s *fixture) advanceProbes() {
	if s.clock.HasWaiters() {
		s.clock.Step(time.Second)
	}
}

func conditionSummary(dev *v1alpha1.DevServer, conditionType string) string {
	c := condition(dev, conditionType)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func TestObserve_FollowsServerThroughRestart(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	dev := server("web", 0, running(here.port))

	s.ObserveStopped(t.Context(), dev)
	s.g.Expect(dev.Status.Conditions).To(BeEmpty(), "without a process there is no condition about its sockets")
	s.g.Expect(dev.Status.URL).To(BeEmpty())

	observed, retry := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()))
	s.g.Expect(observed.NotReady).To(ContainSubstring("The server does not listen on a TCP port yet"))
	s.g.Expect(retry).To(Equal(lookStarting))
	s.g.Expect(dev.Status.URL).To(BeEmpty(), "no socket listens yet")

	s.backend.listen(listenerOn("127.0.0.1", here.port), listenerOn("127.0.0.1", 4))
	s.awaitReadiness(dev, 1, true)
	address := "http://" + join("127.0.0.1", here.port) + "/"
	s.g.Expect(dev.Status.URL).To(Equal(address))
	s.g.Expect(dev.Status.ObservedPorts).To(Equal([]int32{4, here.port}))
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(BeEmpty())

	asked := here.requests.Load()
	s.clock.Step(time.Hour)
	before := dev.DeepCopy()
	observed, retry = s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()))
	s.g.Expect(retry).To(Equal(lookSettled))
	s.g.Expect(dev).To(Equal(before), "a second call changes nothing")
	s.g.Expect(here.requests.Load()).To(Equal(asked), "the built-in probe ends, because endless requests would fill the log of the server")

	// After a restart the address stays, but the response of the earlier incarnation no longer counts.
	s.ObserveStopped(t.Context(), dev)
	setReady(dev, false)
	s.backend.listen()
	s.g.Expect(dev.Status.URL).To(Equal(address))
	s.g.Expect(dev.Status.ObservedPorts).To(BeEmpty())
	observed, _ = s.observe(dev, 2)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()))
	s.g.Expect(dev.Status.URL).To(Equal(address))
	here.status.Store(http.StatusInternalServerError)
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.g.Eventually(func() string {
		observed, _ = s.observe(dev, 2)
		return observed.NotReady
	}, long).Should(Equal("GET " + address + " returned status 500"))
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()))
	here.status.Store(http.StatusNotFound)
	s.awaitReadiness(dev, 2, true)
}

func TestLostSocket_MakesServerNotReady(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	dev := server("web", 0, running(here.port))
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.awaitReadiness(dev, 1, true)
	s.backend.listen()
	observed, retry := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()))
	s.g.Expect(retry).To(Equal(lookStarting))
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	observed, _ = s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()), "this incarnation has already answered")
}

func TestNewManager_KeepsStatusAtRest(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	s.backend.log = newLog("old\nhttp://localhost:" + strconv.Itoa(int(here.port)) + "/app/\n")
	dev := server("web", 0, running(here.port))
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.awaitReadiness(dev, 1, true)
	s.g.Eventually(func() string { s.observe(dev, 1); return dev.Status.URL }, long).Should(HaveSuffix("/app/"))
	s.clock.Step(time.Hour)
	asked := here.requests.Load()
	before := dev.DeepCopy()

	s.restartManager(t)
	s.backend.log.append("GET http://localhost:" + strconv.Itoa(int(here.port)) + "/request/\n")
	for range 20 {
		observed, _ := s.observe(dev, 1)
		s.g.Expect(observed.Ready).To(HaveValue(BeTrue()))
		s.g.Expect(dev).To(Equal(before))
		s.clock.Step(time.Second)
	}
	s.g.Expect(here.requests.Load()).To(Equal(asked))
}

// A new manager does not know where the output of the incarnation begins. It keeps scheme and path of the URL, and leaves a host at which another program listens.
func TestNewManager_LeavesHostOfAnotherProgram(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	s.backend.log = newLog("old\n")
	dev := server("web", 0, running(here.port))
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.observe(dev, 1)
	s.backend.log.append("http://localhost:" + strconv.Itoa(int(here.port)) + "/app/\n")
	s.awaitReadiness(dev, 1, true)
	printed := "http://" + join("localhost", here.port) + "/app/"
	s.g.Eventually(func() string { s.observe(dev, 1); return dev.Status.URL }, long).Should(Equal(printed))
	s.clock.Step(time.Hour)
	s.restartManager(t)
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal(printed))
	s.others[join("::1", here.port)] = true
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal("http://" + join("127.0.0.1", here.port) + "/app/"))
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionURLDetected)).To(Equal("True Detected"))
}

func TestOtherPort_IsUsedAfterSettleTime(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	dev := server("web", 0, running(4))
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	observed, retry := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()), "the server may still open its assigned port")
	s.g.Expect(observed.NotReady).To(ContainSubstring("but not yet on its assigned port 4"))
	s.g.Expect(retry).To(Equal(lookStarting))
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(Equal("False NotListening"))
	s.g.Expect(dev.Status.URL).To(BeEmpty())

	s.clock.Step(settleTime)
	s.awaitReadiness(dev, 1, true)
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(Equal("False OtherPort"))
	s.g.Expect(condition(dev, v1alpha1.ConditionPortVerified).Message).To(HavePrefix("The server listens on " + list([]int32{here.port}) + " instead of 4. "))
	s.g.Expect(dev.Status.URL).To(Equal("http://" + join("127.0.0.1", here.port) + "/"))
	s.g.Expect(dev.Status.Port).To(Equal(int32(4)))
}

func TestOtherPort_IsUsedImmediatelyIfPrinted(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("  Local: http://localhost:\x1b[1m5174\x1b[22m/app/\n  Network: http://10.0.0.1:24678/\n")
	dev := server("web", 0, running(5173))
	s.backend.listen(listenerOn("127.0.0.1", 4), listenerOn("127.0.0.1", 5174), listenerOn("127.0.0.1", 24678))
	s.g.Eventually(func() string {
		s.observe(dev, 1)
		return dev.Status.URL
	}, long).Should(Equal("http://localhost:5174/app/"), "immediately, because the output names the port")
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(Equal("False OtherPort"))
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionURLDetected)).To(Equal("True Detected"))
}

func TestObservedPorts_AreBounded(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, running(30))
	var listeners []runtime.Listener
	for port := int32(30); port > 0; port-- {
		listeners = append(listeners, listenerOn("127.0.0.1", port), listenerOn("::1", port))
	}
	s.backend.listen(listeners...)
	s.observe(dev, 1)
	s.g.Expect(dev.Status.ObservedPorts).To(HaveLen(maxObservedPorts))
	s.g.Expect(dev.Status.ObservedPorts[0]).To(Equal(int32(1)))
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionPortVerified)).To(BeEmpty())
}

func TestHost_FollowsListenAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		addresses []string
		ipv6Only  bool
		want      string
	}{
		"IPv4 loopback":            {[]string{"127.0.0.1"}, false, "127.0.0.1:80"},
		"another loopback":         {[]string{"127.0.0.5"}, false, "127.0.0.5:80"},
		"IPv6 loopback":            {[]string{"::1"}, false, "[::1]:80"},
		"both":                     {[]string{"::1", "127.0.0.1"}, false, "localhost:80"},
		"all of IPv4":              {[]string{"0.0.0.0"}, false, "127.0.0.1:80"},
		"all of both":              {[]string{"::"}, false, "127.0.0.1:80"},
		"all of IPv6 only":         {[]string{"::"}, true, "[::1]:80"},
		"all of both, two sockets": {[]string{"::", "0.0.0.0"}, false, "127.0.0.1:80"},
		"a mapped address":         {[]string{"::ffff:127.0.0.1"}, false, "127.0.0.1:80"},
		"a network address":        {[]string{"10.0.0.7"}, false, "10.0.0.7:80"},
		"network and loopback":     {[]string{"10.0.0.7", "::1"}, false, "[::1]:80"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			dev := server("web", 0, running(80))
			var listeners []runtime.Listener
			for _, address := range tc.addresses {
				listener := listenerOn(address, 80)
				listener.IPv6Only = tc.ipv6Only
				listeners = append(listeners, listener, listenerOn("10.9.9.9", 81))
			}
			s.backend.listen(listeners...)
			s.observe(dev, 1)
			s.g.Expect(dev.Status.URL).To(Equal("http://" + tc.want + "/"))
		})
	}
}

func TestHost_UsesPrintedHostIfItReachesServer(t *testing.T) {
	for name, tc := range map[string]struct {
		printed   string
		listeners []string
		others    []string // where other programs accept connections
		want      string
	}{
		"localhost, on all addresses":             {"localhost", []string{"::", "0.0.0.0"}, nil, "localhost:80"},
		"localhost, on 127.0.0.1":                 {"localhost", []string{"127.0.0.1"}, nil, "localhost:80"},
		"localhost, on ::1, not its address":      {"localhost", []string{"::1"}, nil, "[::1]:80"},
		"localhost, on another loopback address":  {"localhost", []string{"127.0.0.5"}, nil, "127.0.0.5:80"},
		"localhost, another program on ::1":       {"localhost", []string{"127.0.0.1"}, []string{"[::1]:80"}, "127.0.0.1:80"},
		"localhost, on all, other program on ::1": {"localhost", []string{"0.0.0.0"}, []string{"[::1]:80"}, "127.0.0.1:80"},
		"a subdomain of localhost":                {"app.localhost", []string{"127.0.0.1"}, nil, "app.localhost:80"},
		"a name that does not resolve":            {"x.localhost", []string{"127.0.0.1"}, nil, "127.0.0.1:80"},
		"a name of another machine":               {"far.localhost", []string{"127.0.0.1"}, nil, "127.0.0.1:80"},
		"127.0.0.1":                               {"127.0.0.1", []string{"127.0.0.1", "::1"}, nil, "127.0.0.1:80"},
		"::1":                                     {"[::1]", []string{"127.0.0.1", "::1"}, []string{"127.0.0.1:80"}, "[::1]:80"},
		"127.0.0.1, on ::1":                       {"127.0.0.1", []string{"::1"}, []string{"127.0.0.1:80"}, "[::1]:80"},
		"all addresses":                           {"0.0.0.0", []string{"0.0.0.0"}, nil, "127.0.0.1:80"},
		"an address of the network":               {"10.0.0.7", []string{"0.0.0.0"}, nil, "127.0.0.1:80"},
		"a name of the network":                   {"dev.example.com", []string{"0.0.0.0"}, nil, "127.0.0.1:80"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.names["app.localhost"] = []netip.Addr{loopback, netip.IPv6Loopback()}
			s.names["far.localhost"] = []netip.Addr{loopback, netip.MustParseAddr("10.0.0.7")}
			for _, address := range tc.others {
				s.others[address] = true
			}
			s.backend.log = newLog("  Local:  http://" + tc.printed + ":80/\n")
			dev := server("web", 0, running(80))
			var listeners []runtime.Listener
			for _, address := range tc.listeners {
				listeners = append(listeners, listenerOn(address, 80))
			}
			s.backend.listen(listeners...)
			s.g.Eventually(func() string { s.observe(dev, 1); return conditionSummary(dev, v1alpha1.ConditionURLDetected) }, long).Should(Equal("True Detected"))
			s.g.Expect(dev.Status.URL).To(Equal("http://" + tc.want + "/"))
		})
	}
}

func TestHost_StaysDuringARestart(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("")
	dev := server("web", 0, running(80))
	s.prepare(dev)
	s.backend.listen(listenerOn("127.0.0.1", 80))
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal("http://127.0.0.1:80/"), "without a printed host")
	s.backend.log.append("http://localhost:80/\n")
	s.g.Eventually(func() string { s.observe(dev, 1); return dev.Status.URL }, long).Should(Equal("http://localhost:80/"))
	for number := int64(2); number < 4; number++ {
		s.ObserveStopped(t.Context(), dev)
		s.prepare(dev)
		s.observe(dev, number)
		s.g.Expect(dev.Status.URL).To(Equal("http://localhost:80/"))
	}
	s.others["[::1]:80"] = true
	s.observe(dev, 3)
	s.g.Expect(dev.Status.URL).To(Equal("http://127.0.0.1:80/"), "another program answers at localhost")
}

func TestChoice_PrefersGivenThenChosenThenPrinted(t *testing.T) {
	printed := func(host string, port int32) found { return weburl.Find(fmt.Sprintf("http://%s:%d/", host, port))[0] }
	for name, tc := range map[string]struct {
		choice
		port, awaited int32
	}{
		"nothing listens":                              {choice{given: 30, settled: true}, 0, 0},
		"the given port":                               {choice{given: 30, listening: []int32{10, 30}}, 30, 0},
		"the given port before a printed one":          {choice{given: 30, listening: []int32{10, 30}, printed: []found{printed("localhost", 10)}}, 30, 0},
		"the given port may still open":                {choice{given: 30, listening: []int32{10, 20}}, 0, 0},
		"the lowest":                                   {choice{given: 30, listening: []int32{10, 20}, settled: true}, 10, 0},
		"a printed one immediately":                    {choice{given: 30, listening: []int32{10, 20}, printed: []found{printed("localhost", 20)}}, 20, 0},
		"the nearest printed one":                      {choice{given: 30, listening: []int32{10, 20}, printed: []found{printed("10.0.0.7", 10), printed("localhost", 20)}}, 20, 0},
		"the lowest of equally near printed ones":      {choice{given: 30, listening: []int32{10, 20}, printed: []found{printed("localhost", 20), printed("localhost", 10)}}, 10, 0},
		"a printed one that does not listen":           {choice{given: 30, listening: []int32{10, 20}, printed: []found{printed("localhost", 40)}, settled: true}, 10, 0},
		"Ready: the chosen one before a lower one":     {choice{given: 30, chosen: 20, listening: []int32{10, 20}, settled: true}, 20, 0},
		"Ready: the chosen one before a printed one":   {choice{given: 30, chosen: 20, listening: []int32{10, 20}, printed: []found{printed("localhost", 10)}, settled: true}, 20, 0},
		"Ready: the given one opens late":              {choice{given: 30, chosen: 20, listening: []int32{20, 30}, settled: true}, 30, 0},
		"Ready: the given one may return":              {choice{given: 30, chosen: 30, returning: true, listening: []int32{10}, settled: true}, 0, 30},
		"Ready: the chosen one may return":             {choice{given: 30, chosen: 20, returning: true, listening: []int32{10}, printed: []found{printed("localhost", 10)}, settled: true}, 0, 20},
		"Ready: all may return":                        {choice{given: 30, chosen: 20, returning: true, settled: true}, 0, 20},
		"Ready: the chosen one returns":                {choice{given: 30, chosen: 20, returning: true, listening: []int32{10, 20}, settled: true}, 20, 0},
		"Ready: the chosen one does not return":        {choice{given: 30, chosen: 20, listening: []int32{10, 15}, settled: true}, 10, 0},
		"Ready: a printed one, the chosen closed":      {choice{given: 30, chosen: 20, listening: []int32{10, 15}, printed: []found{printed("localhost", 15)}, settled: true}, 15, 0},
		"Ready: nothing listens, and the wait is over": {choice{given: 30, chosen: 20, settled: true}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			port, awaited := tc.choice.port()
			NewWithT(t).Expect([]int32{port, awaited}).To(Equal([]int32{tc.port, tc.awaited}))
		})
	}
}

func TestPort_NotAwaitedBeforeItListened(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, running(4), withReadiness(v1alpha1.Probe{Exec: &v1alpha1.ExecProbe{Command: []string{"check"}}}))
	current := incarnation(1)
	s.prepareRunning(dev, &current).Process.Env = []string{"TOKEN=secret"}
	s.awaitReadiness(dev, 1, true)
	s.backend.listen(listenerOn("127.0.0.1", 5174))
	s.observe(dev, 1)
	s.clock.Step(settleTime)
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal("http://127.0.0.1:5174/"), "the given port was never open")
}

func TestPort_StaysWhileTheServerReloads(t *testing.T) {
	s := newFixture(t)
	here, other := newSite(t), newSite(t)
	s.backend.log = newLog(fmt.Sprintf("http://localhost:%d/\n", here.port))
	dev := server("web", 0, running(4))
	both := []runtime.Listener{listenerOn("127.0.0.1", here.port), listenerOn("127.0.0.1", other.port)}
	s.backend.listen(both...)
	s.awaitReadiness(dev, 1, true)
	address := fmt.Sprintf("http://localhost:%d/", here.port)
	s.g.Expect(dev.Status.URL).To(Equal(address))
	s.clock.Step(settleTime)
	s.observe(dev, 1)

	for range 2 { // each reload restarts the wait
		s.backend.listen(both[1])
		observed, retry := s.observe(dev, 1)
		s.g.Expect(observed.Ready).To(HaveValue(BeFalse()), "the port of the URL is closed")
		s.g.Expect(observed.NotReady).To(ContainSubstring(fmt.Sprintf("closed port %d", here.port)))
		s.g.Expect(retry).To(Equal(lookStarting))
		s.clock.Step(returnTime - time.Second)
		recordReady(dev, observed)
		s.observe(dev, 1)
		s.g.Expect(dev.Status.URL).To(Equal(address))
		s.g.Expect(conditionSummary(dev, v1alpha1.ConditionURLDetected)).To(Equal("True Detected"))
		s.backend.listen(both...)
		observed, _ = s.observe(dev, 1)
		s.g.Expect(observed.Ready).To(HaveValue(BeTrue()))
		s.g.Expect(dev.Status.URL).To(Equal(address))
		recordReady(dev, observed)
	}

	s.backend.log.append(fmt.Sprintf("http://localhost:%d/\n", other.port))
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal(address), "the chosen port still listens")
	before := dev.DeepCopy()
	s.restartManager(t)
	s.observe(dev, 1)
	s.g.Expect(dev).To(Equal(before), "a new manager changes nothing")

	s.backend.listen(both[1])
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal(address))
	s.clock.Step(returnTime)
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()))
	s.g.Expect(portOf(dev.Status.URL)).To(Equal(other.port), "the port did not return")
}

func TestURL_FollowsSpec(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("https://localhost:80/app/\n")
	dev := server("web", 0, running(80), func(dev *v1alpha1.DevServer) {
		dev.Spec.URL = v1alpha1.URLSpec{Path: "/mine", Detect: v1alpha1.URLDetectionEnabled}
	})
	s.backend.listen(listenerOn("127.0.0.1", 80))
	s.g.Eventually(func() string { s.observe(dev, 1); return dev.Status.URL }, long).Should(Equal("https://localhost:80/mine"))
	s.g.Expect(condition(dev, v1alpha1.ConditionURLDetected).Message).To(Equal("The server printed https://localhost:80/app/."))

	dev.Spec.URL = v1alpha1.URLSpec{Scheme: v1alpha1.SchemeHTTP, Detect: v1alpha1.URLDetectionDisabled}
	dev.Generation = 2
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal("http://127.0.0.1:80/"))
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionURLDetected)).To(BeEmpty())
}

func TestPath_StaysDuringRestart(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("")
	dev := server("web", 0, running(80))
	s.prepare(dev)
	s.backend.listen(listenerOn("127.0.0.1", 80))
	s.backend.log.append("http://localhost:80/app/\n")
	s.g.Eventually(func() string { s.observe(dev, 1); return dev.Status.URL }, long).Should(Equal("http://localhost:80/app/"))

	s.ObserveStopped(t.Context(), dev)
	s.prepare(dev)
	s.observe(dev, 2)
	s.g.Expect(dev.Status.URL).To(Equal("http://localhost:80/app/"), "incarnation 2 has not printed a URL yet")
	s.g.Expect(conditionSummary(dev, v1alpha1.ConditionURLDetected)).To(Equal("False NotDetected"))
	s.backend.log.append("http://localhost:80/new/\n")
	s.g.Eventually(func() string { s.observe(dev, 2); return dev.Status.URL }, long).Should(Equal("http://localhost:80/new/"))

	s.ObserveStopped(t.Context(), dev)
	s.prepare(dev)
	s.observe(dev, 3)
	s.clock.Step(settleTime)
	s.observe(dev, 3)
	s.g.Expect(dev.Status.URL).To(Equal("http://127.0.0.1:80/"), "incarnation 3 prints no URL")
}

func TestOutput_IsReadUntilURLIsKnown(t *testing.T) {
	s := newFixture(t)
	s.backend.log = newLog("http://localhost:80/app/\n")
	dev := server("web", 0, running(80))
	s.backend.listen(listenerOn("127.0.0.1", 80))
	s.g.Eventually(func() string { s.observe(dev, 1); return dev.Status.URL }, long).Should(Equal("http://localhost:80/app/"))
	s.g.Expect(s.backend.log.openReaders()).To(Equal(1))
	s.clock.Step(settleTime)
	s.observe(dev, 1)
	s.g.Eventually(s.backend.log.openReaders, long).Should(BeZero())
	s.observe(dev, 1)
	s.g.Expect(dev.Status.URL).To(Equal("http://localhost:80/app/"), "the detected URL stays")

	silent := server("silent", 0, running(80))
	s.backend.mu.Lock()
	s.backend.log = newLog("nothing\n")
	s.backend.mu.Unlock()
	s.observe(silent, 1)
	s.g.Eventually(s.backend.log.openReaders, long).Should(Equal(1))
	s.clock.Step(settleTime)
	s.observe(silent, 1)
	s.g.Expect(s.backend.log.openReaders()).To(Equal(1))
	s.clock.Step(textTime)
	s.observe(silent, 1)
	s.g.Eventually(s.backend.log.openReaders, long).Should(BeZero())
}

func TestUnreadableSockets_KeepReadiness(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, running(80))
	s.backend.socketsErr = errors.New("broken")
	observed, retry := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(BeNil(), "the last known readiness stays")
	s.g.Expect(observed.NotReady).To(ContainSubstring("Cannot read the listening sockets"))
	s.g.Expect(retry).To(Equal(lookStarting))
	s.clock.Step(startingTime)
	_, retry = s.observe(dev, 1)
	s.g.Expect(retry).To(Equal(lookSlow))
	s.backend.socketsErr = runtime.ErrNotFound
	observed, _ = s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()))
}

func TestObserve_WorksWithoutInspection(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	s.inspector, s.logs = nil, nil
	dev := server("web", 0, running(here.port))
	s.awaitReadiness(dev, 1, true)
	s.g.Expect(dev.Status.URL).To(Equal("http://" + join("127.0.0.1", here.port) + "/"))
}

func withReadiness(probe v1alpha1.Probe) func(*v1alpha1.DevServer) {
	return func(dev *v1alpha1.DevServer) { dev.Spec.Readiness = &probe }
}

func TestReadinessProbe_DecidesReadiness(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	here.status.Store(http.StatusNotFound)
	dev := server("web", 0, running(here.port), withReadiness(v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetProbe{Path: "/ready"}}))
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()), "no socket listens")
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	s.awaitReadiness(dev, 1, false)
	s.g.Eventually(func() string {
		s.advanceProbes()
		observed, _ = s.observe(dev, 1)
		return observed.NotReady
	}, long).Should(HaveSuffix("/ready returned status 404"))
	here.status.Store(http.StatusOK)
	s.awaitReadiness(dev, 1, true)
	here.status.Store(http.StatusServiceUnavailable)
	s.g.Eventually(func() *bool {
		s.clock.Step(defaultPeriod * time.Second)
		observed, _ := s.observe(dev, 1)
		return observed.Ready
	}, long).Should(HaveValue(BeFalse()))
}

func TestReadinessProbe_NewManagerKeepsReadiness(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	here.status.Store(http.StatusServiceUnavailable)
	dev := server("web", 0, running(here.port), withReadiness(v1alpha1.Probe{TCPSocket: &v1alpha1.TCPSocketProbe{Port: ptr.To[int32](here.port)}}))
	setReady(dev, true)
	s.g.Eventually(func() *bool {
		observed, _ := s.observe(dev, 1)
		if observed.Ready != nil {
			s.g.Expect(*observed.Ready).To(BeTrue(), "a new manager keeps the recorded readiness")
		}
		return observed.Ready
	}, long).Should(HaveValue(BeTrue()))
}

func TestExecProbe_HasEnvironmentOfServer(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, running(80), withReadiness(v1alpha1.Probe{
		Exec: &v1alpha1.ExecProbe{Command: []string{"/bin/sh", "-c", `test "$TOKEN" = secret`}}}))
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()), "the environment of the server is not known yet")
	current := incarnation(1)
	start := s.prepareRunning(dev, &current)
	start.Process.Env = []string{"TOKEN=secret"}
	s.awaitReadiness(dev, 1, true)
}

func TestExecProbe_GetsPortOfRunningServer(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, running(80), fixedPort(90), withReadiness(v1alpha1.Probe{Exec: &v1alpha1.ExecProbe{Command: []string{"check", "PORT=$(PORT)"}}}))
	current := incarnation(1)
	start := s.prepareRunning(dev, &current)
	start.Process.Env = []string{"PORT=90", "TOKEN=secret"} // the environment of the next incarnation, which has another port
	s.awaitReadiness(dev, 1, true)
	config, _ := s.config(dev, probe.Key{}, dev.Spec.Readiness, s.cacheOf(dev.UID), snapshot{})
	s.g.Expect(config.Check.Exec.Process.Command).To(Equal([]string{"check", "PORT=80"}))
	s.g.Expect(config.Check.Exec.Process.Env).To(ConsistOf("PORT=80", "TOKEN=secret"))
}

// The StartSpec is part of everything that a reconcile knows about its object, about 10 KiB.
func TestCache_KeepsNothingOfReconcile(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.DevServer){
		"with an exec probe": withReadiness(v1alpha1.Probe{Exec: &v1alpha1.ExecProbe{Command: []string{"check"}}}),
		"without":            func(*v1alpha1.DevServer) {},
	} {
		for state, running := range map[string]bool{"running": true, "stopped": false} {
			t.Run(name+", "+state, func(t *testing.T) {
				s := newFixture(t)
				dev := server("web", 0, running80(running), change)
				scope := func() weak.Pointer[process.StartSpec] { // as in a reconcile, the StartSpec is reachable only from here and from the cache
					start := &process.StartSpec{}
					if !running {
						s.g.Expect(s.Prepare(s.ctx(), dev, nil, start)).To(Succeed())
						s.ObserveStopped(s.ctx(), dev)
						return weak.Make(start)
					}
					current := incarnation(1)
					s.g.Expect(s.Prepare(s.ctx(), dev, &current, start)).To(Succeed())
					s.observe(dev, 1)
					return weak.Make(start)
				}()
				s.g.Eventually(func() *process.StartSpec {
					goruntime.GC()
					return scope.Value()
				}).WithTimeout(long).Should(BeNil())
			})
		}
	}
}

func running80(is bool) func(*v1alpha1.DevServer) {
	if is {
		return running(80)
	}
	return func(*v1alpha1.DevServer) {}
}

// An exec probe runs a program on the machine. If the namespace does not permit that, a changed probe does not run.
func TestExecProbe_NotRunWhileStartsAreBlocked(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, running(80), withReadiness(v1alpha1.Probe{Exec: &v1alpha1.ExecProbe{Command: []string{"check"}}}))
	current := incarnation(1)
	start := s.prepareRunning(dev, &current)
	start.Process.Env = []string{"TOKEN=secret"}
	start.Blocked = &lifecycle.Blocked{Reason: v1alpha1.ReasonRuntimeForbidden}
	_, runs := s.config(dev, probe.Key{UID: dev.UID, Incarnation: 1, Kind: probe.Readiness}, dev.Spec.Readiness, s.cacheOf(dev.UID), snapshot{})
	s.g.Expect(runs).To(BeFalse())
	start.Blocked = nil
	s.awaitReadiness(dev, 1, true)
}

func TestLivenessProbe_CountsOnlyAfterReady(t *testing.T) {
	s := newFixture(t)
	here := newSite(t)
	dev := server("web", 0, running(here.port), func(dev *v1alpha1.DevServer) {
		dev.Spec.Liveness = &v1alpha1.Probe{
			HTTPGet:       &v1alpha1.HTTPGetProbe{Path: "/alive", Scheme: v1alpha1.SchemeHTTP},
			PeriodSeconds: ptr.To[int32](1), FailureThreshold: ptr.To[int32](2),
		}
	})
	here.status.Store(http.StatusServiceUnavailable)
	s.backend.listen(listenerOn("127.0.0.1", here.port))
	var observed lifecycle.Observed
	for range 20 {
		s.clock.Step(time.Second)
		observed, _ = s.observe(dev, 1)
		s.g.Expect(observed.Unhealthy).To(BeEmpty(), "the probe does not count before the server has been ready")
	}
	here.status.Store(http.StatusOK)
	s.awaitReadiness(dev, 1, true)
	here.status.Store(http.StatusServiceUnavailable)
	s.g.Eventually(func() string {
		s.clock.Step(time.Second)
		observed, _ = s.observe(dev, 1)
		return observed.Unhealthy
	}, long).Should(HaveSuffix("/alive returned status 503"))
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()))

	s.ObserveStopped(t.Context(), dev)
	setReady(dev, false)
	observed, _ = s.observe(dev, 2)
	s.g.Expect(observed.Unhealthy).To(BeEmpty(), "the failures of another incarnation do not count")
}

func TestObserve_SetsGenerationAndTimeOfConditions(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, running(80))
	dev.Generation = 7
	s.observe(dev, 1)
	s.g.Expect(dev.Status.Conditions).To(HaveLen(2), "the server neither listens nor has printed a URL")
	for _, c := range dev.Status.Conditions {
		s.g.Expect(c.ObservedGeneration).To(Equal(int64(7)))
		s.g.Expect(c.LastTransitionTime).To(Equal(metav1.NewTime(epoch)))
	}
}

func TestObserve_IntervalGrowsWithServers(t *testing.T) {
	s := newFixture(t)
	s.g.Expect(s.rarely()).To(Equal(lookSettled))
	for i := range 1000 {
		s.cacheOf(types.UID(strconv.Itoa(i)))
	}
	s.g.Expect(s.rarely()).To(Equal(1000 * lookPace))
	for i := range 1000 {
		s.Forget(types.UID(strconv.Itoa(i)))
	}
	s.g.Expect(s.rarely()).To(Equal(lookSettled))
}

// A pre-started incarnation uses the ports in the status, also if the proxy is disabled before its start is recorded.
func TestObserve_PreStartedIncarnationKeepsItsPorts(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 8080, running(8080))
	ended(v1alpha1.ReasonFailed)(dev)
	dev.Status.BackendPort, dev.Status.ObservedPorts, dev.Status.Process = 20001, []int32{20001, 9229}, nil
	dev.Spec.Proxy = v1alpha1.ProxyDisabled
	s.observe(dev, 2)
	s.g.Expect(dev.Status.BackendPort).To(Equal(int32(20001)))
	s.g.Expect(dev.Status.ObservedPorts).To(BeEmpty(), "incarnation 2 does not listen yet")
}

// The status of a pre-started incarnation still reports that the previous one is ready.
func TestReadiness_OfPreviousIncarnationDoesNotCount(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, running(8080))
	setReady(dev, true)
	s.backend.listen(listenerOn("127.0.0.1", 8080))
	observed, _ := s.observe(dev, 1)
	s.g.Expect(observed.Ready).To(HaveValue(BeTrue()), "recorded by an earlier manager")
	observed, _ = s.observe(dev, 2)
	s.g.Expect(observed.Ready).To(HaveValue(BeFalse()), "incarnation 2 has not responded yet")
}
