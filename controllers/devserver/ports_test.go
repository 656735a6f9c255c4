// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"net"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestPrepare_UsesFixedPort(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, fixedPort(8080))
	start := s.prepare(dev)
	s.g.Expect(start.Blocked).To(BeNil())
	s.g.Expect(start.Probed).To(BeTrue())
	s.g.Expect(start.Variables).To(Equal(map[string]string{"PORT": "8080", "BROWSER": "none", "PYTHONUNBUFFERED": "1"}))
	s.g.Expect(start.Fingerprint).To(Equal([]string{"port=8080"}))
	s.g.Expect(dev.Status.Port).To(Equal(int32(8080)))
}

func TestPrepare_KeepsVariablesOfSpec(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0, fixedPort(8080))
	dev.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "BROWSER", Value: "firefox"}, {Name: "PORT", Value: "1"}}
	s.g.Expect(s.prepare(dev).Variables).To(Equal(map[string]string{"PORT": "8080", "PYTHONUNBUFFERED": "1"}))
}

func TestAllocatedPort_IsStable(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0)
	start := s.prepare(dev)
	chosen := dev.Status.Port
	s.g.Expect(chosen).To(And(BeNumerically(">=", 20000), BeNumerically("<=", 20009)))
	s.g.Expect(s.prepare(dev).Fingerprint).To(Equal(start.Fingerprint))

	again := server("web", 0)
	s.restartManager(t)
	s.prepare(again)
	s.g.Expect(again.Status.Port).To(Equal(chosen), "the port is derived from the UID")
}

func TestPortClaim_BelongsToHolderThenOldest(t *testing.T) {
	for name, tc := range map[string]struct {
		dev, other *v1alpha1.DevServer
		loses      bool
	}{
		"the other is older":                         {server("b", 1, fixedPort(8080)), server("a", 0, fixedPort(8080)), true},
		"the other is younger":                       {server("a", 0, fixedPort(8080)), server("b", 1, fixedPort(8080)), false},
		"the same age, the other's UID is lower":     {server("b", 0, fixedPort(8080)), server("a", 0, fixedPort(8080)), true},
		"the same age, the other's UID is higher":    {server("a", 0, fixedPort(8080)), server("b", 0, fixedPort(8080)), false},
		"another port":                               {server("b", 1, fixedPort(8080)), server("a", 0, fixedPort(8081)), false},
		"the other has it allocated":                 {server("b", 1, fixedPort(20003)), server("a", 0, assignedPort(20003)), true},
		"the older one is stopped":                   {server("b", 1, fixedPort(8080)), server("a", 0, fixedPort(8080), stopped), false},
		"the older one is stopped but still runs":    {server("b", 1, fixedPort(8080)), server("a", 0, fixedPort(8080), running(8080), stopped), true},
		"the older one is deleted":                   {server("b", 1, fixedPort(8080)), server("a", 0, fixedPort(8080), deleted), false},
		"the older one is deleted but still runs":    {server("b", 1, fixedPort(8080)), server("a", 0, fixedPort(8080), running(8080), deleted), true},
		"the older one has completed":                {server("b", 1, fixedPort(8080)), server("a", 0, fixedPort(8080), ended("Completed")), false},
		"the older one was stopped and starts again": {server("b", 1, fixedPort(8080)), server("a", 0, fixedPort(8080), ended("Stopped")), true},
		"the younger one runs":                       {server("a", 0, fixedPort(8080)), server("b", 1, fixedPort(8080), running(8080)), true},
		"the younger one runs elsewhere":             {server("a", 0, fixedPort(8080)), server("b", 1, fixedPort(8080), running(8081)), false},
		"the younger one restarts": {server("a", 0, fixedPort(8080)), server("b", 1, fixedPort(8080), assignedPort(8080), ended("Stopped"), func(dev *v1alpha1.DevServer) {
			dev.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRestarting, Status: metav1.ConditionTrue}}
		}), true},
		"the younger one is about to start": {server("a", 0, fixedPort(8080)), server("b", 1, fixedPort(8080), assignedPort(8080), func(dev *v1alpha1.DevServer) {
			dev.Status.Incarnation = 1
		}), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, tc.other)
			start := s.prepare(tc.dev)
			if !tc.loses {
				s.g.Expect(start.Blocked).To(BeNil())
				s.g.Expect(tc.dev.Status.Port).To(Equal(*tc.dev.Spec.Port))
				return
			}
			s.g.Expect(start.Blocked).To(HaveValue(Equal(lifecycle.Blocked{
				Conflict: true, Reason: v1alpha1.ReasonPortClaimed, Retry: conflictRetry,
				Message: strings.ReplaceAll("Port PORT belongs to DevServer default/"+tc.other.Name+
					", which claimed it first. Stop or delete that DevServer, or set another spec.port.", "PORT", list([]int32{*tc.dev.Spec.Port})),
			})))
			s.g.Expect(tc.dev.Status.Port).To(BeZero(), "the loser has no port")
		})
	}
}

