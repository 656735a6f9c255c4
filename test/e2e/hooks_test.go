// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// hookCalls is the number of reports whose delay is measured: the time between the start of berth hook and the state in the status. hookDelay limits the delay of
	// the fastest quarter, because other processes of the machine delay the others.
	hookCalls = 20
	hookDelay = 300 * time.Millisecond
)

// agentState returns what the status says about the agent of an Instance.
func agentState(ctx context.Context, s *testObject) v1alpha1.AgentStatus {
	GinkgoHelper()
	Expect(s.read(ctx)).To(Succeed())
	if agent := s.object.(*v1alpha1.Instance).Status.Agent; agent != nil {
		return *agent
	}
	return v1alpha1.AgentStatus{}
}

var _ = Describe("berth hook", func() {
	It("reports for its Instance, without delay, and for no other", NodeTimeout(5*time.Minute), func(ctx context.Context) {
		dir := GinkgoT().TempDir()
		// The program reports what it reads, and records when it began.
		script := `while read -r state question; do date +%s%N > began; ` + suiteBerth.program() + ` hook --verbose --state "$state" ${question:+--question "$question"} 2> said; done`
		s := instance("hooked", "/bin/sh", "-c", script)
		s.GetProcessSpec().Process.WorkingDir = dir
		other := instance("unhooked", "/bin/cat").create(ctx).waitUntilReady(ctx)
		s.create(ctx).waitUntilReady(ctx)

		var delays []time.Duration
		for i := range hookCalls {
			report, state := "Working", v1alpha1.AgentWorking
			if i%2 == 1 {
				report, state = "Waiting plan", v1alpha1.AgentWaiting
			}
			suiteBerth.run(ctx, "send", s.path(), report)
			Eventually(func() v1alpha1.AgentState { return agentState(ctx, s).State }).WithTimeout(startTimeout).WithPolling(5 * time.Millisecond).Should(Equal(state))
			now := time.Now()
			began, err := os.ReadFile(filepath.Join(dir, "began"))
			Expect(err).NotTo(HaveOccurred())
			var nanoseconds int64
			_, err = fmt.Sscan(string(began), &nanoseconds)
			Expect(err).NotTo(HaveOccurred())
			delays = append(delays, now.Sub(time.Unix(0, nanoseconds)))
		}
		slices.Sort(delays)
		AddReportEntry("delays of reports", delays)
		Expect(delays[len(delays)/4]).To(BeNumerically("<", hookDelay))
		Expect(s.condition(v1alpha1.ConditionAwaitingInput).Message).To(Equal("A hook of the agent reports a question (plan)."))

		By("reporting from a process that belongs to no Instance")
		out, code := suiteBerth.result(ctx, "hook", "--verbose", "--state", "Done", "--state-dir", suiteBerth.state)
		Expect(code).To(BeZero())
		Expect(out).To(ContainSubstring("belongs to no Instance"))
		Expect(agentState(ctx, s).State).To(Equal(v1alpha1.AgentWaiting))
		Expect(agentState(ctx, other).State).To(BeEmpty())

		By("restarting")
		suiteBerth.run(ctx, "restart", s.path())
		s.waitForIncarnation(ctx, 2)
		Eventually(func() v1alpha1.AgentState { return agentState(ctx, s).State }).WithTimeout(startTimeout).Should(BeEmpty())
	})

	It("reports what Claude Code does", Label(anyUser, codingAgents), NodeTimeout(15*time.Minute), func(ctx context.Context) {
		model := newProposingModel(GinkgoT().TempDir())
		home := GinkgoT().TempDir()
		s := instance("claude-hooked", "true")
		process := claudeAsks(ctx, model.URL, home)
		process.WorkingDir = filepath.Join(home, "project")
		process.Env = append(process.Env, v1alpha1.EnvVar{Name: "HOME", Value: home}, v1alpha1.EnvVar{Name: "IS_SANDBOX", Value: "1"},
			v1alpha1.EnvVar{Name: "PATH", Value: filepath.Dir(suiteBerth.program()) + ":" + os.Getenv("PATH")})
		Expect(os.MkdirAll(process.WorkingDir, 0o755)).To(Succeed())
		suiteBerth.run(ctx, "init", process.WorkingDir, "--clients", "claude", "--yes")
		Expect(os.Remove(filepath.Join(process.WorkingDir, ".mcp.json"))).To(Succeed()) // Claude Code would ask about it
		s.GetProcessSpec().Process = *process
		s.create(ctx).waitUntilReady(ctx)
		Eventually(func() (string, error) {
			out, code := suiteBerth.result(ctx, "send", s.path(), approvalPrompt)
			if code != 0 {
				return out, errors.New(out)
			}
			return out, nil
		}).WithTimeout(startTimeout).Should(BeEmpty())
		agent := func() v1alpha1.AgentStatus { return agentState(ctx, s) }
		byHook := func(state v1alpha1.AgentState) {
			GinkgoHelper()
			Eventually(agent).WithTimeout(startTimeout).Should(And(HaveField("State", state), HaveField("Source", v1alpha1.AgentSourceHook)),
				func() string { return suiteBerth.run(ctx, "logs", "--screen", s.path()) })
		}
		byHook(v1alpha1.AgentWaiting)
		Expect(agent()).To(And(HaveField("Question", "permission"), HaveField("SessionID", Not(BeEmpty()))))
		Expect(s.condition(v1alpha1.ConditionAwaitingInput).Message).To(HavePrefix("A hook of the agent reports"))
		first := agent().Since
		suiteBerth.result(ctx, "send", s.path(), "1") // another question follows
		Eventually(func() bool { return agent().Since.After(first.Time) }).WithTimeout(startTimeout).Should(BeTrue())
		byHook(v1alpha1.AgentWaiting)
		suiteBerth.run(ctx, "send", s.path(), "1")
		byHook(v1alpha1.AgentDone)
		Expect(s.status().Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.ConditionAwaitingInput)))
	})
})
