// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

const (
	// claude runs Claude Code with a placeholder API key.
	claude = `env ANTHROPIC_BASE_URL=$MODEL ANTHROPIC_API_KEY=sk-ant-none-000000000000000000000000 DISABLE_AUTOUPDATER=1 IS_SANDBOX=1 claude`
	// bedrock runs Claude Code with an account of another kind, which it does not ask about.
	bedrock = `env CLAUDE_CODE_USE_BEDROCK=1 AWS_REGION=us-east-1 AWS_BEARER_TOKEN_BEDROCK=none ANTHROPIC_BEDROCK_BASE_URL=$MODEL DISABLE_AUTOUPDATER=1 IS_SANDBOX=1 claude`
	// claudeHome configures Claude Code: the first start is complete, the API key is approved and the directory is trusted.
	claudeHome = `printf '{"hasCompletedOnboarding": true, "theme": "dark", "customApiKeyResponses": {"approved": ["00000000000000000000"]}, "projects": {"%s": {"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}}}' "$PWD" > $HOME/.claude.json; `
	// claudeRuns permits Claude Code to run commands without a question.
	claudeRuns = `mkdir -p $HOME/.claude; echo '{"permissions": {"allow": ["Bash"]}}' > $HOME/.claude/settings.json; `
	// modelCodex makes Codex use the model of the recordings.
	modelCodex = codexHome + trustCodex + `sed -i "s,http://127.0.0.1:9/v1,$MODEL/v1," $HOME/.codex/config.toml; `
	gemini     = `env GEMINI_API_KEY=none GOOGLE_GEMINI_BASE_URL=$MODEL gemini`
	// modelOpencode configures opencode: %s are the rules for commands and files.
	modelOpencode = `printf '{"provider": {"test": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "%s/v1", "apiKey": "none"}, "models": {"m": {"name": "m"}}}}, "model": "test/m", "small_model": "test/m", ` +
		`"permission": {"bash": "RULE", "edit": "ask", "external_directory": "allow"}, "autoupdate": false}' $MODEL > opencode.json; `
	asksOpencode = modelOpencode + `sed -i s/RULE/ask/ opencode.json; `
	runsOpencode = modelOpencode + `sed -i s/RULE/allow/ opencode.json; `
)

// submits types a prompt after an agent has shown its input box.
func submits(box, prompt string) []step {
	return []step{{box, prompt}, {prompt[:4], "\r"}}
}

const claudeBox, codexBox, geminiBox, opencodeBox = `shortcuts`, `Ask Codex|context`, `Type your message`, `commands`