// permitting returns a Permission that permits the runtime Host in these namespaces only.
func permitting(namespaces ...string) *process.Permission {
	objects := []client.Object{}
	for _, name := range namespaces {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelAllowRuntime: "Host"}}})
	}
	reader := fake.NewClientBuilder().WithObjects(objects...).Build()
	return &process.Permission{Cache: reader, Live: reader, Namespace: "berth-system"}
}

func inNamespace(namespace string) func(*v1alpha1.DevServer) {
	return func(dev *v1alpha1.DevServer) { dev.Namespace = namespace }
}

func TestPortClaim_OfForbiddenNamespaceCountsOnlyWhileRunning(t *testing.T) {
	forbidden := inNamespace("forbidden")
	s := newFixture(t, server("a", 0, fixedPort(8080), forbidden), server("b", 0, fixedPort(20000), forbidden), server("c", 0, fixedPort(8081), forbidden, running(8081)))
	s.permission = permitting("default")
	dev := server("web", 1, fixedPort(8080))
	s.g.Expect(s.prepare(dev).Blocked).To(BeNil())
	s.g.Expect(dev.Status.Port).To(BeEquivalentTo(8080))

	s.ports = Range{First: 20000, Last: 20000}
	s.g.Expect(s.prepare(server("any", 1)).Blocked).To(BeNil(), "such an object does not use up the range either")

	start := s.prepare(server("late", 1, fixedPort(8081)))
	s.g.Expect(start.Blocked).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonPortClaimed),
		HaveField("Message", HavePrefix("Port 8081 belongs to a DevServer in another namespace, which")))), "the permission was withdrawn while the server runs")
}

func TestPortClaim_OfBlockedServerDoesNotCount(t *testing.T) {
	blocked := func(dev *v1alpha1.DevServer) {
		dev.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInstanceMissing, ObservedGeneration: dev.Generation}}
	}
	s := newFixture(t, server("a", 0, fixedPort(8080), blocked))
	s.g.Expect(s.prepare(server("b", 1, fixedPort(8080))).Blocked).To(BeNil())
}

func TestAllocatedPort_DiffersForConcurrentServers(t *testing.T) {
	a, b := server("a", 0), server("b", 0)
	s := newFixture(t, a.DeepCopy(), b.DeepCopy())
	s.ports = Range{First: 20000, Last: 20001}
	s.g.Expect(s.prepare(a).Blocked).To(BeNil())
	s.g.Expect(s.prepare(b).Blocked).To(BeNil(), "although the port of the first one is not in the cache yet")
	s.g.Expect(b.Status.Port).NotTo(Equal(a.Status.Port))

	c := server("c", 0)
	s.g.Expect(s.prepare(c).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonNoFreePort)))
	s.Forget(a.UID)
	s.g.Expect(s.prepare(c).Blocked).To(BeNil(), "the port of a forgotten object is free")
	s.clock.Step(arbitration.ReservationTime)
	s.g.Expect(s.prepare(server("d", 0)).Blocked).To(BeNil(), "a reservation that was never written expires")
}

