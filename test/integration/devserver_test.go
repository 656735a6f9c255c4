// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/devserver"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// newServer returns a DevServer whose command contains $(PORT), which Berth replaces with the port of the server.
func newServer(namespace, name string) *v1alpha1.DevServer {
	dev := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	dev.Spec.Process.Command = []string{"serve", "--port", "$(PORT)"}
	return dev
}

// withAlwaysReadyProbe sets a readiness probe that always succeeds, so that the server is ready as soon as it runs. Use it in specs that do not test sockets.
func withAlwaysReadyProbe(dev *v1alpha1.DevServer) *v1alpha1.DevServer {
	dev.Spec.Readiness = &v1alpha1.Probe{Exec: &v1alpha1.ExecProbe{Command: []string{"true"}}}
	return dev
}

func onPort(dev *v1alpha1.DevServer, port int32) *v1alpha1.DevServer {
	dev.Spec.Port = ptr.To(port)
	return dev
}

// serve listens on a port of this machine until the end of the spec, in place of a process, because processes of the fake runtime have no sockets. It
// returns the port. If the argument is 0, it chooses a free port.
func serve(port int32) int32 {
	GinkgoHelper()
	var listener net.Listener
	Eventually(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		return err
	}).Should(Succeed())
	server := &http.Server{Handler: http.NotFoundHandler()}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	DeferCleanup(func() {
		Expect(server.Close()).To(Succeed())
		Eventually(ended).Should(Receive(MatchError(http.ErrServerClosed)))
	})
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// unusedPort returns a port that no other spec uses and on which no process is expected to listen.
func unusedPort() int32 {
	GinkgoHelper()
	return 31000 + int32(GinkgoParallelProcess())*100 + nextPort()
}

var lastPort int32

func nextPort() int32 {
	lastPort++
	return lastPort
}

func listenerOn(port int32) runtime.Listener {
	return runtime.Listener{Address: "127.0.0.1", Port: port, PID: 1}
}

// waitForPort waits until the server runs and has a port, and returns the port.
func waitForPort(ctx context.Context, dev *v1alpha1.DevServer) int32 {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		get(ctx, g, dev)
		g.Expect(dev.Status.Process).NotTo(BeNil())
		g.Expect(dev.Status.Port).NotTo(BeZero())
	}).Should(Succeed())
	return dev.Status.Port
}

