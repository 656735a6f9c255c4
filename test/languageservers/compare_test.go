// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
)

// patience is how long a server may take for one answer, on a busy machine.
const patience = 60 * time.Second

// session is a client with the main file of the project open.
type session struct {
	*lspclient.Client
	t       *testing.T
	server  server
	uri     string
	version int
	// pulls: diagnostics must be requested.
	pulls bool
}

// open opens the main file, and waits until the server has read the project.
func (s server) open(t *testing.T, c *lspclient.Client, folder string) *session {
	t.Helper()
	opened := &session{Client: c, t: t, server: s, uri: lspclient.URI(folder, s.main), version: 1}
	g := NewWithT(t)
	g.Expect(c.Open(opened.uri, s.language, 1, s.files[s.main])).To(Succeed())
	g.Eventually(func() string {
		return fmt.Sprint(opened.answer(s.ready, opened.params(s.ready)))
	}).WithTimeout(patience).Should(ContainSubstring(s.understands))
	return opened
}

// edit replaces the text of the document.
func (s *session) edit(text string) {
	s.t.Helper()
	s.version++
	NewWithT(s.t).Expect(s.Change(s.uri, s.version, text)).To(Succeed())
}

// failure is an error that a server has answered.
type failure string

// answer returns the canonical result of a request, or a failure.
func (s *session) answer(method string, params any) any {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	var result any
	err := s.Call(ctx, method, params, &result)
	var refused *lspclient.Error
	if errors.As(err, &refused) {
		return failure(fmt.Sprintf("error %d", refused.Code))
	}
	NewWithT(s.t).Expect(err).NotTo(HaveOccurred(), method)
	return canonical(method, result)
}

// questions are the requests that are compared, with their params.
var questions = []string{
	hover, completion, documentSymbols, "textDocument/definition", "textDocument/references", "textDocument/documentHighlight", "textDocument/signatureHelp",
	"textDocument/formatting", "textDocument/rename", "textDocument/foldingRange", "textDocument/selectionRange", "textDocument/semanticTokens/full",
	"textDocument/inlayHint", "textDocument/prepareCallHierarchy", "textDocument/codeAction", "textDocument/documentLink", "workspace/symbol",
}

// params returns the params of a request about the symbol of the project.
func (s *session) params(method string) map[string]any {
	text := s.server.files[s.server.main]
	at := lspclient.Find(text, s.server.symbol, 1)
	if s.server.symbol == "" {
		at = lspclient.Position{}
	}
	everything := lspclient.Range{End: lspclient.Position{Line: strings.Count(text, "\n")}}
	document := map[string]any{"uri": s.uri}
	switch method {
	case completion:
		after := lspclient.Find(text, s.server.complete, 1)
		after.Character += len(s.server.complete)
		return lspclient.PositionParams(s.uri, after)
	case "textDocument/references":
		params := lspclient.PositionParams(s.uri, at)
		params["context"] = map[string]any{"includeDeclaration": true}
		return params
	case "textDocument/formatting":
		return map[string]any{"textDocument": document, "options": map[string]any{"tabSize": 4, "insertSpaces": true}}
	case "textDocument/rename":
		params := lspclient.PositionParams(s.uri, at)
		params["newName"] = "renamed"
		return params
	case "textDocument/selectionRange":
		return map[string]any{"textDocument": document, "positions": []any{at}}
	case "textDocument/inlayHint":
		return map[string]any{"textDocument": document, "range": everything}
	case "textDocument/codeAction":
		return map[string]any{"textDocument": document, "range": lspclient.Range{Start: at, End: at}, "context": map[string]any{"diagnostics": []any{}}}
	case "workspace/symbol":
		return map[string]any{"query": "example.test greet"}
	}
	return lspclient.PositionParams(s.uri, at)
}

// answers asks all questions.
func (s *session) answers() map[string]any {
	s.t.Helper()
	all := map[string]any{}
	for _, method := range questions {
		if method == completion && s.server.complete == "" {
			continue
		}
		all[method] = s.answer(method, s.params(method))
	}
	if s.server.complaint != "" {
		all["diagnostics"] = s.diagnosticsOfMistake()
	}
	return all
}

