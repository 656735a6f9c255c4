// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/json"
	"io"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// maxEvent is how many bytes of an event are read for its fields. maxDrained is how many more are read and dropped, so that an agent can write a large event.
	maxEvent   = 1 << 20
	maxDrained = 64 << 20
	// maxField is the maximum length of a field that is used. Longer ones are ignored.
	maxField = 256
)

// event has the fields of an event that are used. Claude Code and Gemini CLI write the event to standard input, Codex passes it as an argument.
type event struct {
	name         string // hook_event_name, or type in the notifications of Codex
	sessionID    string // session_id, or thread-id in the notifications of Codex
	notification string // notification_type
	tool         string // tool_name
}

// Parse returns what an event of a hook means. relevant is false if it means nothing, for example because it is not an event of a known agent. Parse reads an event
// of any size; fields after the first MiB do not count. It does not read beyond the event, whose writer may keep its end open.
func Parse(r io.Reader) (report Report, relevant bool) {
	report = readEvent(io.LimitReader(r, maxEvent)).report()
	return report, report.Validate() == nil
}

// Drain reads the rest of an event, so that its writer is not interrupted.
func Drain(r io.Reader) { _, _ = io.Copy(io.Discard, io.LimitReader(r, maxDrained)) } // the agent may have gone

// readEvent reads fields until the end of the object, or until the text is not valid JSON any more, for example because the limit was reached.
func readEvent(r io.Reader) event {
	var e event
	fields := map[string]*string{
		"hook_event_name": &e.name, "type": &e.name, "session_id": &e.sessionID, "thread-id": &e.sessionID,
		"notification_type": &e.notification, "tool_name": &e.tool,
	}
	decoder := json.NewDecoder(r)
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return e
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return e
		}
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return e
		}
		name, _ := key.(string)
		var text string
		if field := fields[name]; field != nil && len(raw) <= maxField && json.Unmarshal(raw, &text) == nil && *field == "" {
			*field = text
		}
	}
	return e
}

// states are the events that always mean the same state: of Claude Code, Gemini CLI and Codex, in this order.
var states = map[string]v1alpha1.AgentState{
	"UserPromptSubmit": v1alpha1.AgentWorking, "PostToolUse": v1alpha1.AgentWorking, "PostToolUseFailure": v1alpha1.AgentWorking,
	"ElicitationResult": v1alpha1.AgentWorking, "PermissionDenied": v1alpha1.AgentWorking,
	"PermissionRequest": v1alpha1.AgentWaiting, "Elicitation": v1alpha1.AgentWaiting,
	"Stop": v1alpha1.AgentDone, "StopFailure": v1alpha1.AgentFailed,

	"BeforeAgent": v1alpha1.AgentWorking, "AfterTool": v1alpha1.AgentWorking, "AfterAgent": v1alpha1.AgentDone,

	"agent-turn-complete": v1alpha1.AgentDone,
}

// notifications are the types of notifications that mean a state.
var notifications = map[string]v1alpha1.AgentState{
	"permission_prompt": v1alpha1.AgentWaiting, "elicitation_dialog": v1alpha1.AgentWaiting, "idle_prompt": v1alpha1.AgentDone, // Claude Code
	"ToolPermission": v1alpha1.AgentWaiting, // Gemini CLI
}

// report returns what an event means. Its session ID is dropped if it is invalid.
func (e event) report() Report {
	r := Report{State: states[e.name], SessionID: e.sessionID}
	switch {
	case e.name == "Notification":
		r.State = notifications[e.notification]
	case r.State == "" && e.name != "SessionStart":
		return Report{}
	}
	if r.State == v1alpha1.AgentWaiting {
		r.Question = e.question()
	}
	if !validSession.MatchString(r.SessionID) {
		r.SessionID = ""
	}
	return r
}

// question returns the kind of the question that an event announces.
func (e event) question() string {
	switch {
	case e.name == "Elicitation", e.notification == "elicitation_dialog", e.tool == "AskUserQuestion":
		return "question"
	case e.tool == "ExitPlanMode":
		return "plan"
	default:
		return "permission"
	}
}
