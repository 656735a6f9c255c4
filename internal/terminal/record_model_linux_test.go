// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// object is a JSON object.
type object = map[string]any

// call is one use of a tool that the model proposes.
type call struct {
	tool  string
	input object
}

// proposals are what the model proposes after a prompt that contains "propose NAME". Each agent has other tools.
var proposals = map[string][]call{
	"claude-bash":   {{"Bash", object{"command": "touch one", "description": "Create a file"}}},
	"claude-sleep":  {{"Bash", object{"command": "echo started; sleep 600", "description": "Wait"}}},
	"claude-wait":   {{"Bash", object{"command": "touch one; sleep 600", "description": "Wait"}}},
	"claude-write":  {{"Write", object{"file_path": "/tmp/x/claude-write/new.txt", "content": "x\n"}}},
	"claude-read":   {{"Read", object{"file_path": "/etc/hostname"}}},
	"claude-fetch":  {{"WebFetch", object{"url": "https://example.com/", "prompt": "summarize"}}},
	"claude-plan":   {{"ExitPlanMode", object{"plan": "1. Read the files.\n2. Change the files."}}},
	"claude-choose": {{"AskUserQuestion", choose(false)}},
	"claude-pick":   {{"AskUserQuestion", choose(true)}},
	"codex-command": {{"exec_command", object{"cmd": "touch one", "sandbox_permissions": "require_escalated", "justification": "Create a file?"}}},
	"codex-sleep":   {{"exec_command", object{"cmd": "echo started; sleep 600", "yield_time_ms": 600000}}},
	"codex-patch":   {{"exec_command", object{"cmd": "apply_patch <<'END'\n*** Begin Patch\n*** Add File: /opt/elsewhere.txt\n+x\n*** End Patch\nEND\n"}}},
	"gemini-shell":  {{"run_shell_command", object{"command": "touch one", "description": "Create a file"}}},
	"gemini-sleep":  {{"run_shell_command", object{"command": "echo started; sleep 600", "description": "Wait"}}},
	"gemini-write":  {{"write_file", object{"file_path": "new.txt", "content": "x\n"}}},
	"gemini-choose": {{"ask_user", object{"questions": []any{object{"question": "Which color do you prefer?", "header": "Color", "type": "choice",
		"options": []any{object{"label": "Red", "description": "warm"}, object{"label": "Blue", "description": "cold"}}}}}}},
	"opencode-bash":   {{"bash", object{"command": "touch one", "description": "Create a file"}}},
	"opencode-sleep":  {{"bash", object{"command": "echo started; sleep 600", "description": "Wait"}}},
	"opencode-write":  {{"write", object{"filePath": "new.txt", "content": "x\n"}}},
	"opencode-choose": {{"question", choose(false)}},

	"claude-steps":   {{"Bash", object{"command": steps, "description": "Create a file"}}},
	"claude-both":    {{"Bash", object{"command": "touch one", "description": "Create a file"}}, {"Bash", object{"command": "touch two", "description": "Create another"}}},
	"claude-log":     {{"Bash", object{"command": asksItself, "description": "Print"}}},
	"codex-steps":    {{"exec_command", object{"cmd": steps, "sandbox_permissions": "require_escalated", "justification": "Create a file?"}}},
	"codex-both":     {{"exec_command", object{"cmd": "touch one", "sandbox_permissions": "require_escalated", "justification": "Create a file?"}}, {"exec_command", object{"cmd": "touch two", "sandbox_permissions": "require_escalated", "justification": "Create another?"}}},
	"codex-log":      {{"exec_command", object{"cmd": asksItself, "yield_time_ms": 20000}}},
	"codex-choose":   {{"exec_command", object{"cmd": "cat /etc/hostname", "sandbox_permissions": "require_escalated", "justification": "Read a file?"}}},
	"gemini-steps":   {{"run_shell_command", object{"command": steps, "description": "Create a file"}}},
	"gemini-both":    {{"run_shell_command", object{"command": "touch one", "description": "Create a file"}}, {"run_shell_command", object{"command": "touch two", "description": "Create another"}}},
	"gemini-log":     {{"run_shell_command", object{"command": asksItself, "description": "Print"}}},
	"opencode-steps": {{"bash", object{"command": steps, "description": "Create a file"}}},
	"opencode-both":  {{"bash", object{"command": "touch one", "description": "Create a file"}}, {"bash", object{"command": "touch two", "description": "Create another"}}},
	"opencode-log":   {{"bash", object{"command": asksItself, "description": "Print"}}},
	"qwen-shell":     {{"run_shell_command", object{"command": "touch one", "description": "Create a file", "is_background": false}}},
	"qwen-steps":     {{"run_shell_command", object{"command": steps, "description": "Create a file", "is_background": false}}},
	"qwen-both":      {{"run_shell_command", object{"command": "touch one", "description": "Create a file", "is_background": false}}, {"run_shell_command", object{"command": "touch two", "description": "Create another", "is_background": false}}},
	"qwen-log":       {{"run_shell_command", object{"command": asksItself, "description": "Print", "is_background": false}}},
	"claude-edits":   {{"Write", object{"file_path": "/tmp/x/claude-edits/new.txt", "content": "x\n"}}},
	"claude-twice":   {{"Write", object{"file_path": "/tmp/x/claude-twice/new.txt", "content": "x\n"}}},
	"qwen-edits":     {{"write_file", object{"file_path": "/tmp/x/qwen-edits/new.txt", "content": "x\n"}}},
	"qwen-twice":     {{"write_file", object{"file_path": "/tmp/x/qwen-twice/new.txt", "content": "x\n"}}},
	"qwen-choose":    {{"ask_user_question", choose(false)}},
}