func TestPortReservation_HoldsUntilExpiry(t *testing.T) {
	a, b := server("a", 0, fixedPort(8080), stopped), server("b", 1, fixedPort(8080))
	s := newFixture(t, a.DeepCopy(), b.DeepCopy())
	s.g.Expect(s.prepare(b).Blocked).To(BeNil())
	a.Spec.State = v1alpha1.StateRunning
	s.g.Expect(s.prepare(a).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortClaimed)), "the other one may be starting now")
	s.g.Expect(s.prepare(b).Blocked).To(BeNil())
	s.clock.Step(arbitration.ReservationTime)
	s.g.Expect(s.prepare(a).Blocked).To(BeNil())
}

func TestAllocatedPort_MovesOnlyBeforeFirstRun(t *testing.T) {
	older := server("a", 0, fixedPort(20004))
	s := newFixture(t, older)
	fresh := server("b", 1, assignedPort(20004))
	s.g.Expect(s.prepare(fresh).Blocked).To(BeNil())
	s.g.Expect(fresh.Status.Port).NotTo(Equal(int32(20004)), "nothing has run on that port, so any other will do")

	known := server("c", 1, assignedPort(20004), ended("Stopped"))
	s.g.Expect(s.prepare(known).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortClaimed)), "a server that has run keeps its address")
	s.g.Expect(known.Status.Port).To(Equal(int32(20004)))
}

func TestForeignProcess_BlocksFixedPort(t *testing.T) {
	s := newFixture(t, server("db", 5, fixedPort(9)))
	blocked := func(dev *v1alpha1.DevServer) *lifecycle.Blocked { return s.prepare(dev).Blocked }

	s.backend.owners[8080] = &runtime.PortOwner{PID: 1234, Command: "python3 -m  http.server\x00 8080"}
	s.g.Expect(blocked(server("web", 0, fixedPort(8080)))).To(HaveValue(Equal(lifecycle.Blocked{
		Conflict: true, Reason: v1alpha1.ReasonPortInUse, Retry: conflictRetry,
		Message: "Port 8080 is used by pid 1234 (python3 -m http.server 8080). Stop that process or set another spec.port.",
	})))
	s.backend.owners[8080] = &runtime.PortOwner{PID: 7, Command: "x", UID: "uid-db"}
	s.g.Expect(blocked(server("web", 0, fixedPort(8080))).Message).To(ContainSubstring("used by pid 7 (x) of DevServer default/db."))
	s.backend.owners[8080] = &runtime.PortOwner{User: 0}
	s.g.Expect(blocked(server("web", 0, fixedPort(8080))).Message).To(ContainSubstring("used by a process of user 0 whose PID cannot be determined."))
	s.backend.owners[8080] = &runtime.PortOwner{PID: 7, Command: strings.Repeat("ü", 500)}
	s.g.Expect(len([]rune(blocked(server("web", 0, fixedPort(8080))).Message))).To(BeNumerically("<", 250))
	s.backend.owners[8080] = &runtime.PortOwner{PID: 7, Command: "x", UID: "uid-web"}
	s.g.Expect(blocked(server("web", 0, fixedPort(8080)))).To(BeNil(), "its own process does not block it")
}

