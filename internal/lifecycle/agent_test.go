// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestAgent_HookBeatsScreenUntilContradicted(t *testing.T) {
	now := time.Unix(10_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	report := func(state v1alpha1.AgentState, question string, at time.Duration) *AgentReport {
		return &AgentReport{Incarnation: 3, At: ago(at), State: state, Question: question, SessionID: "s1"}
	}
	for name, tc := range map[string]struct {
		facts        AgentFacts
		state        v1alpha1.AgentState
		source       v1alpha1.AgentSource
		question     string
		contradicted bool
		again        time.Duration
	}{
		"nothing is known":              {facts: AgentFacts{}},
		"only the screen":               {facts: AgentFacts{Question: "Codex"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceScreen, question: "Codex"},
		"a report of a question":        {facts: AgentFacts{Report: report(v1alpha1.AgentWaiting, "permission", time.Hour)}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceHook, question: "permission"},
		"a question, input before":      {facts: AgentFacts{Report: report(v1alpha1.AgentWaiting, "permission", time.Second), Typed: ago(2 * time.Second)}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceHook, question: "permission"},
		"a question, output since":      {facts: AgentFacts{Report: report(v1alpha1.AgentWaiting, "permission", time.Hour), Shown: ago(0)}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceHook, question: "permission"},
		"a question, input since":       {facts: AgentFacts{Report: report(v1alpha1.AgentWaiting, "permission", 2*time.Second), Typed: ago(time.Second)}, contradicted: true},
		"another question after input":  {facts: AgentFacts{Report: report(v1alpha1.AgentWaiting, "permission", 2*time.Second), Typed: ago(time.Second), Question: "Claude Code"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceScreen, question: "Claude Code", contradicted: true},
		"work beats a question":         {facts: AgentFacts{Report: report(v1alpha1.AgentWorking, "", time.Second), Shown: ago(time.Hour), Question: "menu"}, state: v1alpha1.AgentWorking, source: v1alpha1.AgentSourceHook, again: time.Second},
		"work and a question since":     {facts: AgentFacts{Report: report(v1alpha1.AgentWorking, "", 2*time.Second), Shown: ago(0), Question: "menu"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceScreen, question: "menu", contradicted: true},
		"work, quiet for a while":       {facts: AgentFacts{Report: report(v1alpha1.AgentWorking, "", time.Hour), Shown: ago(50 * time.Second)}, state: v1alpha1.AgentWorking, source: v1alpha1.AgentSourceHook, again: 10 * time.Second},
		"work, quiet for a minute":      {facts: AgentFacts{Report: report(v1alpha1.AgentWorking, "", time.Hour), Shown: ago(time.Minute)}, contradicted: true},
		"work, input since":             {facts: AgentFacts{Report: report(v1alpha1.AgentWorking, "", time.Hour), Shown: ago(0), Typed: ago(0)}, state: v1alpha1.AgentWorking, source: v1alpha1.AgentSourceHook, again: time.Minute},
		"done beats a question":         {facts: AgentFacts{Report: report(v1alpha1.AgentDone, "", time.Hour), Question: "yes or no"}, state: v1alpha1.AgentDone, source: v1alpha1.AgentSourceHook},
		"done, input since":             {facts: AgentFacts{Report: report(v1alpha1.AgentDone, "", time.Hour), Typed: ago(0), Question: "menu"}, state: v1alpha1.AgentWaiting, source: v1alpha1.AgentSourceScreen, question: "menu", contradicted: true},
		"failed":                        {facts: AgentFacts{Report: report(v1alpha1.AgentFailed, "", time.Hour)}, state: v1alpha1.AgentFailed, source: v1alpha1.AgentSourceHook},
		"only the session":              {facts: AgentFacts{Report: report("", "", 0)}},
		"a report of another iteration": {facts: AgentFacts{Report: &AgentReport{Incarnation: 2, At: now, State: v1alpha1.AgentDone}}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tc.facts.Incarnation, tc.facts.Now = 3, now
			agent := tc.facts.Next(nil)
			g.Expect(agent.Contradicted).To(Equal(tc.contradicted))
			g.Expect(agent.Again).To(Equal(tc.again))
			var status v1alpha1.AgentStatus
			if agent.Status != nil {
				status = *agent.Status
				g.Expect(status.Incarnation).To(BeEquivalentTo(3))
				g.Expect(status.Since == nil).To(Equal(tc.state == ""))
			}
			g.Expect(status.State).To(Equal(tc.state))
			g.Expect(status.Source).To(Equal(tc.source))
			g.Expect(status.Question).To(Equal(tc.question))
			if report := tc.facts.Report; report != nil && report.Incarnation == 3 {
				g.Expect(status.SessionID).To(Equal("s1"), "the session stays known")
			}
			again := tc.facts.Next(agent.Status)
			g.Expect(again.Status).To(Equal(agent.Status), "a second decision changes nothing")
		})
	}
}

func TestAgent_ContinuesWithTheRecord(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(10_000, 0)
	since := metav1.NewMicroTime(now.Add(-10 * time.Second))
	recorded := &v1alpha1.AgentStatus{Incarnation: 3, State: v1alpha1.AgentWaiting, Question: "plan", Since: &since, SessionID: "s1", Source: v1alpha1.AgentSourceHook}
	facts := AgentFacts{Incarnation: 3, Now: now}
	g.Expect(facts.Next(recorded).Status).To(Equal(recorded), "a new manager has no report")
	facts.Report = &AgentReport{Incarnation: 3, At: now, State: v1alpha1.AgentWaiting, Question: "plan"}
	g.Expect(facts.Next(recorded).Status).To(Equal(recorded), "the same state again begins at the same time")
	facts.Report = &AgentReport{Incarnation: 3, At: now, State: v1alpha1.AgentWaiting, Question: "question"}
	g.Expect(facts.Next(recorded).Status).To(And(HaveField("Since", &since), HaveField("Question", "question")), "the state stays, so it began at the same time")
	facts.Report, facts.Typed = nil, now
	g.Expect(facts.Next(recorded).Status).To(Equal(&v1alpha1.AgentStatus{Incarnation: 3, SessionID: "s1"}), "input since")
	facts.Incarnation = 4
	g.Expect(facts.Next(recorded).Status).To(BeNil(), "the report ends with its process")
}

func TestAgent_SinceStaysWhileTheStateStays(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(10_000, 0)
	facts := AgentFacts{Incarnation: 3, Now: now, Question: "menu"}
	first := facts.Next(nil).Status
	facts.Now, facts.Question = now.Add(time.Second), "Claude Code"
	second := facts.Next(first).Status
	g.Expect(second).To(And(HaveField("Question", "Claude Code"), HaveField("Since", first.Since)), "another kind")
	facts.Report = &AgentReport{Incarnation: 3, At: facts.Now, State: v1alpha1.AgentWaiting, Question: "permission"}
	g.Expect(facts.Next(second).Status).To(And(HaveField("Source", v1alpha1.AgentSourceHook), HaveField("Since", first.Since)), "another source")
	facts.Report.State, facts.Report.Question = v1alpha1.AgentDone, ""
	g.Expect(facts.Next(second).Status.Since.Time).To(Equal(facts.Now), "another state")
}

func TestAgentReport_MergeKeepsStateAndSession(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(10_000, 0)
	first := AgentReport{Incarnation: 1, At: now, State: v1alpha1.AgentDone}
	session := first.Merge(AgentReport{Incarnation: 1, At: now.Add(time.Second), SessionID: "s1"})
	g.Expect(session).To(Equal(AgentReport{Incarnation: 1, At: now, State: v1alpha1.AgentDone, SessionID: "s1"}))
	working := session.Merge(AgentReport{Incarnation: 1, At: now.Add(time.Second), State: v1alpha1.AgentWorking})
	g.Expect(working).To(Equal(AgentReport{Incarnation: 1, At: now.Add(time.Second), State: v1alpha1.AgentWorking, SessionID: "s1"}))
	g.Expect(working.Merge(AgentReport{Incarnation: 2, SessionID: "s2"})).To(Equal(AgentReport{Incarnation: 2, SessionID: "s2"}), "another incarnation")
}