const (
	// steps is a command that works for some seconds.
	steps = "touch one; for i in 1 2 3; do echo step $i; sleep 1; done"
	// asksItself is a command that prints what looks like a question, and reads nothing.
	asksItself = "for i in 1 2 3 4; do echo \"Do you want to proceed? [y/N] $i\"; sleep 1; done"
)

func choose(several bool) object {
	return object{"questions": []any{object{"question": "Which color do you prefer?", "header": "Color", "multiSelect": several, "multiple": several,
		"options": []any{object{"label": "Red", "description": "warm"}, object{"label": "Blue", "description": "cold"}}}}}
}

var (
	proposal = regexp.MustCompile(`propose ([a-z]+-[a-z]+)`)
	// results are how the requests of the agents contain the result of a tool.
	results = regexp.MustCompile(`"tool_result"|call_output"|tool_call_id"|functionResponse"`)
)

// orders are the prompts that the model knows, other than proposals. The last one of a request decides.
var orders = []string{"keep thinking", "keep talking", "think briefly", "talk briefly", "fail please", "greeting please"}

// ordered returns the last order or proposal of a request, and whether the request contains the result of a tool after it.
func ordered(body string) (order string, answered bool) {
	at := -1
	for _, o := range orders {
		if found := strings.LastIndex(body, o); found > at {
			at, order = found, o
		}
	}
	if all := proposal.FindAllStringSubmatchIndex(body, -1); all != nil && all[len(all)-1][0] > at {
		last := all[len(all)-1]
		at, order = last[0], body[last[2]:last[3]]
	}
	return order, at >= 0 && results.MatchString(body[at:])
}

const (
	// briefly is how many lines the model says after "talk briefly", one in 300 ms, and briefTime how long it thinks after "think briefly".
	briefly   = 14
	briefTime = 4 * time.Second
)

