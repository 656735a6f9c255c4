// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/test/need"
)

// answerCount returns the number of rounds for each agent: ANSWERS, or 2.
func answerCount() int {
	if n, err := strconv.Atoi(os.Getenv("ANSWERS")); err == nil {
		return n
	}
	return 2
}

// choices matches the choices of a question of an agent.
const choices = `1\. (Yes|Allow once)|Allow once +Allow always`

// approvalPrompt is the text that makes the model propose two commands.
const approvalPrompt = "please propose both commands"

// Each agent asks for permission to run two commands, one after the other. One answer must approve one command. A line that is sent right after the start of an
// agent must reach the agent.
var _ = Describe("berth send to a coding agent", Label(anyUser, codingAgents), func() {
	DescribeTable("answers one question with one answer", func(ctx context.Context, name, answer string, code int, ask func(ctx context.Context, model, home string) *v1alpha1.ProcessTemplate) {
		for i := range answerCount() {
			By(fmt.Sprintf("round %d of %s", i+1, name))
			dir := GinkgoT().TempDir()
			model := newProposingModel(dir)
			home := GinkgoT().TempDir()
			s := instance(fmt.Sprintf("%s-asks-%d", name, i), "true")
			process := ask(ctx, model.URL, home)
			process.WorkingDir = filepath.Join(home, "project")
			process.Env = append(process.Env, v1alpha1.EnvVar{Name: "HOME", Value: home}, v1alpha1.EnvVar{Name: "IS_SANDBOX", Value: "1"})
			Expect(os.MkdirAll(process.WorkingDir, 0o755)).To(Succeed())
			s.GetProcessSpec().Process = *process
			s.create(ctx).waitUntilReady(ctx)
			// The agent has just started. If it does not read yet after the time that send waits, send reports it, and nothing was submitted.
			Eventually(func() (string, error) {
				out, code := suiteBerth.result(ctx, "send", s.path(), approvalPrompt)
				if code != 0 {
					return out, errors.New(out)
				}
				return out, nil
			}).WithTimeout(startTimeout).Should(BeEmpty())
			screen := func() string { return suiteBerth.run(ctx, "logs", "--screen", s.path()) }
			Eventually(screen).WithTimeout(startTimeout).Should(MatchRegexp(choices))
			s.waitForCondition(ctx, v1alpha1.ConditionAwaitingInput, v1alpha1.ReasonAwaitingInput)

			out, exit := suiteBerth.result(ctx, "send", s.path(), answer)
			Expect(exit).To(Equal(code), "%s\n%s", out, screen())
			if code == 5 {
				Expect(out).To(ContainSubstring("another question follows"))
			}
			approved := func() []string {
				found, _ := filepath.Glob(filepath.Join(dir, "approved-*"))
				return found
			}
			Consistently(approved).WithTimeout(2*time.Second).Should(Or(BeEmpty(), HaveLen(1)), screen)
			Expect(screen()).To(MatchRegexp(choices), "the next question still stands")
			suiteBerth.run(ctx, "delete", s.path())
		}
	},
		Entry("Claude Code", NodeTimeout(30*time.Minute), "claude", "1", 5, claudeAsks),
		Entry("Codex", NodeTimeout(30*time.Minute), "codex", "1", 5, codexAsks),
		Entry("Gemini CLI", NodeTimeout(30*time.Minute), "gemini", "1", 5, geminiAsks),
		Entry("opencode, whose buttons ignore digits", NodeTimeout(30*time.Minute), "opencode", "1", 1, opencodeAsks),
		Entry("opencode, with Enter alone", NodeTimeout(30*time.Minute), "opencode", "", 0, opencodeAsks),
	)
})

func programOf(ctx context.Context, path ...string) []string {
	return []string{filepath.Join(append([]string{installProject(ctx, "test/e2e/projects/agents"), "node_modules"}, path...)...)}
}

// npmArch is the name of the architecture of this machine in npm packages.
func npmArch() string { return strings.Replace(runtime.GOARCH, "amd64", "x64", 1) }