// Finding the process that listens on a port can take long, and must not delay the servers with other ports.
func TestForeignProcess_InspectionDelaysNoOtherServer(t *testing.T) {
	s := newFixture(t)
	s.backend.owners[8080] = &runtime.PortOwner{PID: 1234, Command: "nginx"}
	begun, end := make(chan struct{}), make(chan struct{})
	s.backend.inspecting = func(port int32) {
		if port == 8080 {
			close(begun)
			<-end
		}
	}
	prepare := func(name string, port int32) chan *lifecycle.Blocked {
		blocked := make(chan *lifecycle.Blocked, 1)
		go func() {
			var start process.StartSpec
			_ = s.Prepare(s.ctx(), server(name, 0, fixedPort(port)), nil, &start)
			blocked <- start.Blocked
		}()
		return blocked
	}
	slow := prepare("slow", 8080)
	<-begun
	quick := prepare("quick", 8081)
	defer func() { // both end, also if the test fails
		close(end)
		s.g.Expect(<-slow).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortInUse)))
	}()
	s.g.Eventually(quick).WithTimeout(long).Should(Receive(BeNil()))
}

// Another object may claim the port while the processes are inspected. The claims are therefore compared again while the ports are locked.
func TestForeignProcess_ClaimDuringInspectionWins(t *testing.T) {
	s := newFixture(t)
	rival := server("rival", 1, fixedPort(8080))
	s.backend.inspecting = func(int32) { s.reserved.Reserve(8080, rival.UID, s.clock.Now()) }
	s.g.Expect(s.store.Create(s.ctx(), rival)).To(Succeed())
	s.g.Expect(s.prepare(server("web", 0, fixedPort(8080))).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortClaimed)))
}

func TestForeignProcess_MovesAllocatedPortBeforeFirstRun(t *testing.T) {
	s := newFixture(t)
	dev := server("web", 0)
	s.prepare(dev)
	chosen := dev.Status.Port
	s.backend.owners[chosen] = &runtime.PortOwner{PID: 7, Command: "x"}
	s.inUse[chosen] = true

	s.g.Expect(s.prepare(dev).Blocked).To(BeNil())
	s.g.Expect(dev.Status.Port).NotTo(Equal(chosen), "nothing has run on that port, so any other will do")

	known := server("known", 0, assignedPort(chosen), ended("Stopped"))
	s.g.Expect(s.prepare(known).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortInUse)), "a server that has run keeps its address")
}

func TestNoFreePort_BlocksUntilOneIsFree(t *testing.T) {
	s := newFixture(t)
	for port := int32(20000); port <= 20009; port++ {
		s.inUse[port] = true
	}
	dev := server("web", 0)
	s.g.Expect(s.prepare(dev).Blocked).To(HaveValue(And(
		HaveField("Reason", v1alpha1.ReasonNoFreePort), HaveField("Message", ContainSubstring("20000 to 20009")))))
	s.g.Expect(dev.Status.Port).To(BeZero())
	s.inUse[20007] = false
	s.g.Expect(s.prepare(dev).Blocked).To(BeNil())
	s.g.Expect(dev.Status.Port).To(Equal(int32(20007)))
}

func TestRunningServer_KeepsItsPort(t *testing.T) {
	s := newFixture(t, server("a", 0, fixedPort(8081)))
	dev := server("web", 1, fixedPort(8080), running(8080))
	current := incarnation(1)
	start := s.prepareRunning(dev, &current)
	s.g.Expect(start.Blocked).To(BeNil())

	*dev.Spec.Port = 8081
	dev.Generation = 2
	start = s.prepareRunning(dev, &current)
	s.g.Expect(start.Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortClaimed)), "the server keeps running on its old port")
	s.g.Expect(start.Fingerprint).To(Equal([]string{"port=8081"}))
	s.g.Expect(dev.Status.Port).To(Equal(int32(8080)))

	*dev.Spec.Port = 8082
	start = s.prepareRunning(dev, &current)
	s.g.Expect(start.Blocked).To(BeNil())
	s.g.Expect(start.Variables).To(HaveKeyWithValue("PORT", "8082"))
	s.g.Expect(dev.Status.Port).To(Equal(int32(8080)), "the running process has this port")
}