// newRecordedModel returns a server in place of the models of all agents. It proposes what the last prompt names, does not answer after "keep thinking", writes one line after the
// other after "keep talking", fails after "fail please", and otherwise says nothing more. It reports what each answer means for the agent: Waiting for an answer of its user, or Done.
// With once, it makes each proposal once, because the requests of Claude Code after a changed file repeat the prompt.
func newRecordedModel(means func(truth string), once bool) *httptest.Server {
	mux := http.NewServeMux()
	var made sync.Map
	answer := func(pattern string, events func(body string, proposed []call, text string) []any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			content, _ := io.ReadAll(r.Body)
			body := string(content)
			order, answered := ordered(body)
			var proposed []call
			if wanted := proposals[order]; wanted != nil && !answered && strings.Contains(body, `"`+wanted[0].tool+`"`) {
				proposed = wanted
				if _, before := made.LoadOrStore(order, true); before && once {
					proposed = nil
				}
			}
			reply := modelReply{w: w, r: r, body: body, events: events}
			switch {
			case !usesTools.MatchString(body): // for example the title of the conversation, or which model Gemini CLI should use
				reply.send(events(body, nil, "done"))
				return
			case order == "fail please":
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, `{"type": "error", "error": {"type": "invalid_request_error", "code": 400, "message": "no model", "status": "INVALID_ARGUMENT"}}`)
				means("Done")
				return
			case order == "keep thinking":
				reply.think(r.Context().Done())
				return
			case order == "think briefly":
				reply.think(time.After(briefTime))
			case order == "keep talking":
				reply.talk(-1)
				return
			case order == "talk briefly":
				reply.talk(briefly)
				means("Done")
				return
			}
			reply.send(events(body, proposed, "done"))
			switch {
			case proposed == nil:
				means("Done")
			case !silently.MatchString(order):
				means("Waiting")
			}
		})
	}
	answer("POST /v1/messages", claudeEvents)
	answer("POST /v1/responses", codexEvents)
	answer("POST /v1/chat/completions", opencodeEvents)
	answer("POST /v1beta/models/", geminiEvents)
	return httptest.NewServer(mux)
}

var (
	// usesTools matches requests that are part of the conversation.
	usesTools = regexp.MustCompile(`"tools":\s*\[\s*\{`)
	// silently matches the proposals that the agents may run without a question.
	silently = regexp.MustCompile(`-(sleep|log)$`)
)

// modelReply is one answer of the model.
type modelReply struct {
	w      http.ResponseWriter
	r      *http.Request
	body   string
	events func(body string, proposed []call, text string) []any
}

func (m modelReply) send(all []any) {
	m.w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range all {
		data, _ := json.Marshal(event)
		if typed, is := event.(object); is && typed["type"] != nil {
			_, _ = fmt.Fprintf(m.w, "event: %s\n", typed["type"])
		}
		_, _ = fmt.Fprintf(m.w, "data: %s\n\n", data)
	}
	m.w.(http.Flusher).Flush()
}

// think waits until a channel is ready or the agent has gone, and says nothing.
func (m modelReply) think(ready any) {
	m.send(nil)
	switch ready := ready.(type) {
	case <-chan time.Time:
		select {
		case <-ready:
		case <-m.r.Context().Done():
		}
	case <-chan struct{}:
		<-ready
	}
}

// talk says a number of lines, or lines without end.
func (m modelReply) talk(lines int) {
	events := m.events(m.body, nil, "\x00")
	for i := 0; i != lines && m.r.Context().Err() == nil; i++ {
		for _, event := range events {
			data, _ := json.Marshal(event)
			if !strings.Contains(string(data), `\u0000`) {
				if i == 0 && !ends(event) {
					m.send([]any{event})
				}
				continue
			}
			var spoken any
			_ = json.Unmarshal([]byte(strings.ReplaceAll(string(data), `\u0000`, fmt.Sprintf("Do you want to hear line %d? ", i))), &spoken)
			m.send([]any{spoken})
		}
		time.Sleep(300 * time.Millisecond)
	}
	if m.r.Context().Err() == nil {
		m.send(slices.DeleteFunc(m.events(m.body, nil, "."), func(event any) bool { return !ends(event) }))
	}
}