// claudeAsks returns Claude Code with a placeholder API key that is approved, in a folder that is trusted. Its package contains no program until an install
// script has run, so the program is that of the package for this architecture.
func claudeAsks(ctx context.Context, model, home string) *v1alpha1.ProcessTemplate {
	writeJSON(filepath.Join(home, ".claude.json"), map[string]any{
		"hasCompletedOnboarding": true, "theme": "dark",
		"customApiKeyResponses": map[string]any{"approved": []string{strings.Repeat("0", 20)}},
		"projects":              map[string]any{filepath.Join(home, "project"): map[string]any{"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}},
	})
	return &v1alpha1.ProcessTemplate{Command: programOf(ctx, "@anthropic-ai", "claude-code-linux-"+npmArch(), "claude"), Env: []v1alpha1.EnvVar{
		{Name: "ANTHROPIC_BASE_URL", Value: model}, {Name: "ANTHROPIC_API_KEY", Value: "sk-ant-none-" + strings.Repeat("0", 24)}, {Name: "DISABLE_AUTOUPDATER", Value: "1"}}}
}

func codexAsks(ctx context.Context, model, home string) *v1alpha1.ProcessTemplate {
	configureCodex(home, filepath.Join(home, "project"), model)
	return &v1alpha1.ProcessTemplate{Command: programOf(ctx, ".bin", "codex")}
}

func geminiAsks(ctx context.Context, model, home string) *v1alpha1.ProcessTemplate {
	configureGemini(home)
	return &v1alpha1.ProcessTemplate{Command: programOf(ctx, ".bin", "gemini"), Env: geminiEnv(model)}
}

func opencodeAsks(ctx context.Context, model, home string) *v1alpha1.ProcessTemplate {
	provider := map[string]any{"npm": "@ai-sdk/openai-compatible", "options": map[string]any{"baseURL": model + "/v1", "apiKey": "none"}, "models": map[string]any{"m": map[string]any{"name": "m"}}}
	Expect(os.MkdirAll(filepath.Join(home, "project"), 0o755)).To(Succeed())
	writeJSON(filepath.Join(home, "project", "opencode.json"), map[string]any{"provider": map[string]any{"test": provider}, "model": "test/m", "small_model": "test/m",
		"permission": map[string]any{"bash": "ask", "external_directory": "allow"}, "autoupdate": false})
	command := programOf(ctx, "opencode-linux-"+npmArch(), "bin", "opencode")
	if _, err := os.Stat(command[0]); err != nil {
		need.Machine(GinkgoT(), fmt.Errorf("the project contains no opencode for this architecture: %w", err))
	}
	return &v1alpha1.ProcessTemplate{Command: command}
}

func writeJSON(path string, content any) {
	GinkgoHelper()
	text, err := json.Marshal(content)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
}

// newProposingModel returns a server that replaces the models of all agents. It proposes two commands, which create files in dir, and then says nothing more.
func newProposingModel(dir string) *httptest.Server {
	var commands []string
	for i := range 2 {
		commands = append(commands, fmt.Sprintf("touch %s/approved-%d", dir, i+1))
	}
	mux := http.NewServeMux()
	answer := func(pattern string, after string, events func(body string, propose bool) []any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			content, _ := io.ReadAll(r.Body)
			body := string(content)
			at := strings.LastIndex(body, approvalPrompt)
			propose := at >= 0 && !strings.Contains(body[at:], after)
			w.Header().Set("Content-Type", "text/event-stream")
			for _, event := range events(body, propose) {
				data, _ := json.Marshal(event)
				if typed, is := event.(jsonObject); is && typed["type"] != nil {
					fmt.Fprintf(w, "event: %s\n", typed["type"])
				}
				fmt.Fprintf(w, "data: %s\n\n", data)
			}
		})
	}
	answer("POST /v1/messages", `"tool_result"`, func(body string, propose bool) []any {
		return claudeEvents(commands, propose && strings.Contains(body, `"name":"Bash"`))
	})
	answer("POST /v1/responses", `call_output"`, func(body string, propose bool) []any { return codexEvents(commands, body, propose) })
	answer("POST /v1/chat/completions", `tool_call_id"`, func(body string, propose bool) []any {
		return opencodeEvents(commands, propose && strings.Contains(body, `"name":"bash"`))
	})
	answer("POST /v1beta/models/", `functionResponse"`, func(body string, propose bool) []any { return geminiEvents(commands, body, propose) })
	server := httptest.NewServer(mux)
	DeferCleanup(server.Close)
	return server
}