// diagnosticsOfMistake changes the text to the mistake and back, and returns the diagnostics of the mistake.
func (s *session) diagnosticsOfMistake() any {
	s.t.Helper()
	g := NewWithT(s.t)
	right := s.server.files[s.server.main]
	wrong := strings.Replace(right, s.server.from, s.server.mistake, 1)
	g.Expect(wrong).NotTo(Equal(right))
	complains := func(text string) bool { return strings.Contains(text, s.server.complaint) }
	s.edit(wrong)
	found := s.diagnostics(complains)
	s.edit(right)
	s.diagnostics(func(text string) bool { return !complains(text) })
	return canonical("diagnostics", found)
}

// diagnostics waits for diagnostics for which the condition holds.
func (s *session) diagnostics(condition func(text string) bool) (found any) {
	s.t.Helper()
	g := NewWithT(s.t)
	if s.pulls {
		g.Eventually(func() string {
			var report struct{ Items []lspclient.Diagnostic }
			params := map[string]any{"textDocument": map[string]any{"uri": s.uri}}
			g.Expect(s.Call(s.t.Context(), "textDocument/diagnostic", params, &report)).To(Succeed())
			found = report.Items
			return fmt.Sprint(found)
		}).WithTimeout(patience).Should(Satisfy(condition))
		return found
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	published, err := s.WaitForDiagnostics(ctx, s.uri, func(d lspclient.Diagnostics) bool { return condition(fmt.Sprint(d.All)) })
	g.Expect(err).NotTo(HaveOccurred())
	if published.Version != nil {
		g.Expect(*published.Version).To(BeEquivalentTo(s.version), "the version of the text to which the diagnostics belong")
	}
	return published.All
}

// folder returns a new folder with the project.
func (s server) folder(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	folder, err := filepath.EvalSymlinks(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	for name, text := range s.files {
		g.Expect(os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600)).To(Succeed())
	}
	return folder
}

// answered returns the questions to which there is an answer with content, sorted.
func answered(answers map[string]any) (all []string) {
	for question, answer := range answers {
		if _, failed := answer.(failure); !failed && !slices.Contains([]string{"null", "[]", "{}"}, encoded(answer)) {
			all = append(all, strings.TrimSuffix(strings.TrimPrefix(question, "textDocument/"), "/full"))
		}
	}
	slices.Sort(all)
	return all
}

func TestServers_AnswerLikeAlone(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s := servers[name]
		t.Run(name, func(t *testing.T) {
			folder := s.folder(t)
			kinds := slices.Sorted(maps.Keys(clientKinds))
			alone := map[string]map[string]any{}
			for _, kind := range kinds {
				t.Run("alone/"+kind, func(t *testing.T) {
					c := s.open(t, s.alone(t, folder, clientKinds[kind]), folder)
					c.pulls = s.pulls
					alone[kind] = c.answers()
				})
			}
			connect := s.shared(t, folder)
			clients := map[string]*session{}
			for _, kind := range kinds {
				clients[kind] = s.open(t, connect(clientKinds[kind]), folder)
			}
			for _, kind := range kinds {
				t.Run("shared/"+kind, func(t *testing.T) {
					clients[kind].t = t
					answers := clients[kind].answers()
					t.Logf("answered: %s", strings.Join(answered(answers), ", "))
					for question, got := range answers {
						want := alone[kind][question]
						if difference := compare(kind, question, want, got); difference != "" {
							t.Errorf("%s: %s\nalone:  %.600s\nshared: %.600s", question, difference, encoded(want), encoded(got))
						}
					}
				})
			}
		})
	}
}

// TestServers_OtherEncodingIsRefused tests that a server that counts positions in bytes is not used, because it would change the wrong parts of a text.
func TestServers_OtherEncodingIsRefused(t *testing.T) {
	g := NewWithT(t)
	s := servers["clangd"]
	s.command = append(slices.Clone(s.command), "--offset-encoding=utf-8")
	m := s.multiplexer(t, s.folder(t))
	report := func() lsp.Report {
		var r lsp.Report
		m.Fill(&r)
		return r
	}
	g.Eventually(func() string { return report().Unhealthy }).WithTimeout(patience).Should(Equal(lsp.ReasonProtocolError))
	g.Expect(report().Message).To(ContainSubstring("counts positions in utf-8"))
}