// ends reports whether an event ends an answer.
func ends(event any) bool {
	data, _ := json.Marshal(event)
	return regexp.MustCompile(`content_block_stop|message_delta|message_stop|response.completed|output_item.done|"finish_reason":"|"finishReason"`).Match(data)
}

func claudeEvents(_ string, proposed []call, text string) []any {
	usage := object{"input_tokens": 1, "output_tokens": 1}
	events := []any{object{"type": "message_start", "message": object{"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []any{}, "usage": usage}}}
	reason := "end_turn"
	block := func(i int, content, delta object) {
		events = append(events, object{"type": "content_block_start", "index": i, "content_block": content},
			object{"type": "content_block_delta", "index": i, "delta": delta}, object{"type": "content_block_stop", "index": i})
	}
	for i, c := range proposed {
		reason = "tool_use"
		input, _ := json.Marshal(c.input)
		block(i, object{"type": "tool_use", "id": fmt.Sprint("call", i, time.Now().UnixNano()), "name": c.tool, "input": object{}}, object{"type": "input_json_delta", "partial_json": string(input)})
	}
	if proposed == nil {
		block(0, object{"type": "text", "text": ""}, object{"type": "text_delta", "text": text})
	}
	return append(events, object{"type": "message_delta", "delta": object{"stop_reason": reason}, "usage": usage}, object{"type": "message_stop"})
}

func codexEvents(_ string, proposed []call, text string) []any {
	events := []any{object{"type": "response.created", "response": object{"id": "r"}}}
	item := func(content object) {
		events = append(events, object{"type": "response.output_item.done", "item": content})
	}
	for i, c := range proposed {
		id := fmt.Sprint("call", i, time.Now().UnixNano())
		arguments, _ := json.Marshal(c.input)
		item(object{"type": "function_call", "id": fmt.Sprint("f", i), "name": c.tool, "arguments": string(arguments), "call_id": id})
	}
	if proposed == nil {
		message := object{"type": "message", "role": "assistant", "id": "m", "content": []any{object{"type": "output_text", "text": ""}}}
		events = append(events, object{"type": "response.output_item.added", "output_index": 0, "item": message},
			object{"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": text})
		item(object{"type": "message", "role": "assistant", "id": "m", "content": []any{object{"type": "output_text", "text": strings.Trim(text, "\x00")}}})
	}
	usage := object{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": nil, "output_tokens_details": nil}
	return append(events, object{"type": "response.completed", "response": object{"id": "r", "usage": usage}})
}

func opencodeEvents(_ string, proposed []call, text string) []any {
	chunk := func(delta object, reason any) any {
		return object{"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []any{object{"index": 0, "delta": delta, "finish_reason": reason}}}
	}
	if proposed == nil {
		return []any{chunk(object{"role": "assistant", "content": text}, nil), chunk(object{}, "stop")}
	}
	var calls []any
	for i, c := range proposed {
		arguments, _ := json.Marshal(c.input)
		calls = append(calls, object{"index": i, "id": fmt.Sprint("call", i, time.Now().UnixNano()), "type": "function", "function": object{"name": c.tool, "arguments": string(arguments)}})
	}
	return []any{chunk(object{"role": "assistant", "tool_calls": calls}, nil), chunk(object{}, "tool_calls")}
}

func geminiEvents(body string, proposed []call, text string) []any {
	if strings.Contains(body, "complexity_score") {
		text = `{"reasoning": "x", "model_choice": "flash", "complexity_reasoning": "x", "complexity_score": 1}`
	}
	parts := []any{object{"text": text}}
	if proposed != nil {
		parts = nil
	}
	for _, c := range proposed {
		parts = append(parts, object{"functionCall": object{"name": c.tool, "args": c.input}})
	}
	candidate := object{"content": object{"role": "model", "parts": parts}, "index": 0}
	if !strings.Contains(text, "\x00") {
		candidate["finishReason"] = "STOP"
	}
	return []any{object{"candidates": []any{candidate}, "usageMetadata": object{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}}
}
