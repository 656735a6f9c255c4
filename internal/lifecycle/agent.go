// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/facts"
)

const (
	// quietWork is how long a terminal may show nothing new although its agent has reported that it works. Afterwards the report no longer counts: an agent whose
	// user has interrupted it need not report that.
	quietWork = time.Minute
	// settledScreen is how long after an agent has reported that it works its terminal may still show an earlier question.
	settledScreen = 2 * time.Second
)

// AgentReport is what the hooks of a coding agent have reported.
type AgentReport struct {
	Incarnation int64
	// At is when the state was reported.
	At time.Time
	// State is what the agent does; empty if the hooks have only reported the session.
	State v1alpha1.AgentState
	// Question is the kind of the question that the agent waits for. SessionID is the ID of the conversation.
	Question, SessionID string
}

// Merge returns what is known after a newer report. A report without a state leaves the state as it was.
func (r AgentReport) Merge(newer AgentReport) AgentReport {
	if newer.Incarnation != r.Incarnation {
		return newer
	}
	newer.SessionID = cmp.Or(newer.SessionID, r.SessionID)
	if newer.State == "" {
		newer.At, newer.State, newer.Question = r.At, r.State, r.Question
	}
	return newer
}

// AgentFacts is what is known about the program of a running incarnation.
type AgentFacts struct {
	Incarnation int64
	// Report is what hooks have reported to this manager; nil if they have reported nothing, or nothing that still counts.
	Report *AgentReport
	// Signals are what the program has told its terminal.
	Signals facts.Signals
	// Before is the last activity from before this manager observed the incarnation, which may be input; zero if there was none.
	Before time.Time
	// Question is the kind of the question that the terminal shows; empty if it shows none.
	Question string
	// Shown is when the terminal last showed something new, and Typed is when a user last typed through Berth; zero if unknown.
	Shown, Typed time.Time
	Now          time.Time
	Timeline     elapsed.Timeline
}

// Agent is what a program does, derived from AgentFacts.
type Agent struct {
	// Status is nil if nothing is known.
	Status *v1alpha1.AgentStatus
	// Contradicted reports that the last report no longer counts. It must not count again later.
	Contradicted bool
	// Again is when to decide again although no fact has changed; 0 for never.
	Again time.Duration
}

// Next returns what the program does. The report of a hook counts until something contradicts it:
//   - Another incarnation is running.
//   - After Waiting, Done or Failed: a user has typed something through Berth.
//   - After Working: the terminal has shown nothing new for a minute, or it shows a question two seconds after the report or later.
//
// Without a report that counts, what the program has told its terminal decides, and then the question that the terminal shows. recorded is the status that was written last; a new manager continues with it.
func (f AgentFacts) Next(recorded *v1alpha1.AgentStatus) Agent {
	if recorded != nil && recorded.Incarnation != f.Incarnation {
		recorded = nil
	}
	said := f.said(recorded)
	agent := Agent{}
	if said.State != "" {
		agent.Contradicted, agent.Again = f.contradicts(said)
	}
	told, toldAgain := f.told(recorded)
	next := v1alpha1.AgentStatus{Incarnation: f.Incarnation, SessionID: said.SessionID}
	since := metav1.NewMicroTime(f.Now)
	switch {
	case said.State != "" && !agent.Contradicted:
		next.State, next.Question, next.Source = said.State, said.Question, v1alpha1.AgentSourceHook
		since = metav1.NewMicroTime(said.At)
	case told.State != "":
		next.State, next.Question, next.Source = told.State, told.Question, v1alpha1.AgentSourceTerminal
		since, agent.Again = metav1.NewMicroTime(told.At), toldAgain
	case f.Question != "":
		next.State, next.Question, next.Source = v1alpha1.AgentWaiting, f.Question, v1alpha1.AgentSourceScreen
	case next.SessionID == "":
		return agent
	}
	if next.State != "" {
		next.Since = &since
	}
	if recorded != nil && recorded.State == next.State {
		next.Since = recorded.Since // under load, the kind of a question may be recognized later than the question
	}
	agent.Status = &next
	return agent
}

// said returns what the hooks have reported about this incarnation: to this manager, else to an earlier one.
func (f AgentFacts) said(recorded *v1alpha1.AgentStatus) AgentReport {
	var before AgentReport
	if recorded != nil {
		before = AgentReport{Incarnation: f.Incarnation, SessionID: recorded.SessionID}
		if recorded.Source == v1alpha1.AgentSourceHook && recorded.Since != nil {
			before.At, before.State, before.Question = recorded.Since.Time, recorded.State, recorded.Question
		}
	}
	if f.Report == nil || f.Report.Incarnation != f.Incarnation {
		return before
	}
	return before.Merge(*f.Report)
}

// contradicts reports whether something that happened after the report contradicts it, and when to check again.
func (f AgentFacts) contradicts(said AgentReport) (contradicted bool, again time.Duration) {
	if said.State != v1alpha1.AgentWorking {
		return !f.Typed.IsZero() && f.Timeline.After(f.Typed, said.At, f.Now), 0
	}
	age := f.Timeline.Since(said.At, f.Now)
	if f.Question != "" {
		return age >= settledScreen, max(settledScreen-age, 0)
	}
	quiet := age
	if !f.Shown.IsZero() {
		quiet = min(quiet, f.Timeline.Since(f.Shown, f.Now))
	}
	return quiet >= quietWork, max(quietWork-quiet, 0)
}
