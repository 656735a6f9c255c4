// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/need"
)

// tmuxServer is a tmux server of one spec with a unique socket name.
type tmuxServer string

func newTmuxServer(name string) tmuxServer {
	GinkgoHelper()
	need.Programs(GinkgoT(), "tmux")
	server := tmuxServer("e2e-" + suiteBerth.mark + "-" + name)
	DeferCleanup(func() {
		_, _ = server.run("kill-server") // fails if the server has exited with its last session
		Eventually(func() bool {
			_, err := server.run("list-sessions")
			return err != nil
		}).Should(BeTrue(), "the tmux server exits")
	})
	return server
}

func (t tmuxServer) run(args ...string) (string, error) {
	answer, err := exec.Command("tmux", append([]string{"-L", string(t), "-f", "/dev/null"}, args...)...).CombinedOutput()
	return string(answer), err
}

// waitForText waits until the session shows the text.
func (t tmuxServer) waitForText(session, text string) {
	GinkgoHelper()
	Eventually(func() (string, error) { return t.run("capture-pane", "-p", "-t", "="+session+":") }).WithTimeout(startTimeout).Should(ContainSubstring(text))
}

// setRuntime sets the runtime of an Instance to a session of the server.
func (t tmuxServer) setRuntime(s *testObject, session string) *v1alpha1.Instance {
	agent := s.object.(*v1alpha1.Instance)
	agent.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: session, Socket: string(t)}}
	return agent
}

