// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// exitOnSignalProgram is a program that runs until SIGUSR1 and then exits with code 37.
const exitOnSignalProgram = `
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(37))
print("waiting", flush=True)
while True:
    signal.pause()
`

var _ = Describe("berth up", Serial, func() {
	It("types each byte of piped input once, although it is killed five times", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		saved := filepath.Join(GinkgoT().TempDir(), "saved")
		reader := instance("reader", "python3", "-u", "-c", readLinesProgram, saved)
		reader.GetProcessSpec().RestartPolicy = v1alpha1.RestartNever
		reader.create(ctx).waitUntilReady(ctx)
		waitForSignalHandlers(ctx, reader)
		var text strings.Builder
		for i := 0; text.Len() < 1<<20; i++ {
			fmt.Fprintf(&text, "%d %s\n", i, strings.Repeat("x", 2000))
		}
		attached := exec.CommandContext(ctx, suiteBerth.program(), "attach", reader.path())
		output := &output{}
		attached.Env, attached.Stdin = suiteBerth.environment(), strings.NewReader(text.String())
		attached.Stdout, attached.Stderr = output, output
		Expect(attached.Start()).To(Succeed())
		for i := range 5 {
			Eventually(func() (int64, error) {
				info, err := os.Stat(saved)
				if err != nil {
					return 0, err
				}
				return info.Size(), nil
			}).Should(BeNumerically(">", (i+1)*text.Len()/7), output.String)
			suiteBerth.kill(ctx)
			suiteBerth.up(ctx)
		}
		Expect(attached.Wait()).To(Succeed(), output.String)
		Expect(strings.Count(output.String(), "reconnecting…")).To(Equal(5))
		Expect(output.String()).To(And(ContainSubstring("read all"), ContainSubstring("the process has ended"), Not(ContainSubstring("may not have received"))))
		read, err := os.ReadFile(saved)
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Compare(string(read), text.String())).To(BeZero(), "%d of %d bytes", len(read), text.Len())
	})

	It("keeps processes, Ready and exit codes when it is killed and started again", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		web := devServer("web", "", "gohello").create(ctx).waitUntilReady(ctx)
		shell := instance("shell", "/bin/sh")
		shell.create(ctx).waitUntilReady(ctx)
		during, after := newOneShot("during").create(ctx).waitUntilReady(ctx), newOneShot("after").create(ctx).waitUntilReady(ctx)
		waitForSignalHandlers(ctx, during, after)
		pids := []int64{pidOf(web), pidOf(shell), pidOf(after)}
		witnesses := []*statusObserver{web.observe(ctx), shell.observe(ctx), after.observe(ctx)}

		window := attach(shell, 24, 80)
		window.typeText("kept=$((6*7)); echo kept $kept\n")
		window.waitForText("kept 42") // only the shell writes 42; the terminal may echo the input before the command is attached
		suiteBerth.kill(ctx)
		window.waitForText("reconnecting…")
		signalTo(pidOf(during), during.mark, syscall.SIGUSR1)
		Eventually(func() []int64 { return processTree(during.mark) }).Should(BeEmpty())
		suiteBerth.up(ctx)

		By("attaching to the same terminal again")
		Eventually(func() string {
			window.typeText("echo answer $kept\n")
			return window.output.String()
		}).Should(ContainSubstring("answer 42"))
		window.typeText("\x1d")
		window.waitForExit(ctx)
		Expect(strings.Count(window.output.String(), "reconnecting…")).To(Equal(1))

		By("recording the exit code of a program that exited in the meantime")
		during.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
		Expect(during.status().LastExit.ExitCode).To(HaveValue(BeEquivalentTo(37)))

		By("keeping all other processes")
		for _, s := range []*testObject{web, shell, after} {
			s.waitUntilReady(ctx)
			Expect(s.status().Incarnation).To(BeEquivalentTo(1))
		}
		Expect([]int64{pidOf(web), pidOf(shell), pidOf(after)}).To(Equal(pids))
		web.waitForResponse("Hello")
		for _, w := range witnesses {
			missing, notReady, _ := w.results()
			Expect(missing).To(BeZero(), "a client did not find an object")
			Expect(notReady).To(BeZero(), "an object was not Ready")
		}

		By("recording the exit code of a process that this manager did not start")
		signalTo(pidOf(after), after.mark, syscall.SIGUSR1)
		after.waitForCondition(ctx, v1alpha1.ConditionStalled, v1alpha1.ReasonFailed)
		Expect(after.status().LastExit.ExitCode).To(HaveValue(BeEquivalentTo(37)))

		By("restarting a process that this manager did not start")
		suiteBerth.run(ctx, "restart", web.path())
		web.waitForIncarnation(ctx, 2)
	})

	It("stops the processes on Ctrl-C, and starts them again without counting a failure", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		web := devServer("web", "", "gohello").create(ctx).waitUntilReady(ctx)
		suiteBerth.interrupt(ctx)
		Expect(processTree(web.mark)).To(BeEmpty())
		Expect(isListening(web.server().Status.Port)).To(BeFalse())

		suiteBerth.up(ctx)
		web.waitForIncarnation(ctx, 2)
		web.waitForResponse("Hello")
		Expect(web.status().Failures).To(BeZero())
	})

	It("claims objects at their creation after every start of berth", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		expectClaimed := func(g Gomega) {
			trial := instance("trial", "true").object.(*v1alpha1.Instance)
			g.Expect(suiteBerth.client.Create(ctx, trial, client.DryRunAll)).To(Succeed())
			g.Expect(trial.Finalizers).To(ConsistOf(v1alpha1.FinalizerProcess))
		}
		Eventually(ctx, expectClaimed).WithTimeout(startTimeout).Should(Succeed())
		web := instance("web", "sleep", "infinity").create(ctx).waitUntilReady(ctx)
		Expect(web.object.GetManagedFields()).NotTo(ContainElement(And(HaveField("Manager", "berth"), HaveField("Subresource", ""))), "a controller wrote more than the status")
		suiteBerth.kill(ctx)
		killServers("berth-apiserver") // the next API server does not serve the kinds at first, although the policy already exists
		suiteBerth.up(ctx)
		instance("at-once", "sleep", "infinity").create(ctx).waitUntilReady(ctx)
		Eventually(ctx, expectClaimed).WithTimeout(startTimeout).Should(Succeed())
	})

	It("runs in the background with --detach, and berth down stops it, even after it was killed", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		state, err := os.MkdirTemp("", "berth-e2e-down-")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(os.RemoveAll(state)).To(Succeed()) })
		DeferCleanup(func() { suiteBerth.attempt(suiteBerth.program(), "down", "--state-dir", state) })
		manifest, mark := filepath.Join(state, "shell.yaml"), filepath.Base(state)
		Expect(os.WriteFile(manifest, []byte(fmt.Sprintf("apiVersion: berth.dev/v1alpha1\nkind: Instance\nmetadata: {name: shell}\n"+
			"spec: {process: {command: [sleep, infinity], env: [{name: %s, value: %s}]}}\n", objectMark, mark)), 0o600)).To(Succeed())
		processes := func() []int64 { return processTree(mark) }
		down := func() string { return suiteBerth.run(ctx, "down", "--state-dir", state) }
		up := func() (pid int) {
			text := suiteBerth.run(ctx, "up", "--detach", "--state-dir", state, "-f", manifest)
			Expect(text).To(ContainSubstring(kubeconfigLine + filepath.Join(state, "kubeconfig")))
			_, rest, _ := strings.Cut(text, "berth up runs in the background (process ")
			_, err := fmt.Sscan(rest, &pid)
			Expect(err).NotTo(HaveOccurred(), text)
			Eventually(processes).WithTimeout(startTimeout).Should(HaveLen(1))
			return pid
		}

		pid := up()
		Expect(down()).To(ContainSubstring("stopping berth up (process %d)", pid))
		Expect(processes()).To(BeEmpty())

		By("killing it")
		pid = up()
		Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
		Eventually(func() string {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			return string(line)
		}).Should(BeEmpty(), "the process has exited")
		Expect(processes()).To(HaveLen(1))
		Expect(down()).To(ContainSubstring("left processes behind"))
		Expect(processes()).To(BeEmpty())
		Expect(processesWithVariable(suiteMark, suiteBerth.mark)).NotTo(ContainElement(ContainSubstring(state)))
		Expect(down()).To(ContainSubstring("berth up is not running"))

		By("killing it, when no control plane can be started")
		Expect(syscall.Kill(up(), syscall.SIGKILL)).To(Succeed())
		Expect(processes()).To(HaveLen(1))
		Expect(suiteBerth.attempt(suiteBerth.program(), "down", "--state-dir", state, "--assets", GinkgoT().TempDir())).To(
			And(ContainSubstring("the next berth up counts each of them as a crash"), ContainSubstring("berth-apiserver")))
		Expect(processes()).To(BeEmpty())
		Expect(processesWithVariable(suiteMark, suiteBerth.mark)).NotTo(ContainElement(ContainSubstring(state)))

		By("starting it twice at the same time")
		outputs := make([]string, 2)
		var both sync.WaitGroup
		for i := range outputs {
			both.Go(func() {
				outputs[i] = suiteBerth.attempt(suiteBerth.program(), "up", "--detach", "--state-dir", state)
				outputs[i] += suiteBerth.attempt(suiteBerth.program(), "status", "--kubeconfig", filepath.Join(state, "kubeconfig"))
			})
		}
		both.Wait()
		for _, text := range outputs {
			Expect(text).To(And(ContainSubstring(kubeconfigLine+filepath.Join(state, "kubeconfig")), ContainSubstring("instance/shell")))
		}
		Expect(strings.Join(outputs, "")).To(ContainSubstring("already running"))
		suiteBerth.kubectl(ctx, "--kubeconfig", filepath.Join(state, "kubeconfig"), "delete", "instance", "shell")
		down()
	})

	It("keeps the processes running with --keep", NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
		web := devServer("web", "", "gohello").create(ctx).waitUntilReady(ctx)
		suiteBerth.interrupt(ctx)
		suiteBerth.up(ctx, "--keep")
		web.waitForIncarnation(ctx, 2)
		pid := pidOf(web)
		suiteBerth.interrupt(ctx)
		Expect(processTree(web.mark)).To(ConsistOf(pid))

		suiteBerth.up(ctx)
		web.waitUntilReady(ctx)
		Expect(pidOf(web)).To(Equal(pid))
	})
})

// readLinesProgram is a program that reads lines slowly, and stores them in a file until the end of its input.
const readLinesProgram = `
import os, sys, termios, time
modes = termios.tcgetattr(0)
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
saved = open(sys.argv[1], "wb", buffering=0)
print("waiting", flush=True)
while line := os.read(0, 4096):
    saved.write(line)
    time.sleep(0.02)
print("read", "all", flush=True)
`

func newOneShot(name string) *testObject {
	s := instance(name, "python3", "-u", "-c", exitOnSignalProgram)
	s.GetProcessSpec().RestartPolicy = v1alpha1.RestartNever
	return s
}

// waitForSignalHandlers waits until the programs have installed their signal handler, which happens some time after they are running.
func waitForSignalHandlers(ctx context.Context, subjects ...*testObject) {
	GinkgoHelper()
	for _, s := range subjects {
		Eventually(func() string { return suiteBerth.run(ctx, "logs", s.path()) }).Should(ContainSubstring("waiting"))
	}
}

func pidOf(s *testObject) int64 {
	GinkgoHelper()
	Expect(s.status().Process).NotTo(BeNil())
	return s.status().Process.PID
}
