// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// The texts are those that the agents send; see docs/kinds/instance.md.
func TestClaim_MeansWhatAgentsTellTheirTerminal(t *testing.T) {
	now := time.Unix(10_000, 0)
	title := func(text string) facts.Signals { return facts.Signals{Title: facts.Signal{Text: text, At: now}} }
	notice := func(text string) facts.Signals { return facts.Signals{Notice: facts.Signal{Text: text, At: now}} }
	for name, tc := range map[string]struct {
		signals  facts.Signals
		state    v1alpha1.AgentState
		question string
	}{
		"nothing":                          {},
		"Claude Code at rest":              {signals: title("✳ Claude Code"), state: v1alpha1.AgentDone},
		"Claude Code works":                {signals: title("⠂ Claude Code"), state: v1alpha1.AgentWorking},
		"Claude Code asks (iTerm2)":        {signals: notice("Claude needs your permission"), state: v1alpha1.AgentWaiting, question: "permission"},
		"Claude Code asks (rxvt, kitty)":   {signals: notice("Claude Code: Claude needs your permission"), state: v1alpha1.AgentWaiting, question: "permission"},
		"Claude Code waits for a prompt":   {signals: notice("Claude Code: Claude is waiting for your input"), state: v1alpha1.AgentDone},
		"Codex at rest":                    {signals: title("project")},
		"Codex works":                      {signals: title("⠹ project"), state: v1alpha1.AgentWorking},
		"Codex asks":                       {signals: title("[ ! ] Action Required | project"), state: v1alpha1.AgentWaiting, question: "action"},
		"Codex asks and blinks":            {signals: title("[ . ] Action Required | project"), state: v1alpha1.AgentWaiting, question: "action"},
		"Codex asks (notification)":        {signals: notice("Approval requested: touch one"), state: v1alpha1.AgentWaiting, question: "permission"},
		"Codex is done, in its own words":  {signals: notice("done")},
		"Gemini CLI at rest":               {signals: title("◇  Ready (project)   "), state: v1alpha1.AgentDone},
		"Gemini CLI works":                 {signals: title("✦  Working… (project)"), state: v1alpha1.AgentWorking},
		"Gemini CLI thinks":                {signals: title("✦  Reading the files (project)"), state: v1alpha1.AgentWorking},
		"Gemini CLI waits for a command":   {signals: title("⏲  Working… (project)"), state: v1alpha1.AgentWorking},
		"Gemini CLI asks":                  {signals: title("✋  Action Required (project)"), state: v1alpha1.AgentWaiting, question: "action"},
		"Gemini CLI asks (iTerm2)":         {signals: notice("Gemini CLI needs your attention | Approval required"), state: v1alpha1.AgentWaiting, question: "action"},
		"Gemini CLI is done":               {signals: notice("Gemini CLI session complete: Run finished"), state: v1alpha1.AgentDone},
		"opencode":                         {signals: title("OC | greeting")},
		"a text that only contains a mark": {signals: notice("build: it said Approval requested")},
		"a spinner without a space":        {signals: title("⠹")},
		"progress":                         {signals: facts.Signals{Progress: facts.Signal{Text: "3", At: now}}, state: v1alpha1.AgentWorking},
		"no progress any more":             {signals: facts.Signals{Progress: facts.Signal{Text: "0", At: now}}, state: v1alpha1.AgentDone},
		"progress with an error":           {signals: facts.Signals{Progress: facts.Signal{Text: "2", At: now}}},
		"a command of a shell":             {signals: facts.Signals{Mark: facts.Signal{Text: "C", At: now}}, state: v1alpha1.AgentWorking},
		"a prompt of a shell":              {signals: facts.Signals{Mark: facts.Signal{Text: "A", At: now}}, state: v1alpha1.AgentDone},
		"the newest counts": {signals: facts.Signals{
			Title: facts.Signal{Text: "⠹ project", At: now.Add(-time.Second)}, Mark: facts.Signal{Text: "A", At: now}, Notice: facts.Signal{Text: "Approval requested", At: now.Add(-time.Minute)},
		}, state: v1alpha1.AgentDone},
		"a bell":                      {signals: facts.Signals{Bell: now}},
		"a title of an unknown time":  {signals: facts.Signals{Title: facts.Signal{Text: "⠹ project"}}},
		"a notice of an unknown time": {signals: facts.Signals{Notice: facts.Signal{Text: "Approval requested"}}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			claim, _ := claimOf(tc.signals)
			g.Expect(claim.State).To(Equal(tc.state))
			g.Expect(claim.Question).To(Equal(tc.question))
		})
	}
}