var _ = Describe("a DevServer", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	It("is assigned a port, is found there, and keeps its URL across restarts", func(ctx context.Context) {
		dev := newServer(namespace, "web")
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		port := waitForPort(ctx, dev)
		Expect(port).To(And(BeNumerically(">=", devserver.DefaultRange.First), BeNumerically("<=", devserver.DefaultRange.Last)))
		started, _ := rt.Process(dev.UID)
		Expect(started.Command).To(Equal([]string{"serve", "--port", strconv.Itoa(int(port))}))
		Expect(started.Env).To(ContainElements("PORT="+strconv.Itoa(int(port)), "BROWSER=none", "PYTHONUNBUFFERED=1"))
		waitForCondition(ctx, dev, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNotReady)
		waitForCondition(ctx, dev, v1alpha1.ConditionPortVerified, metav1.ConditionFalse, v1alpha1.ReasonNotListening)
		Expect(dev.Status.URL).To(BeEmpty())

		serve(port)
		rt.Listen(dev.UID, listenerOn(port))
		waitForReady(ctx, dev)
		address := fmt.Sprintf("http://127.0.0.1:%d/", port)
		Expect(dev.Status.URL).To(Equal(address))
		Expect(dev.Status.ObservedPorts).To(Equal([]int32{port}))
		waitForConditionAbsent(ctx, dev, v1alpha1.ConditionPortVerified)
		expectNoWrites(ctx, dev)

		seen := follow(ctx, dev, &v1alpha1.DevServerList{})
		update(ctx, dev, func() { dev.Spec.RestartToken = "again" })
		waitForReady(ctx, dev)
		Eventually(seen.saw).WithArguments(v1alpha1.ConditionReady, int64(2)).Should(BeTrue())
		seen.stop()
		Expect(seen.wasMissing()).To(BeFalse())
		Expect(seen.saw(v1alpha1.ConditionRestarting, 1)).To(BeTrue())
		for _, state := range seen.states {
			Expect(state.(*v1alpha1.DevServer).Status.URL).To(Equal(address))
		}
		Expect(dev.Status.Port).To(Equal(port))
		Expect(rt.Count(dev.UID, fake.Start)).To(Equal(2))
		expectNoWrites(ctx, dev)
	})

	It("does not change when the manager is replaced", func(ctx context.Context) {
		dev := onPort(newServer(namespace, "web"), serve(0))
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		waitForPort(ctx, dev)
		rt.Listen(dev.UID, listenerOn(dev.Status.Port))
		waitForReady(ctx, dev)
		version := dev.ResourceVersion
		stopManager()
		before := rt.Looks(dev.UID)
		stopManager = startManager()
		Eventually(func() int { return rt.Looks(dev.UID) }).Should(BeNumerically(">", before))
		expectNoWrites(ctx, dev)
		Expect(dev.ResourceVersion).To(Equal(version))
		Expect(rt.Count(dev.UID, fake.Start)).To(Equal(1))
	})

	It("waits for a port that another DevServer has claimed, and starts when that one is deleted", func(ctx context.Context) {
		port := unusedPort()
		owner, loser := withAlwaysReadyProbe(onPort(newServer(namespace, "owner"), port)), withAlwaysReadyProbe(onPort(newServer(namespace, "loser"), port))
		Expect(k8s.Create(ctx, owner)).To(Succeed())
		waitForReady(ctx, owner)
		Expect(k8s.Create(ctx, loser)).To(Succeed())
		Expect(waitForStalled(ctx, loser, v1alpha1.ReasonPortClaimed)).To(ContainSubstring(
			"Port %d belongs to DevServer %s/owner, which claimed it first", port, namespace))
		waitForCondition(ctx, loser, v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonPortClaimed)
		expectNoWrites(ctx, loser)
		Expect(rt.Count(loser.UID, fake.Start)).To(BeZero())

		By("keeping the port for its owner across a restart of the owner")
		update(ctx, owner, func() { owner.Spec.RestartToken = "again" })
		waitForReady(ctx, owner)
		Expect(rt.Count(loser.UID, fake.Start)).To(BeZero())

		Expect(k8s.Delete(ctx, owner)).To(Succeed())
		waitUntilGone(ctx, owner)
		waitForReady(ctx, loser)
		waitForConditionAbsent(ctx, loser, v1alpha1.ConditionConflict)
		Expect(loser.Status.RestartCount).To(BeZero())
	})

	It("is the only one to get a port that many DevServers claim at once", func(ctx context.Context) {
		port := unusedPort()
		var all []*v1alpha1.DevServer
		for n := range 6 {
			dev := withAlwaysReadyProbe(onPort(newServer(namespace, fmt.Sprintf("web-%d", n)), port))
			Expect(k8s.Create(ctx, dev)).To(Succeed())
			all = append(all, dev)
		}
		Eventually(func(g Gomega) {
			ready, conflicts := 0, 0
			for _, dev := range all {
				get(ctx, g, dev)
				if meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionReady) {
					ready++
				}
				if meta.IsStatusConditionTrue(dev.Status.Conditions, v1alpha1.ConditionConflict) {
					conflicts++
				}
			}
			g.Expect(ready).To(Equal(1))
			g.Expect(conflicts).To(Equal(len(all) - 1))
		}).Should(Succeed())
		starts := 0
		for _, dev := range all {
			starts += rt.Count(dev.UID, fake.Start)
		}
		Expect(starts).To(Equal(1), "only the owner of the port starts")
	})

	It("is assigned a port that no other DevServer has", func(ctx context.Context) {
		taken := map[int32]string{}
		var all []*v1alpha1.DevServer
		for n := range 12 {
			dev := withAlwaysReadyProbe(newServer(namespace, fmt.Sprintf("web-%d", n)))
			Expect(k8s.Create(ctx, dev)).To(Succeed())
			all = append(all, dev)
		}
		for _, dev := range all {
			waitForReady(ctx, dev)
			Expect(taken).NotTo(HaveKey(dev.Status.Port))
			taken[dev.Status.Port] = dev.Name
		}
	})

	It("is assigned another port when an older DevServer claims its preferred port", func(ctx context.Context) {
		older := withAlwaysReadyProbe(onPort(newServer(namespace, "older"), 20123))
		Expect(k8s.Create(ctx, older)).To(Succeed())
		waitForReady(ctx, older)
		stopManager()
		younger := withAlwaysReadyProbe(newServer(namespace, "younger"))
		Expect(k8s.Create(ctx, younger)).To(Succeed())
		younger.Status.Port = 20123
		Expect(k8s.Status().Update(ctx, younger)).To(Succeed())
		stopManager = startManager()
		waitForReady(ctx, younger)
		Expect(younger.Status.Port).NotTo(BeEquivalentTo(20123))
	})

	It("names the process that uses its port, and waits for the port", func(ctx context.Context) {
		port := unusedPort()
		rt.Occupy(port, &runtime.PortOwner{PID: 1234, Command: "python3 -m http.server"})
		DeferCleanup(func() { rt.Occupy(port, nil) })
		dev := withAlwaysReadyProbe(onPort(newServer(namespace, "web"), port))
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		Expect(waitForStalled(ctx, dev, v1alpha1.ReasonPortInUse)).To(Equal(
			fmt.Sprintf("Port %d is used by pid 1234 (python3 -m http.server). Stop that process or set another spec.port.", port)))
		waitForCondition(ctx, dev, v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonPortInUse)
		expectNoWrites(ctx, dev)
		rt.Occupy(port, nil)
		waitForReady(ctx, dev)
		Expect(dev.Status.RestartCount).To(BeZero(), "waiting does not count as a restart")
		Expect(rt.Count(dev.UID, fake.Start)).To(Equal(1))
	})

	It("reports another program that receives its connections, and is Ready again without that program", func(ctx context.Context) {
		port := serve(0)
		dev := onPort(newServer(namespace, "web"), port)
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		waitForPort(ctx, dev)
		rt.Listen(dev.UID, listenerOn(port))
		waitForReady(ctx, dev)
		rt.Occupy(port, &runtime.PortOwner{Socket: 7, PID: 1234, Command: "node server.js"})
		DeferCleanup(func() { rt.Occupy(port, nil) })
		rt.Announce(dev.UID)
		message := fmt.Sprintf("Connections to port %d also reach pid 1234 (node server.js). Stop the other server, or set another spec.port.", port)
		Expect(waitForStalled(ctx, dev, v1alpha1.ReasonPortShared)).To(Equal(message))
		Expect(waitForCondition(ctx, dev, v1alpha1.ConditionConflict, metav1.ConditionTrue, v1alpha1.ReasonPortShared).Message).To(Equal(message))
		expectNoWrites(ctx, dev)

		By("not stopping the process for a restart that could not start again")
		update(ctx, dev, func() { dev.Spec.RestartToken = "again" })
		waitForCondition(ctx, dev, v1alpha1.ConditionDriftDetected, metav1.ConditionTrue, v1alpha1.ReasonPortShared)
		expectNoWrites(ctx, dev)
		Expect(rt.Count(dev.UID, fake.Stop)).To(BeZero())

		By("writing nothing after a restart of the manager")
		stopManager()
		version := dev.ResourceVersion
		before := rt.Looks(dev.UID)
		stopManager = startManager()
		Eventually(func() int { return rt.Looks(dev.UID) }).Should(BeNumerically(">", before))
		expectNoWrites(ctx, dev)
		Expect(dev.ResourceVersion).To(Equal(version))

		rt.Occupy(port, nil)
		rt.Announce(dev.UID)
		Eventually(func() int { return rt.Count(dev.UID, fake.Start) }).Should(Equal(2), "the requested restart follows")
		waitForReady(ctx, dev)
		waitForConditionAbsent(ctx, dev, v1alpha1.ConditionConflict)
	})

	It("is found on the port on which it listens, and reports that this is not the assigned port", func(ctx context.Context) {
		dev := onPort(newServer(namespace, "web"), unusedPort())
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		waitForPort(ctx, dev)
		other := serve(0)
		rt.Listen(dev.UID, listenerOn(other))
		waitForReady(ctx, dev)
		condition := waitForCondition(ctx, dev, v1alpha1.ConditionPortVerified, metav1.ConditionFalse, v1alpha1.ReasonOtherPort)
		Expect(condition.Message).To(ContainSubstring("listens on %d instead of %d", other, *dev.Spec.Port))
		Expect(dev.Status.URL).To(Equal(fmt.Sprintf("http://127.0.0.1:%d/", other)))
		Expect(dev.Status.ObservedPorts).To(Equal([]int32{other}))
	})

	It("keeps its old port while another DevServer owns the new one", func(ctx context.Context) {
		first, second := unusedPort(), unusedPort()
		owner, dev := withAlwaysReadyProbe(onPort(newServer(namespace, "owner"), second)), withAlwaysReadyProbe(onPort(newServer(namespace, "web"), first))
		for _, object := range []process.Object{owner, dev} {
			Expect(k8s.Create(ctx, object)).To(Succeed())
			waitForReady(ctx, object)
		}
		update(ctx, dev, func() { dev.Spec.Port = ptr.To(second) })
		waitForCondition(ctx, dev, v1alpha1.ConditionDriftDetected, metav1.ConditionTrue, v1alpha1.ReasonPortClaimed)
		Expect(dev.Status.Port).To(Equal(first))
		Expect(rt.Count(dev.UID, fake.Stop)).To(BeZero())
		update(ctx, owner, func() { owner.Spec.State = v1alpha1.StateStopped })
		Eventually(func(g Gomega) {
			get(ctx, g, dev)
			g.Expect(dev.Status.Port).To(Equal(second))
		}).Should(Succeed())
		waitForReady(ctx, dev)
		Expect(rt.Count(dev.UID, fake.Start)).To(Equal(2))
	})

	It("belongs to its Instance", func(ctx context.Context) {
		dev := withAlwaysReadyProbe(newServer(namespace, "web"))
		dev.Spec.InstanceRef = &v1alpha1.LocalReference{Name: "agent"}
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		Expect(waitForStalled(ctx, dev, v1alpha1.ReasonInstanceMissing)).To(ContainSubstring("Instance agent does not exist"))
		Expect(rt.Count(dev.UID, fake.Start)).To(BeZero())

		instance := newInstance(namespace, "agent", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, dev)
		Expect(dev.OwnerReferences).To(ConsistOf(metav1.OwnerReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Instance", Name: "agent", UID: instance.UID,
			Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(false),
		}))
		expectNoWrites(ctx, dev)
	})

	It("is restarted when its liveness probe fails", func(ctx context.Context) {
		port := serve(0)
		dev := withAlwaysReadyProbe(newServer(namespace, "web"))
		dev.Spec.Liveness = &v1alpha1.Probe{
			TCPSocket:     &v1alpha1.TCPSocketProbe{Port: ptr.To(port)},
			PeriodSeconds: ptr.To[int32](1), FailureThreshold: ptr.To[int32](1),
		}
		dev.Spec.Backoff.InitialSeconds = ptr.To[int32](0)
		dev.Spec.Breaker.FailureThreshold = ptr.To[int32](3)
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		waitForReady(ctx, dev)
		Expect(rt.Count(dev.UID, fake.Start)).To(Equal(1))
		closed := unusedPort()
		update(ctx, dev, func() { dev.Spec.Liveness.TCPSocket.Port = ptr.To(closed) })
		Eventually(func(g Gomega) {
			get(ctx, g, dev)
			g.Expect(dev.Status.LastExit).To(HaveValue(And(HaveField("Reason", v1alpha1.ReasonUnhealthy), HaveField("Message", HavePrefix("The liveness probe failed: ")))))
		}).Should(Succeed())
		Expect(waitForStalled(ctx, dev, v1alpha1.ReasonCircuitOpen)).To(ContainSubstring("berth restart devserver/"))

		update(ctx, dev, func() { dev.Spec.Liveness = nil }) // closes the breaker: liveness does not affect how the process starts, but caused the failures
		waitForReady(ctx, dev)
	})

	It("leaves nothing when it is deleted", func(ctx context.Context) {
		dev := withAlwaysReadyProbe(newServer(namespace, "web"))
		Expect(k8s.Create(ctx, dev)).To(Succeed())
		waitForReady(ctx, dev)
		Expect(k8s.Delete(ctx, dev, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		waitUntilGone(ctx, dev)
	})
})