// agents are screens of coding agents with a server in place of their models.
var agents = []scene{
	{name: "claude-theme", asks: true, run: bedrock, shows: `Dark`},
	{name: "claude-trust", asks: true, run: claude, prepare: `echo '{"hasCompletedOnboarding": true, "theme": "dark", "customApiKeyResponses": {"approved": ["00000000000000000000"]}}' > $HOME/.claude.json`, shows: `trust`},
	{name: "claude-key", asks: true, run: claude, prepare: claudeHome + `sed -i 's/"approved": .*"\]}, "proj/"approved": []}, "proj/' $HOME/.claude.json`, shows: `API.{0,20}key`},
	{name: "claude-bypass", asks: true, run: claude + ` --dangerously-skip-permissions`, prepare: claudeHome, shows: `accept`},
	{name: "claude-mcp", asks: true, run: claude, prepare: claudeHome + `echo '{"mcpServers": {"berth": {"command": "true", "args": []}}}' > .mcp.json`, shows: `MCP`},
	{name: "claude-mcps", asks: true, run: claude, prepare: claudeHome + `echo '{"mcpServers": {"berth": {"command": "true", "args": []}, "other": {"command": "true", "args": []}}}' > .mcp.json`, shows: `MCP`},
	{name: "claude-bash", asks: true, moving: true, run: claude, prepare: claudeHome, steps: submits(claudeBox, "propose claude-bash"), shows: `Yes`},
	{name: "claude-write", asks: true, moving: true, run: claude, prepare: claudeHome, steps: submits(claudeBox, "propose claude-write"), shows: `Yes`},
	{name: "claude-read", asks: true, moving: true, run: claude, prepare: claudeHome, steps: submits(claudeBox, "propose claude-read"), shows: `Yes`},
	{name: "claude-fetch", asks: true, moving: true, run: claude, prepare: claudeHome, steps: submits(claudeBox, "propose claude-fetch"), shows: `Yes`},
	{name: "claude-plan", asks: true, moving: true, run: claude + ` --permission-mode plan`, prepare: claudeHome, steps: submits(`plan.{1,8}mode.{1,8}on`, "propose claude-plan"), shows: `Yes`},
	{name: "claude-choose", asks: true, moving: true, run: claude, prepare: claudeHome, steps: submits(claudeBox, "propose claude-choose"), shows: `Blue`},
	{name: "claude-pick", asks: true, moving: true, run: claude, prepare: claudeHome, steps: submits(claudeBox, "propose claude-pick"), shows: `Blue`},
	{name: "claude-review", asks: true, moving: true, run: claude, prepare: claudeHome, steps: append(submits(claudeBox, "propose claude-pick"), step{`Blue`, "\x1b[C"}), shows: `Submit.{1,12}answers`},
	{name: "claude-idle", run: claude, prepare: claudeHome, shows: claudeBox},
	{name: "claude-typed", run: claude, prepare: claudeHome, steps: []step{{claudeBox, "Do you want to proceed?"}}, shows: `proceed`},
	{name: "claude-replied", run: claude, prepare: claudeHome, steps: submits(claudeBox, "greeting please"), shows: `done`},
	{name: "claude-thinks", moving: true, run: claude, prepare: claudeHome, steps: submits(claudeBox, "keep thinking"), shows: `esc to|…`},
	{name: "claude-talks", moving: true, run: claude, prepare: claudeHome, steps: submits(claudeBox, "keep talking"), shows: `hear`},
	{name: "claude-runs", moving: true, run: claude, prepare: claudeHome + claudeRuns, steps: submits(claudeBox, "propose claude-sleep"), shows: `Running|started|esc to`},
	{name: "claude-answered", moving: true, run: claude, prepare: claudeHome, steps: append(submits(claudeBox, "propose claude-wait"), step{`Yes`, "1"}), shows: `Running|started|esc to`},

	{name: "codex-command", asks: true, moving: true, run: `codex --no-daemon`, prepare: modelCodex, steps: submits(codexBox, "propose codex-command"), shows: `Yes`},
	{name: "codex-patch", asks: true, moving: true, run: `codex --no-daemon`, prepare: modelCodex, steps: submits(codexBox, "propose codex-patch"), shows: `Yes`},
	{name: "codex-replied", run: `codex --no-daemon`, prepare: modelCodex, steps: submits(codexBox, "greeting please"), shows: `done`},
	{name: "codex-talks", moving: true, run: `codex --no-daemon`, prepare: modelCodex, steps: submits(codexBox, "keep talking"), shows: `hear`},
	{name: "codex-runs", moving: true, run: `codex --no-daemon --dangerously-bypass-approvals-and-sandbox`, prepare: modelCodex, steps: submits(codexBox, "propose codex-sleep"), shows: `sleep`},

	{name: "gemini-shell", asks: true, moving: true, run: gemini, prepare: geminiHome(false), steps: submits(geminiBox, "propose gemini-shell"), shows: `Allow once`},
	{name: "gemini-write", asks: true, moving: true, run: gemini, prepare: geminiHome(false), steps: submits(geminiBox, "propose gemini-write"), shows: `Allow once`},
	{name: "gemini-choose", asks: true, moving: true, run: gemini, prepare: geminiHome(false), steps: submits(geminiBox, "propose gemini-choose"), shows: `Blue`},
	{name: "gemini-replied", run: gemini, prepare: geminiHome(false), steps: submits(geminiBox, "greeting please"), shows: `done`},
	{name: "gemini-talks", moving: true, run: gemini, prepare: geminiHome(false), steps: submits(geminiBox, "keep talking"), shows: `hear`},
	{name: "gemini-runs", moving: true, run: gemini + ` --approval-mode yolo`, prepare: geminiHome(false), steps: submits(geminiBox, "propose gemini-sleep"), shows: `started`},

	{name: "opencode-bash", asks: true, moving: true, run: `opencode`, prepare: asksOpencode, steps: submits(opencodeBox, "propose opencode-bash"), shows: `Allow once`},
	{name: "opencode-write", asks: true, moving: true, run: `opencode`, prepare: asksOpencode, steps: submits(opencodeBox, "propose opencode-write"), shows: `Allow once`},
	{name: "opencode-choose", asks: true, moving: true, run: `opencode`, prepare: asksOpencode, steps: submits(opencodeBox, "propose opencode-choose"), shows: `Blue`},
	{name: "opencode-always", asks: true, moving: true, run: `opencode`, prepare: asksOpencode, steps: append(submits(opencodeBox, "propose opencode-bash"), step{`Allow once`, "\x1b[C"}, step{`.`, "\r"}), shows: `Confirm`},
	{name: "opencode-idle", moving: true, run: `opencode`, prepare: asksOpencode, shows: opencodeBox},
	{name: "opencode-replied", moving: true, run: `opencode`, prepare: asksOpencode, steps: submits(opencodeBox, "greeting please"), shows: `done`},
	{name: "opencode-thinks", moving: true, run: `opencode`, prepare: asksOpencode, steps: submits(opencodeBox, "keep thinking"), shows: `esc`},
	{name: "opencode-talks", moving: true, run: `opencode`, prepare: asksOpencode, steps: submits(opencodeBox, "keep talking"), shows: `hear`},
	{name: "opencode-runs", moving: true, run: `opencode`, prepare: runsOpencode, steps: submits(opencodeBox, "propose opencode-sleep"), shows: `started|sleep`},
}
