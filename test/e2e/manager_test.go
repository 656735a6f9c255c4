// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// exits37 is a program that runs until SIGUSR1 and then exits with code 37.
const exits37 = `
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(37))
print("waiting", flush=True)
while True:
    signal.pause()
`

var _ = Describe("berth up", Serial, func() {
	It("keeps processes, Ready and exit codes when it is killed and started again", NodeTimeout(storyTimeout), func(ctx context.Context) {
		web := devServer("web", "", "gohello").create(ctx).ready(ctx)
		shell := instance("shell", "/bin/sh")
		shell.create(ctx).ready(ctx)
		during, after := oneShot("during").create(ctx).ready(ctx), oneShot("after").create(ctx).ready(ctx)
		waitingFor(ctx, during, after)
		pids := []int64{pidOf(web), pidOf(shell), pidOf(after)}
		witnesses := []*statusObserver{web.watch(ctx), shell.watch(ctx), after.watch(ctx)}

		window := attach(shell, 24, 80)
		window.typed("kept=$((6*7)); echo kept $kept\n")
		window.shows("kept 42") // only the shell writes 42; the terminal may echo the input before the command is attached
		suiteBerth.kill(ctx)
		window.shows("reconnecting…")
		signalTo(pidOf(during), during.mark, syscall.SIGUSR1)
		Eventually(func() []int64 { return tree(during.mark) }).Should(BeEmpty())
		suiteBerth.up(ctx)

		By("attaching to the same terminal again")
		Eventually(func() string {
			window.typed("echo answer $kept\n")
			return window.output.String()
		}).Should(ContainSubstring("answer 42"))
		window.typed("\x1d")
		window.ends(ctx)
		Expect(strings.Count(window.output.String(), "reconnecting…")).To(Equal(1))

		By("recording the exit code of a program that exited in the meantime")
		during.becomes(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
		Expect(during.status().LastExit.ExitCode).To(HaveValue(BeEquivalentTo(37)))

		By("keeping all other processes")
		for _, s := range []*subject{web, shell, after} {
			s.ready(ctx)
			Expect(s.status().Incarnation).To(BeEquivalentTo(1))
		}
		Expect([]int64{pidOf(web), pidOf(shell), pidOf(after)}).To(Equal(pids))
		web.answers("Hello")
		for _, w := range witnesses {
			missing, notReady, _ := w.testify()
			Expect(missing).To(BeZero(), "a client did not find an object")
			Expect(notReady).To(BeZero(), "an object was not Ready")
		}

		By("recording the exit code of a process that this manager did not start")
		signalTo(pidOf(after), after.mark, syscall.SIGUSR1)
		after.becomes(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
		Expect(after.status().LastExit.ExitCode).To(HaveValue(BeEquivalentTo(37)))

		By("restarting a process that this manager did not start")
		suiteBerth.run(ctx, "restart", web.path())
		web.incarnation(ctx, 2)
	})

	It("stops the processes on Ctrl-C, and starts them again without counting a failure", NodeTimeout(storyTimeout), func(ctx context.Context) {
		web := devServer("web", "", "gohello").create(ctx).ready(ctx)
		suiteBerth.interrupt(ctx)
		Expect(tree(web.mark)).To(BeEmpty())
		Expect(listens(web.server().Status.Port)).To(BeFalse())

		suiteBerth.up(ctx)
		web.incarnation(ctx, 2)
		web.answers("Hello")
		Expect(web.status().Failures).To(BeZero())
	})

	It("claims objects at creation, after every start", NodeTimeout(storyTimeout), func(ctx context.Context) {
		claims := func(g Gomega) {
			trial := instance("trial", "true").object.(*v1alpha1.Instance)
			g.Expect(suiteBerth.client.Create(ctx, trial, client.DryRunAll)).To(Succeed())
			g.Expect(trial.Finalizers).To(ConsistOf(v1alpha1.FinalizerProcess))
		}
		Eventually(ctx, claims).WithTimeout(startTimeout).Should(Succeed())
		web := instance("web", "sleep", "infinity").create(ctx).ready(ctx)
		Expect(web.object.GetManagedFields()).NotTo(ContainElement(And(HaveField("Manager", "berth"), HaveField("Subresource", ""))), "a controller wrote more than the status")
		suiteBerth.kill(ctx)
		killServers("kube-apiserver") // the next API server does not serve the kinds at first, although the policy already exists
		suiteBerth.up(ctx)
		instance("at-once", "sleep", "infinity").create(ctx).ready(ctx)
		Eventually(ctx, claims).WithTimeout(startTimeout).Should(Succeed())
	})

	It("keeps the processes running with --keep", NodeTimeout(storyTimeout), func(ctx context.Context) {
		web := devServer("web", "", "gohello").create(ctx).ready(ctx)
		suiteBerth.interrupt(ctx)
		suiteBerth.up(ctx, "--keep")
		web.incarnation(ctx, 2)
		pid := pidOf(web)
		suiteBerth.interrupt(ctx)
		Expect(tree(web.mark)).To(ConsistOf(pid))

		suiteBerth.up(ctx)
		web.ready(ctx)
		Expect(pidOf(web)).To(Equal(pid))
	})
})

func oneShot(name string) *subject {
	s := instance(name, "python3", "-u", "-c", exits37)
	s.GetProcessSpec().RestartPolicy = v1alpha1.RestartNever
	return s
}

// waitingFor waits until the programs have installed their signal handler, which happens some time after they are running.
func waitingFor(ctx context.Context, subjects ...*subject) {
	GinkgoHelper()
	for _, s := range subjects {
		Eventually(func() string { return suiteBerth.run(ctx, "logs", s.path()) }).Should(ContainSubstring("waiting"))
	}
}

func pidOf(s *subject) int64 {
	GinkgoHelper()
	Expect(s.status().Process).NotTo(BeNil())
	return s.status().Process.PID
}
