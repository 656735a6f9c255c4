// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Events of the agents that berth hook uses.
var (
	claudeEvents = []string{
		"SessionStart", "UserPromptSubmit", "PermissionRequest", "PermissionDenied", "PostToolUse", "PostToolUseFailure", "Elicitation", "ElicitationResult", "Notification",
		"Stop", "StopFailure",
	}
	codexEvents  = []string{"SessionStart", "UserPromptSubmit", "PermissionRequest", "PostToolUse", "Stop"}
	geminiEvents = []string{"SessionStart", "BeforeAgent", "AfterTool", "Notification", "AfterAgent"}
	qwenEvents   = []string{"SessionStart", "UserPromptSubmit", "PermissionRequest", "PostToolUse", "PostToolUseFailure", "Notification", "Stop", "StopFailure"}
)

// hookName is what each command contains that reports to Berth, and hookCommand is the command that addHooks adds. It also succeeds where Berth is not installed,
// because the file belongs to the project.
const (
	hookName    = "berth hook"
	hookCommand = hookName + " || true"
)

// hookGroup is one entry of an event in the settings of an agent.
type hookGroup struct {
	Hooks []hookEntry `json:"hooks"`
}

type hookEntry struct {
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout,omitempty"`
}

// errNoHooks is the error about settings to which addHooks cannot add hooks. A note names the file; the other files are written.
var errNoHooks = errors.New("no hooks were added, because the file is not plain JSON (it may contain comments): add them as the documentation of Instances describes")

// addHooks returns a function that adds a hook for each event to the settings of an agent. It keeps all hooks that exist. The unit of the timeout depends on the agent.
func addHooks(names []string, timeout int) func(before string) (string, error) {
	return func(before string) (string, error) {
		all, events, err := section(before, "hooks")
		if errors.Is(err, errNotJSON) {
			return "", errNoHooks
		}
		if err != nil {
			return "", err
		}
		mine, err := json.Marshal(hookGroup{Hooks: []hookEntry{{Type: "command", Command: hookCommand, Timeout: timeout}}})
		if err != nil {
			return "", err
		}
		missing := false
		for _, name := range names {
			groups, known, err := groupsOf(events[name])
			if err != nil {
				return "", fmt.Errorf("hooks.%s: %w", name, err)
			}
			if known {
				continue
			}
			missing = true
			if events[name], err = json.Marshal(append(groups, mine)); err != nil {
				return "", err
			}
		}
		if !missing {
			return before, nil
		}
		if all["hooks"], err = json.Marshal(events); err != nil {
			return "", err
		}
		text, err := json.MarshalIndent(all, "", "  ")
		return string(text) + "\n", err
	}
}

// groupsOf returns the entries of an event, and whether one of them reports to Berth.
func groupsOf(raw json.RawMessage) (groups []json.RawMessage, known bool, err error) {
	if raw == nil {
		return nil, false, nil
	}
	if err := json.Unmarshal(raw, &groups); err != nil {
		return nil, false, fmt.Errorf("not a list: %w", err)
	}
	known, err = reportsToBerth(groups)
	return groups, known, err
}

// reportsToBerth reports whether a hook of an event reports to Berth. It returns errOther if the command of such a hook differs from what addHooks would add.
func reportsToBerth(groups []json.RawMessage) (bool, error) {
	for _, raw := range groups {
		var group hookGroup
		if err := json.Unmarshal(raw, &group); err != nil {
			continue // another kind of hook
		}
		for _, entry := range group.Hooks {
			switch {
			case entry.Command == hookCommand:
				return true, nil
			case strings.Contains(entry.Command, hookName):
				return false, errOther
			}
		}
	}
	return false, nil
}

// opencodePlugin is a plugin of opencode that reports to Berth.
//
//go:embed opencode.js
var opencodePlugin string

// opencodeHooks returns the plugin. It keeps an existing file.
func opencodeHooks(before string) (string, error) {
	if before != "" && before != opencodePlugin {
		return "", errOther
	}
	return opencodePlugin, nil
}