func TestCompletedServer_ClaimsNoPort(t *testing.T) {
	s := newFixture(t, server("a", 0, fixedPort(8080), running(8080)))
	dev := server("web", 1, fixedPort(8080), ended("Completed"))
	s.g.Expect(s.prepare(dev).Blocked).To(BeNil(), "a completed server does not conflict")
	dev.Generation = 2
	s.g.Expect(s.prepare(dev).Blocked).To(HaveValue(HaveField("Reason", v1alpha1.ReasonPortClaimed)))
}

func TestPrepare_WorksWithoutInspection(t *testing.T) {
	s := newFixture(t)
	s.inspector = nil
	s.inUse[20000] = true
	s.g.Expect(s.prepare(server("web", 0)).Blocked).To(BeNil())
}

func TestRivals_ClaimTheSamePort(t *testing.T) {
	a, b, c, d := server("a", 0, fixedPort(8080)), server("b", 1, assignedPort(8080)), server("c", 2, fixedPort(8081)), server("d", 3, fixedPort(8080))
	s := newFixture(t, a, b, c, d)
	var names []string
	for _, request := range contested.Rivals(t.Context(), s.client, a) {
		names = append(names, request.Name)
	}
	s.g.Expect(names).To(ConsistOf("b", "d"))
	s.g.Expect(contested.Rivals(t.Context(), s.client, server("e", 0))).To(BeEmpty())
}

func TestContestedChanged_FiltersEvents(t *testing.T) {
	g := NewWithT(t)
	p := contested.Changed()
	update := func(before, after client.Object) bool {
		return p.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	}
	g.Expect(p.Create(event.CreateEvent{Object: server("a", 0)})).To(BeFalse())
	g.Expect(p.Delete(event.DeleteEvent{Object: server("a", 0)})).To(BeTrue())
	g.Expect(update(server("a", 0, fixedPort(1)), server("a", 0, fixedPort(1)))).To(BeFalse())
	g.Expect(update(server("a", 0, fixedPort(1)), server("a", 0, fixedPort(2)))).To(BeTrue())
	g.Expect(update(server("a", 0, fixedPort(1)), server("a", 0, fixedPort(1), stopped))).To(BeTrue())
	g.Expect(update(server("a", 0, running(1)), server("a", 0, assignedPort(1), ended("Stopped")))).To(BeTrue())
	g.Expect(update(&corev1.Pod{}, server("a", 0))).To(BeFalse())
}

func TestRange_RejectsInvalidPorts(t *testing.T) {
	g := NewWithT(t)
	g.Expect(DefaultRange.validate()).To(Succeed())
	for _, bad := range []Range{{0, 1}, {5, 4}, {1, 65536}} {
		_, err := New(nil, nil, nil, nil, Options{Ports: bad}, func(types.UID) {})
		g.Expect(err).To(MatchError(ContainSubstring("use ports from 1 to 65535")))
	}
}

func TestBindable_IsFalseForUsedPort(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "::", "::1"} {
		t.Run(host, func(t *testing.T) {
			g := NewWithT(t)
			if !hasAddress(host) {
				t.Logf("no address %s on this machine", host)
				return
			}
			listener, port := listenOutside(t, host)
			g.Expect(bindable(port)).To(BeFalse())
			g.Expect(answers(t.Context(), listener.Addr().String())).To(BeTrue())
			g.Expect(listener.Close()).To(Succeed())
			g.Eventually(func() bool { return bindable(port) }, long).Should(BeTrue())
			g.Expect(answers(t.Context(), join("127.0.0.1", port))).To(BeFalse())
		})
	}
}

// hasAddress reports whether this machine has the address.
func hasAddress(host string) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

// listenOutside listens on a port outside the ephemeral range. A port in that range may be in use as the local port of a connection.
func listenOutside(t *testing.T, host string) (net.Listener, int32) {
	t.Helper()
	for try := range 1000 {
		port := int32(10000 + (os.Getpid()*37+try)%8000)
		if !bindable(port) {
			continue
		}
		if listener, err := net.Listen("tcp", join(host, port)); err == nil {
			return listener, port
		}
	}
	t.Fatal("no free port to listen on")
	return nil, 0
}
