// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"testing"

	lua "github.com/yuin/gopher-lua"
	"sigs.k8s.io/yaml"
)

var healthCases = []struct{ name, object, status, message string }{
	{"new", `{metadata: {generation: 1}}`, "Progressing", "Waiting for the manager to observe the object"},
	{"changed", `{metadata: {generation: 2}, status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", reason: Running}]}}`, "Progressing", ""},
	{"ready", `{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Stalled, status: "False"}, {type: Ready, status: "True", reason: Running, message: It runs}]}}`, "Healthy", "It runs"},
	{"starting", `{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Reconciling, status: "True", reason: Starting, message: soon}]}}`, "Progressing", "Starting: soon"},
	{"restarting", `{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Reconciling, status: "True", reason: BackOff}]}}`, "Progressing", "BackOff: "},
	{"failed", `{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Stalled, status: "True", reason: CircuitOpen, message: too often}]}}`, "Degraded", "CircuitOpen: too often"},
	{"stopped", `{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", reason: Stopped}]}}`, "Suspended", ""},
	{"completed", `{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", reason: Completed}]}}`, "Healthy", ""},
	{"action", `{kind: Action, metadata: {generation: 1}}`, "Healthy", ""},
	{"nothing yet", `{metadata: {generation: 1}, status: {observedGeneration: 1, conditions: [{type: Ready, status: Unknown}]}}`, "Progressing", ""},
}

// TestArgoCDHealth_ReturnsExpectedStatus runs the health check as Argo CD does: obj is the object, and the script returns a status and an optional message.
func TestArgoCDHealth_ReturnsExpectedStatus(t *testing.T) {
	script := readFile(t, "config", "argocd", "health.lua")
	for _, h := range healthCases {
		t.Run(h.name, func(t *testing.T) {
			object := map[string]any{}
			if err := yaml.Unmarshal([]byte(h.object), &object); err != nil {
				t.Fatal(err)
			}
			state := lua.NewState()
			defer state.Close()
			state.SetGlobal("obj", toLua(state, object))
			if err := state.DoString(script); err != nil {
				t.Fatal(err)
			}
			result, is := state.Get(-1).(*lua.LTable)
			if !is {
				t.Fatalf("returned %v", state.Get(-1))
			}
			if status := result.RawGetString("status").String(); status != h.status {
				t.Errorf("status is %s, want %s", status, h.status)
			}
			if message := result.RawGetString("message").String(); h.message != "" && message != h.message {
				t.Errorf("message is %q, want %q", message, h.message)
			}
		})
	}
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, inner := range v {
			table.RawSetString(key, toLua(state, inner))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, inner := range v {
			table.Append(toLua(state, inner))
		}
		return table
	case string:
		return lua.LString(v)
	case float64:
		return lua.LNumber(v)
	case bool:
		return lua.LBool(v)
	default:
		return lua.LNil
	}
}
