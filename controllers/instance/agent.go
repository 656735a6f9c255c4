// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// showAgent sets status.agent and the condition AwaitingInput, after showWaiting has examined the screen. What the hooks of an agent report takes precedence over
// what it tells its terminal, and that over what its screen shows. showAgent returns when to check again, 0 for never.
func (k *Kind) showAgent(ctx context.Context, instance *v1alpha1.Instance, current facts.Incarnation, s screenCheck) time.Duration {
	m := k.memories.Keep(instance.UID)
	listen := k.listen(ctx, instance, m, s)
	known := lifecycle.AgentFacts{
		Incarnation: current.Number, Question: m.screen.question, Signals: m.told, Before: m.before,
		Typed: k.present.Typed(instance.UID), Now: s.now, Timeline: s.timeline,
	}
	if s.err == nil {
		known.Shown = s.active
	}
	report, again := k.reports.Take(instance.UID)
	if report.At.Equal(m.contradicted) {
		report.State, report.Question = "", "" // only the session counts
	}
	known.Report = &report
	agent := known.Next(instance.Status.Agent)
	if agent.Contradicted {
		m.contradicted = report.At
	}
	instance.Status.Agent = agent.Status
	k.await(instance, m.screen)
	return process.Soonest(again, agent.Again, listen)
}

// listen notes in the cache what the program has told its terminal: while the terminal changes, at most once in each period of glanceEvery, because a spinner in a
// title changes more often. It returns when to call it again, 0 for never.
func (k *Kind) listen(ctx context.Context, instance *v1alpha1.Instance, m *objectCache, s screenCheck) time.Duration {
	if s.err != nil {
		return 0
	}
	settled := s.active.Add(stillness) // a backend may report the time of output earlier than what it contains
	if !m.heard.IsZero() {
		if !s.timeline.After(settled, m.heard, s.now) {
			return 0
		}
		if passed := s.timeline.Since(m.heard, s.now); passed < glanceEvery {
			return glanceEvery - passed
		}
	}
	told := k.Runtime(instance).Capabilities().Told(ctx, instance.UID)
	if title := &told.Title; title.At.IsZero() && title.Text != "" { // the backend knows only the text
		if title.At = s.now; title.Text == m.told.Title.Text {
			title.At = m.told.Title.At
		}
	}
	m.told, m.heard = told, s.now
	if s.timeline.After(settled, s.now, s.now) {
		return glanceEvery
	}
	return 0
}

// await sets the condition AwaitingInput: as a hook has reported, else as the program has told its terminal, else as the screen implies.
func (k *Kind) await(instance *v1alpha1.Instance, screen verdict) {
	agent := instance.Status.Agent
	switch {
	case agent == nil || agent.Source != v1alpha1.AgentSourceHook && agent.Source != v1alpha1.AgentSourceTerminal:
		k.set(instance, v1alpha1.ConditionAwaitingInput, screen.status, screen.reason, screen.message)
	case agent.State == v1alpha1.AgentWaiting && agent.Source == v1alpha1.AgentSourceTerminal:
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput, "The program has told its terminal that it waits ("+agent.Question+").")
	case agent.Source == v1alpha1.AgentSourceTerminal && !screen.asks():
		k.set(instance, v1alpha1.ConditionAwaitingInput, screen.status, screen.reason, screen.message)
	case agent.State == v1alpha1.AgentWaiting:
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput, "A hook of the agent reports a question ("+agent.Question+").")
	default:
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionFalse, v1alpha1.ReasonNotAwaitingInput, "")
	}
}
