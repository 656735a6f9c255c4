// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/need"
)

// contract is a program that refuses to start a session that exists, and to resume one that does not, as Claude Code and Gemini CLI do. It appends a line for
// each of its starts to the file $STARTS.
const contract = `#!/bin/sh
session=$HOME/sessions/$2
mkdir -p "$HOME/sessions"
echo "$1 $2 $BERTH_INCARNATION $BERTH_RESUMED" >> "$STARTS"
case $1 in
--session-id) [ ! -e "$session" ] || { echo "Error: Session ID $2 is already in use."; exit 1; }; : > "$session" ;;
--resume) [ -e "$session" ] || { echo "No conversation found with session ID: $2"; exit 1; } ;;
esac
echo "session $2"
exec cat
`

var _ = Describe("a session", func() {
	DescribeTable("continues after each kind of start", Label(anyUser), func(ctx context.Context, runtime v1alpha1.RuntimeType) {
		s, starts := newContract("session")
		if runtime == v1alpha1.RuntimeTmux {
			need.Programs(GinkgoT(), "tmux")
			newTmuxServer("session").setRuntime(s, "session")
		}
		s.create(ctx).waitUntilReady(ctx)
		id := string(s.GetUID())
		want := []string{"--session-id " + id + " 1 false"}
		expect := func(how string) {
			GinkgoHelper()
			want = append(want, fmt.Sprintf("--resume %s %d true", id, len(want)+1))
			Eventually(starts.lines).WithTimeout(startTimeout).Should(Equal(want), how)
			s.waitForIncarnation(ctx, int64(len(want)))
			s.waitUntilReady(ctx)
		}

		suiteBerth.run(ctx, "restart", s.path()) // at once: the session exists, although the program has run for less than a second
		expect("berth restart")
		signalTo(s.status().Process.PID, s.mark, syscall.SIGKILL)
		expect("SIGKILL")
		suiteBerth.run(ctx, "stop", s.path())
		suiteBerth.run(ctx, "start", s.path())
		expect("berth stop and berth start")
		suiteBerth.run(ctx, "down", "--state-dir", suiteBerth.state)
		Eventually(suiteBerth.running).WithTimeout(startTimeout).Should(BeFalse())
		suiteBerth.up(ctx)
		expect("berth down and berth up")
		suiteBerth.kill(ctx)
		signalTo(s.status().Process.PID, s.mark, syscall.SIGKILL)
		suiteBerth.up(ctx)
		expect("SIGKILL while no manager runs")
		s.patch(ctx, func() { s.object.(*v1alpha1.Instance).Spec.IdleTimeoutSeconds = ptr.To[int32](1) })
		Eventually(func(g Gomega) {
			g.Expect(s.read(ctx)).To(Succeed())
			g.Expect(s.condition(v1alpha1.ConditionReady).Reason).To(Equal(v1alpha1.ReasonIdle))
			g.Expect(s.status().Process).To(BeNil())
		}).WithTimeout(startTimeout).Should(Succeed())
		s.patch(ctx, func() { s.object.(*v1alpha1.Instance).Spec.IdleTimeoutSeconds = nil })
		expect("sleep")

		By("losing the session")
		Expect(os.RemoveAll(filepath.Join(filepath.Dir(starts.path), "sessions"))).To(Succeed())
		suiteBerth.run(ctx, "restart", s.path())
		n := len(want) + 1
		want = append(want, fmt.Sprintf("--resume %s %d true", id, n), fmt.Sprintf("--session-id %s %d false", id, n+1))
		Eventually(starts.lines).WithTimeout(startTimeout).Should(Equal(want))
		s.waitUntilReady(ctx)
		Eventually(func() string { return suiteBerth.run(ctx, "events", s.path()) }).Should(ContainSubstring(v1alpha1.ReasonResumeFailed))
		Expect(suiteBerth.run(ctx, "describe", s.path())).To(And(ContainSubstring("because spec.process.resumeCommand failed at once"),
			MatchRegexp(`Resume with +\S+/agent --resume`), MatchRegexp(`Started +Fallback; next start: Resumed`)))
		suiteBerth.run(ctx, "restart", s.path())
		expect("a restart after the fallback")
	},
		Entry("on the host", NodeTimeout(10*time.Minute), v1alpha1.RuntimeHost),
		Entry("in tmux", NodeTimeout(10*time.Minute), v1alpha1.RuntimeTmux),
	)

	DescribeTable("of a coding agent continues", Label(anyUser, codingAgents), func(ctx context.Context, name, prompt string, template func(ctx context.Context, model, home string) *v1alpha1.ProcessTemplate, start, resume []string) {
		model := newModel()
		model.replies = true // Gemini CLI stores a session with the first answer
		home := GinkgoT().TempDir()
		program := template(ctx, model.URL, home)
		s := instance(name, append(program.Command[:1:1], start...)...)
		process := &s.GetProcessSpec().Process
		process.ResumeCommand = append(program.Command[:1:1], resume...)
		process.Env = append(append(process.Env, program.Env...), v1alpha1.EnvVar{Name: "HOME", Value: home})
		process.WorkingDir = filepath.Join(home, "project")
		Expect(os.MkdirAll(process.WorkingDir, 0o755)).To(Succeed())
		s.create(ctx).waitUntilReady(ctx)
		before := 0 // the length of the output of earlier incarnations
		ask := func(n int) string {
			GinkgoHelper()
			s.waitForPrompt(ctx, prompt, before)
			text := fmt.Sprintf("what is the square of %d?", n)
			Eventually(func() map[string]int { // an agent that has just resumed a session may lose input
				if model.questionCounts()[text] == 0 {
					suiteBerth.attempt(suiteBerth.program(), "send", s.path(), text)
				}
				return model.questionCounts()
			}).WithTimeout(startTimeout).WithPolling(10*time.Second).Should(HaveKey(text), func() string { return suiteBerth.run(ctx, "logs", "--tail", "200", s.path()) })
			return text
		}
		first := ask(1000)
		for i, again := range []struct {
			how string
			do  func()
		}{
			{"a restart", func() { suiteBerth.run(ctx, "restart", s.path()) }},
			{"SIGKILL", func() { signalTo(s.status().Process.PID, s.mark, syscall.SIGKILL) }},
			{"berth down and berth up", func() {
				suiteBerth.run(ctx, "down", "--state-dir", suiteBerth.state)
				Eventually(suiteBerth.running).WithTimeout(startTimeout).Should(BeFalse())
				suiteBerth.up(ctx)
			}},
		} {
			By(again.how)
			before = len(s.output(ctx))
			again.do()
			s.waitForIncarnation(ctx, int64(i+2))
			s.waitUntilReady(ctx)
			sent := model.questionCounts()[first]
			ask(1001 + i)
			Expect(model.questionCounts()[first]).To(BeNumerically(">", sent), "the request does not contain the first question of the session")
			Expect(s.read(ctx)).To(Succeed())
			Expect(s.status().Incarnation).To(BeEquivalentTo(i+2), "a start was refused")
			Expect(s.status().Resume.Start).To(Equal(v1alpha1.SessionResumed))
		}
	},
		Entry("Claude Code", NodeTimeout(15*time.Minute), "claude", "shortcuts", claudeAsks, []string{"--session-id", "$(SESSION_ID)"}, []string{"--resume", "$(SESSION_ID)"}),
		Entry("Codex", NodeTimeout(15*time.Minute), "codex", "Ask Codex", codexAsks, nil, []string{"resume", "--last"}),
		Entry("Gemini CLI", NodeTimeout(15*time.Minute), "gemini", "Type your message", geminiAsks, []string{"--session-id", "$(SESSION_ID)"}, []string{"--resume", "$(SESSION_ID)"}),
		Entry("opencode", NodeTimeout(15*time.Minute), "opencode", "commands", opencodeAsks, nil, []string{"--continue"}),
	)
})

