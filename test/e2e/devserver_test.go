// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// storyTimeout bounds a spec with the whole life of a server, including the installation of its packages.
const storyTimeout = 15 * time.Minute

var _ = Describe("DevServer", func() {
	DescribeTable("runs through its whole life and reports its URL", serverStory,
		Entry("Go", NodeTimeout(storyTimeout), "Hello from a dev server written in Go", func(context.Context) *subject {
			return devServer("gohello", "", "gohello")
		}),
		Entry("Python's http.server", NodeTimeout(storyTimeout), "Directory listing", func(context.Context) *subject {
			return devServer("python", suiteBerth.root, "python3", "-m", "http.server", "$(PORT)", "--bind", "127.0.0.1")
		}),
		Entry("Vite", NodeTimeout(storyTimeout), "Vite in a berth", func(ctx context.Context) *subject {
			return devServer("vite", project(ctx, "samples/vite"), "npm", "run", "dev", "--", "--port", "$(PORT)", "--strictPort")
		}),
		Entry("webpack-dev-server", NodeTimeout(storyTimeout), "webpack in a berth", func(ctx context.Context) *subject {
			return devServer("webpack", project(ctx, "test/e2e/projects/webpack"), "npm", "run", "dev", "--", "--port", "$(PORT)")
		}),
		Entry("Next", NodeTimeout(storyTimeout), "Next in a berth", func(ctx context.Context) *subject {
			return devServer("next", project(ctx, "test/e2e/projects/next"), "npm", "run", "dev", "--", "-p", "$(PORT)", "-H", "127.0.0.1")
		}),
	)

	It("is found on a port other than the assigned one", NodeTimeout(storyTimeout), func(ctx context.Context) {
		other := freePort()
		s := devServer("moved", "", "python3", "-m", "http.server", other, "--bind", "127.0.0.1").create(ctx).ready(ctx)
		s.answers("Directory listing")
		Expect(s.server().Status.URL).To(ContainSubstring(":" + other))
		Expect(s.condition(v1alpha1.ConditionPortVerified).Reason).To(Equal(v1alpha1.ReasonOtherPort))
	})

	It("names the process that uses its port, and starts when the port is free", NodeTimeout(storyTimeout), func(ctx context.Context) {
		holder := listenSomewhere()
		// The spec itself closes the listener later; this cleanup is for a spec that fails before that.
		DeferCleanup(func() { _ = holder.Close() })
		s := devServer("late", "", "gohello")
		s.server().Spec.Port = portOf(holder)
		s.create(ctx)
		s.becomes(ctx, v1alpha1.ConditionConflict, v1alpha1.ReasonPortInUse)
		Expect(s.condition(v1alpha1.ConditionConflict).Message).To(ContainSubstring("pid"))
		Expect(s.status().RestartCount).To(BeZero())

		Expect(holder.Close()).To(Succeed())
		s.ready(ctx)
		s.answers("Hello")
		Expect(s.status().RestartCount).To(BeZero(), "waiting for a port must not count as restarts")
	})

	It("is deleted with its Instance", NodeTimeout(storyTimeout), func(ctx context.Context) {
		owner := instance("owner", "sleep", "infinity").create(ctx).ready(ctx)
		s := devServer("owned", "", "gohello")
		s.server().Spec.InstanceRef = &v1alpha1.LocalReference{Name: owner.GetName()}
		s.create(ctx).ready(ctx)
		owner.delete(ctx)
		s.gone(ctx)
	})
})

// serverStory tests the life of one server: the server is started, reports its URL, is restarted, killed from outside, stopped, started again and deleted.
func serverStory(ctx context.Context, words string, prepare func(context.Context) *subject) {
	s := prepare(ctx).create(ctx)

	By("waiting until the server is Ready and answers at its URL")
	s.ready(ctx).answers(words)
	port := s.server().Status.Port
	url := s.server().Status.URL
	Expect(s.server().Status.ObservedPorts).To(ContainElement(port))
	Expect(suiteBerth.kubectl(ctx, "get", "berth", "-A")).To(ContainSubstring(url))
	Expect(suiteBerth.run(ctx, "logs", s.path())).NotTo(BeEmpty())

	By("restarting: the object is never missing, Restarting is True, one new incarnation")
	first, old := *s.status().Process, tree(s.mark)
	witness := s.watch(ctx)
	suiteBerth.run(ctx, "restart", s.path())
	s.incarnation(ctx, first.Incarnation+1)
	s.ready(ctx).answers(words)
	missing, _, seen := witness.testify()
	Expect(missing).To(BeZero(), "a client did not find the object")
	Expect(seen).To(HaveKey(v1alpha1.ConditionRestarting))
	Expect(s.server().Status.URL).To(Equal(url), "the URL changed")
	Expect(s.status().RestartCount).To(BeEquivalentTo(1))
	second := *s.status().Process
	Expect(second.PID).NotTo(Equal(first.PID))
	for _, pid := range old {
		Expect(tree(s.mark)).NotTo(ContainElement(pid), "a process of the old incarnation remains")
	}

	By("killing the process with SIGKILL from outside")
	signalTo(second.PID, s.mark, syscall.SIGKILL)
	s.incarnation(ctx, second.Incarnation+1)
	s.ready(ctx).answers(words)
	Expect(s.status().LastExit.Signal).To(Equal("SIGKILL"))
	Expect(s.status().LastExit.Incarnation).To(Equal(second.Incarnation))

	By("stopping: no process remains, the object stays")
	suiteBerth.run(ctx, "stop", s.path())
	s.becomes(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonStopped)
	Expect(tree(s.mark)).To(BeEmpty())
	Expect(listens(port)).To(BeFalse(), "a process still listens on port %d", port)

	By("starting again")
	suiteBerth.run(ctx, "start", s.path())
	s.ready(ctx).answers(words)
	Expect(s.server().Status.Port).To(Equal(port))

	By("deleting: no process remains")
	s.delete(ctx)
	Expect(listens(port)).To(BeFalse(), "a process still listens on port %d", port)
}
