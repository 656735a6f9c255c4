// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// meaning is what a signal says if its text begins with a prefix. question is the kind of the question that the program waits for.
type meaning struct {
	prefix   string
	state    v1alpha1.AgentState
	question string
}

// titles are the titles of Claude Code, Codex and Gemini CLI. A spinner of Braille patterns, which titleOf recognizes, means work. At rest, the title does not show
// whether a question is shown.
var titles = []meaning{
	{"✳ ", v1alpha1.AgentDone, ""},
	{"[ ! ] Action Required", v1alpha1.AgentWaiting, "action"}, {"[ . ] Action Required", v1alpha1.AgentWaiting, "action"},
	{"✦ ", v1alpha1.AgentWorking, ""}, {"⏲ ", v1alpha1.AgentWorking, ""}, {"✋  Action Required", v1alpha1.AgentWaiting, "action"}, {"◇  Ready", v1alpha1.AgentDone, ""},
}

// notices are the notifications of Claude Code, Codex, Gemini CLI and opencode. The text of others is not known in advance.
var notices = []meaning{
	{"Claude needs your permission", v1alpha1.AgentWaiting, "permission"}, {"Claude needs your approval", v1alpha1.AgentWaiting, "permission"},
	{"Claude needs your input", v1alpha1.AgentWaiting, "question"}, {"Claude is waiting for your input", v1alpha1.AgentDone, ""},
	{"Approval requested", v1alpha1.AgentWaiting, "permission"}, {"Codex wants to edit", v1alpha1.AgentWaiting, "permission"},
	{"Question requested", v1alpha1.AgentWaiting, "question"}, {"Plan mode prompt", v1alpha1.AgentWaiting, "plan"}, {"Agent turn complete", v1alpha1.AgentDone, ""},
	{"Gemini CLI needs your attention", v1alpha1.AgentWaiting, "action"}, {"Gemini CLI session complete", v1alpha1.AgentDone, ""},
	{"Permission needs input", v1alpha1.AgentWaiting, "permission"}, {"Question needs input", v1alpha1.AgentWaiting, "question"},
}

var (
	progress = []meaning{{"0", v1alpha1.AgentDone, ""}, {"1", v1alpha1.AgentWorking, ""}, {"3", v1alpha1.AgentWorking, ""}}
	marks    = []meaning{{"A", v1alpha1.AgentDone, ""}, {"B", v1alpha1.AgentDone, ""}, {"C", v1alpha1.AgentWorking, ""}, {"D", v1alpha1.AgentDone, ""}}
)

// says returns what a signal means. The state of the report is empty if that is not known.
func says(signal facts.Signal, meanings []meaning) AgentReport {
	for _, m := range meanings {
		if strings.HasPrefix(signal.Text, m.prefix) && !signal.At.IsZero() {
			return AgentReport{At: signal.At, State: m.state, Question: m.question}
		}
	}
	return AgentReport{}
}

// titleOf returns what a title means.
func titleOf(title facts.Signal) AgentReport {
	const firstBraille, lastBraille = '\u2801', '\u28ff'
	if spinner, size := utf8.DecodeRuneInString(title.Text); spinner >= firstBraille && spinner <= lastBraille && strings.HasPrefix(title.Text[size:], " ") {
		return says(facts.Signal{At: title.At}, []meaning{{"", v1alpha1.AgentWorking, ""}})
	}
	return says(title, titles)
}

// noticeOf returns what a notification means. Its title may precede its text.
func noticeOf(notice facts.Signal) AgentReport {
	said := says(notice, notices)
	if _, body, found := strings.Cut(notice.Text, ": "); found && said.State == "" {
		return says(facts.Signal{Text: body, At: notice.At}, notices)
	}
	return said
}

// claimOf returns the last signal of a program to its terminal, as far as its meaning is known, and when it last asked for attention without that: a bell, or a
// notification whose text is not known.
func claimOf(s facts.Signals) (claim AgentReport, called time.Time) {
	called = s.Bell
	notice := noticeOf(s.Notice)
	if notice.State == "" && s.Notice.At.After(called) {
		called = s.Notice.At
	}
	for _, said := range []AgentReport{says(s.Mark, marks), says(s.Progress, progress), titleOf(s.Title), notice} {
		if said.State != "" && !said.At.Before(claim.At) {
			claim = said
		}
	}
	return claim, called
}

// told returns what the program has told its terminal, if it counts, and when to decide again; 0 for never.
//
// A claim decays like the report of a hook. Beside a question on the screen, a program at rest is no claim, because agents do not report all their questions, and a
// bell later than the claim confirms the question.
func (f AgentFacts) told(recorded *v1alpha1.AgentStatus) (claim AgentReport, again time.Duration) {
	claim, called := claimOf(f.Signals)
	if f.Question != "" && called.After(claim.At) {
		claim = AgentReport{At: called, State: v1alpha1.AgentWaiting, Question: f.Question}
	}
	contradicted := claim.State == "" || claim.State == v1alpha1.AgentDone && f.Question != ""
	if !contradicted {
		contradicted, again = f.contradicts(claim)
	}
	if contradicted || f.precedes(claim, recorded) {
		return AgentReport{}, 0
	}
	return claim, again
}

// precedes reports whether a claim is older than what this manager knows, and did not count before. It was contradicted by input of which this manager does not know.
func (f AgentFacts) precedes(claim AgentReport, recorded *v1alpha1.AgentStatus) bool {
	if claim.State == v1alpha1.AgentWorking || f.Before.IsZero() || f.Timeline.After(claim.At, f.Before, f.Now) {
		return false
	}
	return recorded == nil || recorded.Source != v1alpha1.AgentSourceTerminal || recorded.State != claim.State
}
