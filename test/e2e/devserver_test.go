// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"os"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/reuseport"
)

// lifecycleTimeout bounds a spec with the whole life of a server, including the installation of its packages.
const lifecycleTimeout = 15 * time.Minute

// sharingServer listens with SO_REUSEPORT on the port of its argument, with two workers, one of which has a socket of its own.
const sharingServer = `
import http.server, os, socket, socketserver, sys
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
def serve():
    return Server(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)
server = serve()
if os.fork() == 0 and os.fork() == 0:
    server = serve()
server.serve_forever()
`

var _ = Describe("DevServer", func() {
	DescribeTable("runs through its whole life and reports its URL", testServerLifecycle,
		Entry("Go", NodeTimeout(lifecycleTimeout), "Hello from a dev server written in Go", func(context.Context) *testObject {
			return devServer("gohello", "", "gohello")
		}),
		Entry("Python's http.server", NodeTimeout(lifecycleTimeout), "Directory listing", func(context.Context) *testObject {
			return devServer("python", suiteBerth.root, "python3", "-m", "http.server", "$(PORT)", "--bind", "127.0.0.1")
		}),
		Entry("Vite", NodeTimeout(lifecycleTimeout), "Vite in a berth", func(ctx context.Context) *testObject {
			return devServer("vite", installProject(ctx, "samples/vite"), "npm", "run", "dev", "--", "--port", "$(PORT)", "--strictPort")
		}),
		Entry("webpack-dev-server", Label(anyUser), NodeTimeout(lifecycleTimeout), "webpack in a berth", func(ctx context.Context) *testObject {
			return devServer("webpack", installProject(ctx, "test/e2e/projects/webpack"), "npm", "run", "dev", "--", "--port", "$(PORT)")
		}),
		Entry("Next", Label(anyUser), NodeTimeout(lifecycleTimeout), "Next in a berth", func(ctx context.Context) *testObject {
			return devServer("next", installProject(ctx, "test/e2e/projects/next"), "npm", "run", "dev", "--", "-p", "$(PORT)", "-H", "127.0.0.1")
		}),
	)

	It("is found on a port other than the assigned one", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		other := freePort()
		s := devServer("moved", "", "python3", "-m", "http.server", other, "--bind", "127.0.0.1").create(ctx).waitUntilReady(ctx)
		s.waitForResponse("Directory listing")
		Expect(s.server().Status.URL).To(ContainSubstring(":" + other))
		Expect(s.condition(v1alpha1.ConditionPortVerified).Reason).To(Equal(v1alpha1.ReasonOtherPort))
	})

	It("names the process that uses its port, and starts when the port is free", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		holder := listenOnFreePort()
		// The spec itself closes the listener later; this cleanup is for a spec that fails before that.
		DeferCleanup(func() { _ = holder.Close() })
		s := devServer("late", "", "gohello")
		s.server().Spec.Port = portOf(holder)
		s.create(ctx)
		s.waitForCondition(ctx, v1alpha1.ConditionConflict, v1alpha1.ReasonPortInUse)
		Expect(s.condition(v1alpha1.ConditionConflict).Message).To(ContainSubstring("pid"))
		Expect(s.status().RestartCount).To(BeZero())

		Expect(holder.Close()).To(Succeed())
		s.waitUntilReady(ctx)
		s.waitForResponse("Hello")
		Expect(s.status().RestartCount).To(BeZero(), "waiting for a port must not count as restarts")
	})

	It("reports another program that receives its connections, also of another DevServer", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		port := freePort()
		first := devServer("first", "", "python3", "-c", sharingServer, port).create(ctx).waitUntilReady(ctx)
		second := devServer("second", "", "python3", "-c", sharingServer, port).create(ctx)
		second.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonPortShared)
		Expect(second.condition(v1alpha1.ConditionStalled).Message).To(ContainSubstring("also reach pid %d (", first.status().Process.PID))
		Expect(second.condition(v1alpha1.ConditionStalled).Message).To(ContainSubstring(") of DevServer " + first.GetNamespace() + "/" + first.GetName()))
		first.waitForCondition(ctx, v1alpha1.ConditionConflict, v1alpha1.ReasonPortShared)
		first.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
		second.delete(ctx)
		second.waitUntilGone(ctx)

		outsider, err := reuseport.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port), false)
		Expect(err).NotTo(HaveOccurred())
		first.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonPortShared)
		Expect(first.condition(v1alpha1.ConditionStalled).Message).To(ContainSubstring("also reach pid %d (", os.Getpid()))
		pid := first.status().Process.PID
		Expect(outsider.Close()).To(Succeed())
		first.waitUntilReady(ctx)
		Expect(first.status().Process.PID).To(Equal(pid), "the process has kept running")
	})

	It("is deleted with its Instance", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		owner := instance("owner", "sleep", "infinity").create(ctx).waitUntilReady(ctx)
		s := devServer("owned", "", "gohello")
		s.server().Spec.InstanceRef = &v1alpha1.LocalReference{Name: owner.GetName()}
		s.create(ctx).waitUntilReady(ctx)
		owner.delete(ctx)
		s.waitUntilGone(ctx)
	})
})