var _ = Describe("An Instance in tmux", func() {
	It("is visible in its session, and keeps its process when the tmux server is killed", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		tmux := newTmuxServer("own")
		s := instance("agent", "/bin/sh")
		s.GetProcessSpec().Process.Stop.Signal = "SIGHUP"
		tmux.setRuntime(s, "claude foo")
		s.create(ctx).waitUntilReady(ctx)
		Expect(s.object.(*v1alpha1.Instance).Status.AttachCommand).To(Equal("tmux -L " + string(tmux) + " attach-session -t '=claude foo'"))
		pid := s.status().Process.PID

		By("typing a line with berth and reading it in tmux")
		suiteBerth.run(ctx, "send", s.path(), "echo answer", "$((6*7))")
		tmux.waitForText("claude foo", "answer 42")

		By("killing the tmux server")
		_, err := tmux.run("kill-server")
		Expect(err).NotTo(HaveOccurred())
		tmux.waitForText("claude foo", "answer 42")
		suiteBerth.run(ctx, "send", s.path(), "echo still $((7*7))")
		tmux.waitForText("claude foo", "still 49")
		Expect(s.read(ctx)).To(Succeed())
		Expect(s.status().Process.PID).To(Equal(pid))
		Expect(s.status().Incarnation).To(BeEquivalentTo(1))

		By("interrupting the program in it")
		suiteBerth.run(ctx, "send", s.path(), "sleep 1000; echo interrupted")
		tmux.waitForText("claude foo", "sleep 1000")
		s.patch(ctx, func() { s.object.(*v1alpha1.Instance).Spec.InterruptToken = "1" })
		Eventually(func() string { return suiteBerth.run(ctx, "logs", s.path()) }).WithTimeout(startTimeout).Should(ContainSubstring("^C"))

		By("deleting it")
		s.delete(ctx)
		s.waitUntilGone(ctx)
		Eventually(func() string {
			sessions, _ := tmux.run("list-sessions")
			return sessions
		}).WithTimeout(startTimeout).ShouldNot(ContainSubstring("claude"))
	})

	It("reports that it waits for an answer, sleeps when unused, and wakes without an idle timeout", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		tmux := newTmuxServer("asks")
		s := instance("asks", "/bin/sh", "-c", `printf "Do you want to proceed? [y/N] "; read answer; echo "so: $answer"; read more; exit 3`)
		tmux.setRuntime(s, "asks")
		s.create(ctx).waitUntilReady(ctx)
		session := s.object.(*v1alpha1.Instance).Status.SessionID
		s.waitForCondition(ctx, v1alpha1.ConditionAwaitingInput, v1alpha1.ReasonAwaitingInput)

		By("answering it")
		suiteBerth.run(ctx, "send", s.path(), "yes")
		tmux.waitForText("asks", "so: yes")
		Eventually(func(g Gomega) {
			g.Expect(s.read(ctx)).To(Succeed())
			g.Expect(s.status().Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.ConditionAwaitingInput)))
			g.Expect(s.object.(*v1alpha1.Instance).Status.LastActivityTime).NotTo(BeNil())
		}).WithTimeout(startTimeout).Should(Succeed())

		By("exceeding its idle timeout")
		s.patch(ctx, func() { s.object.(*v1alpha1.Instance).Spec.IdleTimeoutSeconds = ptr.To[int32](1) })
		s.waitForCondition(ctx, v1alpha1.ConditionReady, v1alpha1.ReasonIdle)
		Eventually(func(g Gomega) {
			g.Expect(s.read(ctx)).To(Succeed())
			g.Expect(s.status().Process).To(BeNil())
		}).WithTimeout(startTimeout).Should(Succeed())

		By("waking it")
		s.patch(ctx, func() { s.object.(*v1alpha1.Instance).Spec.IdleTimeoutSeconds = nil })
		s.waitForIncarnation(ctx, 2)
		Expect(s.object.(*v1alpha1.Instance).Status.SessionID).To(Equal(session), "the session ID changed")
		tmux.waitForText("asks", "Do you want to proceed?")
		s.delete(ctx)
	})

	It("adopts an existing session, and leaves it running", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		tmux := newTmuxServer("found")
		// The command has two words, because tmux passes a command of one word to the user's shell, which may be nologin.
		_, err := tmux.run("new-session", "-d", "-s", "claude-foo", "env", "sh")
		Expect(err).NotTo(HaveOccurred())
		_, err = tmux.run("new-session", "-d", "-s", "claude-foobar", "env", "sh")
		Expect(err).NotTo(HaveOccurred())
		panes := func() string {
			list, err := tmux.run("list-panes", "-a", "-F", "#{session_name} #{pane_pid}")
			Expect(err).NotTo(HaveOccurred())
			return list
		}
		before := panes()

		By("refusing a session that the spec does not allow to adopt")
		foreign := instance("foreign", "/bin/sh")
		tmux.setRuntime(foreign, "claude-foo")
		foreign.create(ctx)
		foreign.waitForCondition(ctx, v1alpha1.ConditionConflict, v1alpha1.ReasonSessionTaken)
		foreign.delete(ctx)
		foreign.waitUntilGone(ctx)
		Expect(panes()).To(Equal(before))

		By("adopting a session that the spec allows to adopt")
		s := instance("found", "/bin/sh")
		agent := tmux.setRuntime(s, "claude-foo")
		agent.Spec.Adoption = v1alpha1.AdoptionRequired
		s.create(ctx).waitUntilReady(ctx)
		Expect(s.condition(v1alpha1.ConditionAdopted).Status).To(Equal(metav1.ConditionTrue))
		Expect(before).To(ContainSubstring("claude-foo " + strconv.FormatInt(s.status().Process.PID, 10) + "\n"))
		suiteBerth.run(ctx, "send", s.path(), "echo found", "$((6*7))")
		tmux.waitForText("claude-foo", "found 42")
		Expect(suiteBerth.run(ctx, "logs", s.path())).To(ContainSubstring("found 42"), "the log of an adopted session is its screen")

		By("keeping the session when the object is deleted")
		s.delete(ctx)
		s.waitUntilGone(ctx)
		Expect(panes()).To(Equal(before))

		By("ending only this session when the spec requests it")
		again := instance("again", "/bin/sh")
		agent = tmux.setRuntime(again, "claude-foo")
		agent.Spec.Adoption, agent.Spec.DeletionPolicy = v1alpha1.AdoptionIfExists, v1alpha1.DeletionTerminate
		again.GetProcessSpec().Process.Stop.Signal = "SIGHUP"
		again.create(ctx).waitUntilReady(ctx)
		again.delete(ctx)
		again.waitUntilGone(ctx)
		Eventually(panes).Should(And(HavePrefix("claude-foobar "), Not(ContainSubstring("claude-foo "))))
		Expect(strings.Count(panes(), "\n")).To(Equal(1))
	})
})
