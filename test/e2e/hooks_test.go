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
	"strconv"
	"strings"
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
	// busyHookDelay limits the delay of the first question of a real agent, which computes at the same time.
	busyHookDelay = time.Second
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

	// The hooks are those that berth init installs. A script beside the agent records when each of them begins. If two commands wait, Codex and Gemini CLI report
	// both at once, so after the first answer another source shows that the second one waits.
	DescribeTable("reports what a coding agent does", Label(anyUser, codingAgents), func(ctx context.Context, name string, second any, ask func(ctx context.Context, model, home string) *v1alpha1.ProcessTemplate, arguments ...string) {
		dir, home := GinkgoT().TempDir(), GinkgoT().TempDir()
		model := newProposingModel(dir)
		s := instance(name+"-hooked", "true")
		process := ask(ctx, model.URL, home)
		process.Command = append(process.Command, arguments...)
		process.WorkingDir = filepath.Join(home, "project")
		bin := filepath.Join(home, "bin")
		process.Env = append(process.Env, v1alpha1.EnvVar{Name: "HOME", Value: home}, v1alpha1.EnvVar{Name: "IS_SANDBOX", Value: "1"},
			v1alpha1.EnvVar{Name: "PATH", Value: bin + ":" + os.Getenv("PATH")})
		Expect(os.MkdirAll(process.WorkingDir, 0o755)).To(Succeed())
		Expect(os.MkdirAll(bin, 0o755)).To(Succeed())
		began := filepath.Join(home, "began")
		Expect(os.WriteFile(filepath.Join(bin, "berth"), fmt.Appendf(nil, "#!/bin/sh\ndate +%%s%%N >> %q\nexec %q \"$@\"\n", began, suiteBerth.program()), 0o755)).To(Succeed())
		suiteBerth.run(ctx, "init", process.WorkingDir, "--clients", name, "--yes")
		Expect(os.RemoveAll(filepath.Join(process.WorkingDir, ".mcp.json"))).To(Succeed()) // Claude Code would ask about it
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
		screen := func() string { return suiteBerth.run(ctx, "logs", "--screen", s.path()) }
		by := func(source any, state v1alpha1.AgentState) {
			GinkgoHelper()
			Eventually(agent).WithTimeout(startTimeout).WithPolling(5*time.Millisecond).Should(And(HaveField("State", state), HaveField("Source", source)), screen)
		}
		by(v1alpha1.AgentSourceHook, v1alpha1.AgentWaiting)
		delay := time.Since(lastTime(began))
		AddReportEntry("delay between the start of a hook and the state", delay)
		Expect(delay).To(BeNumerically("<", busyHookDelay))
		Expect(agent()).To(And(HaveField("Question", "permission"), HaveField("SessionID", Not(BeEmpty()))))
		Expect(s.condition(v1alpha1.ConditionAwaitingInput).Message).To(HavePrefix("A hook of the agent reports"))
		Eventually(screen).WithTimeout(startTimeout).Should(MatchRegexp(choices))
		suiteBerth.result(ctx, "send", s.path(), "") // another question follows
		by(second, v1alpha1.AgentWaiting)
		Eventually(func() []string { // an agent that draws its dialog late loses the answer, and Gemini CLI runs both commands after the second one
			approved, _ := filepath.Glob(filepath.Join(dir, "approved-*"))
			if len(approved) < 2 {
				suiteBerth.result(ctx, "send", s.path(), "")
			}
			return approved
		}).WithTimeout(startTimeout).WithPolling(5 * time.Second).Should(HaveLen(2))
		by(v1alpha1.AgentSourceHook, v1alpha1.AgentDone)
		Expect(s.status().Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.ConditionAwaitingInput)))
	},
		Entry("Claude Code", NodeTimeout(15*time.Minute), "claude", v1alpha1.AgentSourceHook, claudeAsks),
		Entry("Codex", NodeTimeout(15*time.Minute), "codex", Not(BeEmpty()), codexAsks, "--dangerously-bypass-hook-trust"),
		Entry("Gemini CLI", NodeTimeout(15*time.Minute), "gemini", Not(BeEmpty()), geminiAsks),
		Entry("opencode", NodeTimeout(15*time.Minute), "opencode", v1alpha1.AgentSourceHook, opencodeAsks),
	)
})

// lastTime returns the last time in a file, which contains one in each line, in nanoseconds.
func lastTime(path string) time.Time {
	GinkgoHelper()
	text, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	lines := strings.Fields(string(text))
	nanoseconds, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
	Expect(err).NotTo(HaveOccurred())
	return time.Unix(0, nanoseconds)
}