// testServerLifecycle tests the life of one server: the server is started, reports its URL, is restarted, killed from outside, stopped, started again and
// deleted.
func testServerLifecycle(ctx context.Context, words string, prepare func(context.Context) *testObject) {
	s := prepare(ctx).create(ctx)

	By("waiting until the server is Ready and answers at its URL")
	s.waitUntilReady(ctx).waitForResponse(words)
	// A server can be Ready before it prints its URL, which may name the host differently (localhost instead of 127.0.0.1).
	s.waitForCondition(ctx, v1alpha1.ConditionURLDetected, v1alpha1.ReasonDetected)
	port := s.server().Status.Port
	url := s.server().Status.URL
	Expect(s.server().Status.ObservedPorts).To(ContainElement(port))
	Expect(suiteBerth.kubectl(ctx, "get", "berth", "-A")).To(ContainSubstring(url))
	Expect(suiteBerth.run(ctx, "logs", s.path())).NotTo(BeEmpty())

	By("restarting: the object is never missing, Restarting is True, one new incarnation")
	first, old := *s.status().Process, processTree(s.mark)
	observer := s.observe(ctx)
	suiteBerth.run(ctx, "restart", s.path())
	s.waitForIncarnation(ctx, first.Incarnation+1)
	s.waitUntilReady(ctx).waitForResponse(words)
	missing, _, seen := observer.results()
	Expect(missing).To(BeZero(), "a client did not find the object")
	Expect(seen).To(HaveKey(v1alpha1.ConditionRestarting))
	Expect(s.server().Status.URL).To(Equal(url), "the URL changed")
	Expect(s.status().RestartCount).To(BeEquivalentTo(1))
	second := *s.status().Process
	Expect(second.PID).NotTo(Equal(first.PID))
	for _, pid := range old {
		Expect(processTree(s.mark)).NotTo(ContainElement(pid), "a process of the old incarnation remains")
	}

	By("killing the process with SIGKILL from outside")
	signalTo(second.PID, s.mark, syscall.SIGKILL)
	s.waitForIncarnation(ctx, second.Incarnation+1)
	s.waitUntilReady(ctx).waitForResponse(words)
	Expect(s.status().LastExit.Signal).To(Equal("SIGKILL"))
	Expect(s.status().LastExit.Incarnation).To(Equal(second.Incarnation))

	By("stopping: no process remains, the object stays")
	suiteBerth.run(ctx, "stop", s.path())
	s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	Expect(processTree(s.mark)).To(BeEmpty())
	Expect(isListening(port)).To(BeFalse(), "a process still listens on port %d", port)

	By("starting again")
	suiteBerth.run(ctx, "start", s.path())
	s.waitUntilReady(ctx).waitForResponse(words)
	Expect(s.server().Status.Port).To(Equal(port))

	By("deleting: no process remains")
	s.delete(ctx)
	Expect(isListening(port)).To(BeFalse(), "a process still listens on port %d", port)
}