// jsonObject is a JSON object.
type jsonObject = map[string]any

func claudeEvents(commands []string, propose bool) []any {
	usage := jsonObject{"input_tokens": 1, "output_tokens": 1}
	events := []any{jsonObject{"type": "message_start", "message": jsonObject{"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []any{}, "usage": usage}}}
	reason := "end_turn"
	block := func(i int, content, delta jsonObject) {
		events = append(events, jsonObject{"type": "content_block_start", "index": i, "content_block": content},
			jsonObject{"type": "content_block_delta", "index": i, "delta": delta}, jsonObject{"type": "content_block_stop", "index": i})
	}
	if propose {
		reason = "tool_use"
		for i, command := range commands {
			input, _ := json.Marshal(jsonObject{"command": command, "description": "create a file"})
			block(i, jsonObject{"type": "tool_use", "id": fmt.Sprint("call", i, time.Now().UnixNano()), "name": "Bash", "input": jsonObject{}}, jsonObject{"type": "input_json_delta", "partial_json": string(input)})
		}
	} else {
		block(0, jsonObject{"type": "text", "text": ""}, jsonObject{"type": "text_delta", "text": "done"})
	}
	return append(events, jsonObject{"type": "message_delta", "delta": jsonObject{"stop_reason": reason}, "usage": usage}, jsonObject{"type": "message_stop"})
}

func codexEvents(commands []string, body string, propose bool) []any {
	events := []any{jsonObject{"type": "response.created", "response": jsonObject{"id": "r"}}}
	item := func(content jsonObject) {
		events = append(events, jsonObject{"type": "response.output_item.done", "item": content})
	}
	if propose {
		tool := "shell_command"
		argument := "command"
		if strings.Contains(body, `"name":"exec_command"`) {
			tool, argument = "exec_command", "cmd"
		}
		for i, command := range commands {
			arguments, _ := json.Marshal(jsonObject{argument: command, "sandbox_permissions": "require_escalated", "justification": "create a file"})
			item(jsonObject{"type": "function_call", "id": fmt.Sprint("f", i), "name": tool, "arguments": string(arguments), "call_id": fmt.Sprint("call", i, time.Now().UnixNano())})
		}
	} else {
		item(jsonObject{"type": "message", "role": "assistant", "id": "m", "content": []any{jsonObject{"type": "output_text", "text": "done"}}})
	}
	usage := jsonObject{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": nil, "output_tokens_details": nil}
	return append(events, jsonObject{"type": "response.completed", "response": jsonObject{"id": "r", "usage": usage}})
}

func opencodeEvents(commands []string, propose bool) []any {
	chunk := func(delta jsonObject, reason any) any {
		return jsonObject{"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []any{jsonObject{"index": 0, "delta": delta, "finish_reason": reason}}}
	}
	if !propose {
		return []any{chunk(jsonObject{"role": "assistant", "content": "done"}, nil), chunk(jsonObject{}, "stop")}
	}
	var calls []any
	for i, command := range commands {
		arguments, _ := json.Marshal(jsonObject{"command": command, "description": "create a file"})
		calls = append(calls, jsonObject{"index": i, "id": fmt.Sprint("call", i, time.Now().UnixNano()), "type": "function", "function": jsonObject{"name": "bash", "arguments": string(arguments)}})
	}
	return []any{chunk(jsonObject{"role": "assistant", "tool_calls": calls}, nil), chunk(jsonObject{}, "tool_calls")}
}

func geminiEvents(commands []string, body string, propose bool) []any {
	parts := []any{jsonObject{"text": "done"}}
	if propose && strings.Contains(body, `"name":"run_shell_command"`) {
		parts = nil
		for _, command := range commands {
			parts = append(parts, jsonObject{"functionCall": jsonObject{"name": "run_shell_command", "args": jsonObject{"command": command, "description": "create a file"}}})
		}
	}
	return []any{jsonObject{"candidates": []any{jsonObject{"content": jsonObject{"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}},
		"usageMetadata": jsonObject{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}}
}
