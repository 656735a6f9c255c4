// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
)

// notSettled are the servers that do not state for which text their diagnostics are, and have no command whose answer shows it. Answers to inquiries are then marked
// as not settled.
var notSettled = []string{
	"dockerfile-language-server", "intelephense", "svelte-language-server", "vscode-css-language-server", "vscode-json-language-server", "yaml-language-server",
}

// TestServers_AnswerInquiries makes edits, and after each one immediately requests the diagnostics of the text. An answer that is marked as settled must not be for
// another text.
func TestServers_AnswerInquiries(t *testing.T) {
	const edits = 6
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s := servers[name]
		if s.complaint == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			folder := s.folder(t)
			c := s.open(t, s.shared(t, folder)(clientKinds["editor"]), folder)
			right := s.files[s.main]
			wrong := strings.Replace(right, s.from, s.mistake, 1)
			var took []time.Duration
			settled, reason := 0, ""
			for i := range edits {
				c.edit([]string{wrong, right}[i%2])
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				var d lsp.Diagnosis
				began := time.Now()
				g.Expect(c.Call(ctx, lsp.MethodDiagnostics, map[string]any{"uri": c.uri}, &d)).To(Succeed())
				cancel()
				took = append(took, time.Since(began))
				g.Expect(d.Version).To(BeEquivalentTo(c.version))
				if !d.Settled {
					reason = d.Reason
					continue
				}
				settled++
				var found []lspclient.Diagnostic
				g.Expect(json.Unmarshal(d.Diagnostics, &found)).To(Succeed())
				g.Expect(strings.Contains(fmt.Sprint(found), s.complaint)).To(Equal(i%2 == 0), "edit %d: %v", i, found)
			}
			t.Logf("%d of %d settled, p50 %s %s", settled, edits, percentile(took, 50), reason)
			if slices.Contains(notSettled, name) {
				g.Expect(reason).To(ContainSubstring("does not state for which content"))
				g.Expect(settled).To(BeZero())
				return
			}
			g.Expect(settled).To(Equal(edits), reason)
		})
	}
}

// TestServers_DiagnosticsByTurns lets an agent ask about the text on disk while an editor has unsaved text, with servers that do not state the versions of texts. The
// editor receives the diagnostics of each of its edits while the agent stays connected. The agent receives no diagnostics of the editor's text.
func TestServers_DiagnosticsByTurns(t *testing.T) {
	for _, name := range []string{"dockerfile-language-server", "svelte-language-server", "yaml-language-server"} {
		t.Run(name, func(t *testing.T) {
			s := servers[name]
			folder := s.folder(t)
			connect := s.shared(t, folder)
			editor := s.open(t, connect(clientKinds["editor"]), folder)
			right := s.files[s.main]
			wrong := strings.Replace(right, s.from, s.mistake, 1)
			reports := func(c *session, complains bool) {
				t.Helper()
				c.diagnostics(func(text string) bool { return strings.Contains(text, s.complaint) == complains })
			}
			editor.edit(wrong)
			reports(editor, true)
			agent := s.open(t, connect(clientKinds["agent"]), folder) // with the text on disk
			agent.answer(documentSymbols, agent.params(documentSymbols))
			editor.edit(right)
			reports(editor, false)
			editor.edit(wrong)
			reports(editor, true)
			reports(agent, false)
		})
	}
}

// TestServers_AnswersDescribeTheTextOfTheClient lets one client ask about its text while another one edits its own text of the same file. svelte-language-server
// computes answers some time after it has read the question.
func TestServers_AnswersDescribeTheTextOfTheClient(t *testing.T) {
	const questions = 9
	g := NewWithT(t)
	s := servers["svelte-language-server"]
	folder := s.folder(t)
	connect := s.shared(t, folder)
	reader, writer := s.open(t, connect(clientKinds["editor"]), folder), s.open(t, connect(clientKinds["agent"]), folder)
	text := func(name string, n int) string {
		return fmt.Sprintf("<script lang=\"ts\">\n%s  export function %s(x: number) { return x + %d; }\n</script>\n<p>{%s(1)}</p>\n", strings.Repeat("\n", n%3), name, n, name)
	}
	reader.edit(text("own", 0))
	done := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
				_ = writer.Change(writer.uri, n+2, text("others", n))
			}
		}
	})
	t.Cleanup(func() { close(done); writing.Wait() })
	for n := range questions {
		if n%3 == 0 {
			reader.edit(text("own", n))
		}
		answer := fmt.Sprint(reader.answer(documentSymbols, reader.params(documentSymbols)))
		g.Expect(answer).To(ContainSubstring("own"), "question %d", n)
		g.Expect(answer).NotTo(ContainSubstring("others"), "question %d", n)
	}
}
