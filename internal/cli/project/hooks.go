// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	"encoding/json"
	"fmt"
	"strings"
)

// hookEvents are the events of Claude Code that berth hook uses.
var hookEvents = []string{
	"SessionStart", "UserPromptSubmit", "PermissionRequest", "PermissionDenied", "PostToolUse", "PostToolUseFailure", "Elicitation", "ElicitationResult", "Notification",
	"Stop", "StopFailure",
}

// hookName is what each command contains that reports to Berth, and hookCommand is the command that claudeHooks adds. It also succeeds where Berth is not installed,
// because the file belongs to the project.
const (
	hookName    = "berth hook"
	hookCommand = hookName + " || true"
)

// hookGroup is one entry of an event in the settings of Claude Code.
type hookGroup struct {
	Hooks []hookEntry `json:"hooks"`
}

type hookEntry struct {
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout,omitempty"`
}

// claudeHooks adds the hooks to the settings of Claude Code. It keeps all hooks that exist.
func claudeHooks(before string) (string, error) {
	all, events, err := section(before, "hooks")
	if err != nil {
		return "", err
	}
	missing := false
	for _, event := range hookEvents {
		var groups []json.RawMessage
		if raw, ok := events[event]; ok {
			if err := json.Unmarshal(raw, &groups); err != nil {
				return "", fmt.Errorf("hooks.%s is not a list: %w", event, err)
			}
		}
		known, err := reportsToBerth(groups)
		if err != nil {
			return "", fmt.Errorf("hooks.%s: %w", event, err)
		}
		if known {
			continue
		}
		missing = true
		mine, err := json.Marshal(hookGroup{Hooks: []hookEntry{{Type: "command", Command: hookCommand, Timeout: 5}}})
		if err != nil {
			return "", err
		}
		if events[event], err = json.Marshal(append(groups, mine)); err != nil {
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

// reportsToBerth reports whether a hook of an event reports to Berth. It returns errOther if the command of such a hook differs from what claudeHooks would add.
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
