// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"io"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestParse_EventsOfAgents(t *testing.T) {
	for text, want := range map[string]Report{
		`{"session_id":"s1","hook_event_name":"SessionStart","source":"startup"}`:                                              {SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"UserPromptSubmit","prompt":"p"}`:                                                {State: v1alpha1.AgentWorking, SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"PermissionRequest","tool_name":"Bash","tool_input":{"command":"x","type":"y"}}`: {State: v1alpha1.AgentWaiting, Question: "permission", SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"PermissionRequest","tool_name":"AskUserQuestion"}`:                              {State: v1alpha1.AgentWaiting, Question: "question", SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"PermissionRequest","tool_name":"ExitPlanMode"}`:                                 {State: v1alpha1.AgentWaiting, Question: "plan", SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"Notification","notification_type":"permission_prompt","message":"m"}`:           {State: v1alpha1.AgentWaiting, Question: "permission", SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"Notification","notification_type":"idle_prompt"}`:                               {State: v1alpha1.AgentDone, SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"Notification","notification_type":"auth_success"}`:                              {SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"Stop"}`:                                                                         {State: v1alpha1.AgentDone, SessionID: "s1"},
		`{"session_id":"s1","hook_event_name":"StopFailure","error":"rate_limit"}`:                                             {State: v1alpha1.AgentFailed, SessionID: "s1"},
		`{"session_id":"g","hook_event_name":"Notification","notification_type":"ToolPermission"}`:                             {State: v1alpha1.AgentWaiting, Question: "permission", SessionID: "g"},
		`{"session_id":"g","hook_event_name":"BeforeAgent"}`:                                                                   {State: v1alpha1.AgentWorking, SessionID: "g"},
		`{"session_id":"g","hook_event_name":"AfterAgent"}`:                                                                    {State: v1alpha1.AgentDone, SessionID: "g"},
		`{"type":"agent-turn-complete","thread-id":"c","last-assistant-message":"text"}`:                                       {State: v1alpha1.AgentDone, SessionID: "c"},
		`{"hook_event_name":"Stop","session_id":"` + strings.Repeat("x", 200) + `"}`:                                           {State: v1alpha1.AgentDone},
		`{"hook_event_name":"Stop","session_id":"a b\u001b"}`:                                                                  {State: v1alpha1.AgentDone},
		`{"hook_event_name":"Stop","session_id":["s"],"tool_input":`:                                                           {State: v1alpha1.AgentDone},
	} {
		g := NewWithT(t)
		report, relevant := Parse(strings.NewReader(text))
		g.Expect(relevant).To(BeTrue(), text)
		g.Expect(report).To(Equal(want), text)
	}
	for _, text := range []string{
		"", "null", "[]", "{", `{"hook_event_name":"PreCompact","session_id":"s1"}`, `{"hook_event_name":"SubagentStop","session_id":"s1"}`, `{"hook_event_name":["Stop"]}`,
		`{"tool_input":{"hook_event_name":"Stop"}}`, `{"hook_event_name":"Notification","notification_type":"other"}`, strings.Repeat("[", 100_000),
	} {
		_, relevant := Parse(strings.NewReader(text))
		NewWithT(t).Expect(relevant).To(BeFalse(), text)
	}
}

func TestParse_ReadsLargeEvents(t *testing.T) {
	g := NewWithT(t)
	text := strings.NewReader(`{"session_id":"s1","hook_event_name":"PermissionRequest","tool_name":"Write","tool_input":{"content":"` + strings.Repeat("x", 5<<20) + `"}}`)
	report, relevant := Parse(text)
	g.Expect(relevant).To(BeTrue())
	g.Expect(report).To(Equal(Report{State: v1alpha1.AgentWaiting, Question: "permission", SessionID: "s1"}))
	Drain(text)
	g.Expect(text.Len()).To(BeZero(), "the agent can write the whole event")
}

// An agent may keep its end of the pipe open.
func TestParse_ReturnsAtEndOfEvent(t *testing.T) {
	g := NewWithT(t)
	read, write := io.Pipe()
	defer func() { _ = write.Close() }()
	go func() { _, _ = write.Write([]byte(`{"hook_event_name":"Stop"}` + "\n")) }()
	parsed := make(chan Report, 1)
	go func() {
		report, _ := Parse(read)
		parsed <- report
	}()
	g.Eventually(parsed, 10*time.Second).Should(Receive(Equal(Report{State: v1alpha1.AgentDone})))
}

func FuzzParse(f *testing.F) {
	f.Add(`{"session_id":"s1","hook_event_name":"Stop"}`)
	f.Add(`{"type":"agent-turn-complete","thread-id":"c"}`)
	f.Fuzz(func(t *testing.T, text string) {
		if report, relevant := Parse(strings.NewReader(text)); relevant && report.Validate() != nil {
			t.Fatalf("%q became the invalid report %+v", text, report)
		}
	})
}

func TestReport_IsBounded(t *testing.T) {
	for name, r := range map[string]Report{
		"nothing":                   {},
		"an unknown state":          {State: "Dreaming"},
		"a question without a kind": {State: v1alpha1.AgentWaiting},
		"a text as a question":      {State: v1alpha1.AgentWaiting, Question: "Delete all files?"},
		"a long question":           {State: v1alpha1.AgentWaiting, Question: strings.Repeat("x", 33)},
		"a question while working":  {State: v1alpha1.AgentWorking, Question: "permission"},
		"a long session":            {State: v1alpha1.AgentDone, SessionID: strings.Repeat("x", 129)},
		"a session that is a text":  {State: v1alpha1.AgentDone, SessionID: "../x y"},
	} {
		NewWithT(t).Expect(r.Validate()).NotTo(Succeed(), name)
	}
}
