// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// showAgent sets status.agent and the condition AwaitingInput, after showWaiting has examined the screen. What the hooks of an agent report takes precedence over
// what its screen shows. showAgent returns when to check again, 0 for never.
func (k *Kind) showAgent(instance *v1alpha1.Instance, current facts.Incarnation, s screenCheck) time.Duration {
	m := k.memories.Keep(instance.UID)
	known := lifecycle.AgentFacts{Incarnation: current.Number, Question: m.screen.question, Typed: k.present.Typed(instance.UID), Now: s.now, Timeline: s.timeline}
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
	if agent.Again > 0 && (again == 0 || agent.Again < again) {
		again = agent.Again
	}
	return again
}

// await sets the condition AwaitingInput: as a hook has reported, or else as the screen implies.
func (k *Kind) await(instance *v1alpha1.Instance, screen verdict) {
	agent := instance.Status.Agent
	switch {
	case agent == nil || agent.Source != v1alpha1.AgentSourceHook:
		k.set(instance, v1alpha1.ConditionAwaitingInput, screen.status, screen.reason, screen.message)
	case agent.State == v1alpha1.AgentWaiting:
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionTrue, v1alpha1.ReasonAwaitingInput, "A hook of the agent reports a question ("+agent.Question+").")
	default:
		k.set(instance, v1alpha1.ConditionAwaitingInput, metav1.ConditionFalse, v1alpha1.ReasonNotAwaitingInput, "")
	}
}