// startsFile is the file to which a program writes a line for each of its starts.
type startsFile struct{ path string }

func (f startsFile) lines() []string {
	text, _ := os.ReadFile(f.path) // a missing file has no lines
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// newContract returns an Instance of the contract, and the file of its starts.
func newContract(name string) (*testObject, startsFile) {
	home := GinkgoT().TempDir()
	program, file := filepath.Join(home, "agent"), startsFile{filepath.Join(home, "starts")}
	Expect(os.WriteFile(program, []byte(contract), 0o755)).To(Succeed())
	s := instance(name, program, "--session-id", "$(SESSION_ID)")
	process := &s.GetProcessSpec().Process
	process.ResumeCommand = []string{program, "--resume", "$(SESSION_ID)"}
	process.Env = append(process.Env, v1alpha1.EnvVar{Name: "HOME", Value: home}, v1alpha1.EnvVar{Name: "STARTS", Value: file.path})
	return s, file
}

// output returns the output of all incarnations as the program wrote it.
func (s *testObject) output(ctx context.Context) string {
	GinkgoHelper()
	return suiteBerth.run(ctx, "logs", "--raw", s.path())
}

// waitForPrompt waits until the output after its first bytes contains the prompt and pauses, because an agent that is still starting loses its input.
func (s *testObject) waitForPrompt(ctx context.Context, prompt string, after int) {
	GinkgoHelper()
	Eventually(func() string { return s.output(ctx)[after:] }).WithTimeout(startTimeout).Should(ContainSubstring(prompt))
	var shown string
	var since time.Time
	Eventually(func() time.Duration {
		if now := s.output(ctx); now != shown {
			shown, since = now, time.Now()
		}
		return time.Since(since)
	}).WithTimeout(startTimeout).Should(BeNumerically(">", 4*time.Second))
}