func TestAgent_TerminalIsBetweenHookAndScreen(t *testing.T) {
	now := time.Unix(10_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	title := func(text string, at time.Duration) facts.Signals {
		return facts.Signals{Title: facts.Signal{Text: text, At: ago(at)}}
	}
	const works, rests, asks = "⠹ x", "✳ x", "[ ! ] Action Required | x"
	bell := title(rests, time.Minute)
	bell.Bell = ago(time.Second)
	worksSince := title(works, 0)
	worksSince.Bell = ago(time.Second)
	unknown := facts.Signals{Notice: facts.Signal{Text: "look at me", At: ago(time.Second)}}
	hook := &AgentReport{Incarnation: 3, At: ago(time.Hour), State: v1alpha1.AgentDone}
	for name, tc := range map[string]struct {
		facts    AgentFacts
		recorded *v1alpha1.AgentStatus
		state    v1alpha1.AgentState
		source   v1alpha1.AgentSource
		question string
		again    time.Duration
	}{
		"a title":                       {facts: AgentFacts{Signals: title(asks, time.Hour)}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceTerminal, question: "action"},
		"a hook is first":               {facts: AgentFacts{Signals: title(asks, 0), Report: hook}, state: v1alpha1.AgentDone, source: v1alpha1.AgentSourceHook},
		"a hook, contradicted":          {facts: AgentFacts{Signals: title(asks, 0), Report: hook, Typed: ago(time.Minute)}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceTerminal, question: "action"},
		"a question on the screen":      {facts: AgentFacts{Signals: title(asks, 0), Question: "Codex"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceTerminal, question: "action"},
		"input since":                   {facts: AgentFacts{Signals: title(asks, time.Minute), Typed: ago(time.Second)}},
		"input since, and a question":   {facts: AgentFacts{Signals: title(asks, time.Minute), Typed: ago(time.Second), Question: "Codex"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceScreen, question: "Codex"},
		"input before":                  {facts: AgentFacts{Signals: title(asks, time.Second), Typed: ago(time.Minute)}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceTerminal, question: "action"},
		"work beats a new question":     {facts: AgentFacts{Signals: title(works, time.Second), Question: "menu"}, state: v1alpha1.AgentWorking, source: v1alpha1.AgentSourceTerminal, again: time.Second},
		"a question stands":             {facts: AgentFacts{Signals: title(works, 2*time.Second), Question: "menu"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceScreen, question: "menu"},
		"work":                          {facts: AgentFacts{Signals: title(works, 10*time.Second)}, state: v1alpha1.AgentWorking, source: v1alpha1.AgentSourceTerminal, again: 50 * time.Second},
		"quiet work":                    {facts: AgentFacts{Signals: title(works, time.Minute)}},
		"quiet work, other output":      {facts: AgentFacts{Signals: title(works, time.Hour), Shown: ago(0)}, state: v1alpha1.AgentWorking, source: v1alpha1.AgentSourceTerminal, again: time.Minute},
		"at rest":                       {facts: AgentFacts{Signals: title(rests, time.Hour)}, state: v1alpha1.AgentDone, source: v1alpha1.AgentSourceTerminal},
		"at rest, and a question":       {facts: AgentFacts{Signals: title(rests, 0), Question: "Claude Code"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceScreen, question: "Claude Code"},
		"a bell alone":                  {facts: AgentFacts{Signals: facts.Signals{Bell: now}}},
		"a bell, and a question":        {facts: AgentFacts{Signals: bell, Question: "menu"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceTerminal, question: "menu"},
		"a bell that was answered":      {facts: AgentFacts{Signals: bell, Question: "menu", Typed: now}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceScreen, question: "menu"},
		"work since the bell":           {facts: AgentFacts{Signals: worksSince, Question: "menu"}, state: v1alpha1.AgentWorking, source: v1alpha1.AgentSourceTerminal, again: 2 * time.Second},
		"an unknown notification":       {facts: AgentFacts{Signals: unknown}},
		"one, and a question":           {facts: AgentFacts{Signals: unknown, Question: "menu"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceTerminal, question: "menu"},
		"from before this manager":      {facts: AgentFacts{Signals: title(asks, time.Hour), Before: ago(time.Minute)}},
		"from before, and it counted":   {facts: AgentFacts{Signals: title(asks, time.Hour), Before: ago(time.Minute)}, recorded: &v1alpha1.AgentStatus{Incarnation: 3, State: v1alpha1.AgentWaiting, Source: v1alpha1.AgentSourceTerminal, Since: &metav1.MicroTime{Time: ago(time.Hour)}}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceTerminal, question: "action"},
		"while no manager was running":  {facts: AgentFacts{Signals: title(asks, time.Second), Before: ago(time.Minute)}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceTerminal, question: "action"},
		"work from before this manager": {facts: AgentFacts{Signals: title(works, 10*time.Second), Before: now}, state: v1alpha1.AgentWorking, source: v1alpha1.AgentSourceTerminal, again: 50 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tc.facts.Incarnation, tc.facts.Now = 3, now
			agent := tc.facts.Next(tc.recorded)
			var status v1alpha1.AgentStatus
			if agent.Status != nil {
				status = *agent.Status
				g.Expect(status.Since).NotTo(BeNil())
			}
			g.Expect(status.State).To(Equal(tc.state))
			g.Expect(status.Source).To(Equal(tc.source))
			g.Expect(status.Question).To(Equal(tc.question))
			g.Expect(agent.Again).To(Equal(tc.again))
			g.Expect(tc.facts.Next(agent.Status).Status).To(Equal(agent.Status), "a second decision changes nothing")
		})
	}
}
