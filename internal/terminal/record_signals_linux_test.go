// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/signals"
)

// told is what the recorded agents have told their terminal: by the beginning of the name of a recording, and by whether it asks. Agents that are not listed, and
// dialogs before the first prompt, tell nothing.
func told(name string, asks bool) v1alpha1.AgentState {
	agent, screen, _ := strings.Cut(name, "-")
	first := strings.Contains("theme trust key bypass mcp mcps signin", screen)
	works := strings.Contains("thinks talks runs answered working", screen)
	switch {
	case agent == "opencode", agent != "gemini" && first:
		return ""
	case works:
		return v1alpha1.AgentWorking
	case asks && agent != "claude" && !first && screen != "first":
		return v1alpha1.AgentWaiting
	case agent == "codex":
		return ""
	}
	return v1alpha1.AgentDone
}

// TestSignals_OfRecordedAgents derives the state of each recorded agent from what it has told its terminal only.
func TestSignals_OfRecordedAgents(t *testing.T) {
	g := NewWithT(t)
	checked := 0
	for _, s := range scenes() {
		if agent, _, _ := strings.Cut(s.name, "-"); !strings.Contains("claude codex gemini opencode", agent) {
			continue
		}
		content, err := os.ReadFile(filepath.Join("testdata", "programs", s.name+".rec"))
		g.Expect(err).NotTo(HaveOccurred())
		_, output, _ := bytes.Cut(content, []byte("\n"))
		now := time.Unix(10_000, 0)
		var tracker signals.Tracker
		tracker.Note(output, now)
		var state v1alpha1.AgentState
		if agent := (lifecycle.AgentFacts{Signals: tracker.Signals(), Now: now}).Next(nil); agent.Status != nil {
			state = agent.Status.State
		}
		g.Expect(state).To(Equal(told(s.name, s.asks)), s.name)
		checked++
	}
	g.Expect(checked).To(BeNumerically(">", 50))
}
