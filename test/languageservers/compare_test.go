// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
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
}

// open opens the main file, and waits until the server has read the project.
func (s server) open(t *testing.T, c *lspclient.Client, folder string) *session {
	t.Helper()
	opened := &session{Client: c, t: t, server: s, uri: lspclient.URI(folder, s.main), version: 1}
	g := NewWithT(t)
	g.Expect(c.Open(opened.uri, s.language, 1, s.files[s.main])).To(Succeed())
	g.Eventually(func() string {
		if s.ready == "" {
			return ""
		}
		return opened.answer(s.ready, opened.params(s.ready))
	}).WithTimeout(patience).Should(ContainSubstring(s.understands))
	return opened
}

// edit replaces the text of the document.
func (s *session) edit(text string) {
	s.t.Helper()
	s.version++
	NewWithT(s.t).Expect(s.Change(s.uri, s.version, text)).To(Succeed())
}

// answer returns the result of a request as JSON, or the text of the error.
func (s *session) answer(method string, params any) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	var result any
	err := s.Call(ctx, method, params, &result)
	var refused *lspclient.Error
	if errors.As(err, &refused) {
		return fmt.Sprintf("error %d", refused.Code)
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
		return map[string]any{"query": "greet"}
	}
	return lspclient.PositionParams(s.uri, at)
}

// answers asks all questions.
func (s *session) answers() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	for _, method := range questions {
		if method == completion && s.server.complete == "" {
			continue
		}
		all[method] = s.answer(method, s.params(method))
	}
	return all
}

// diagnosticsOfMistake changes the text to the mistake, and returns the diagnostics as JSON, and the code actions for the first one.
func (s *session) diagnosticsOfMistake() map[string]string {
	s.t.Helper()
	g := NewWithT(s.t)
	right := s.server.files[s.server.main]
	wrong := strings.Replace(right, s.server.from, s.server.mistake, 1)
	g.Expect(wrong).NotTo(Equal(right))
	s.edit(wrong)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	found, err := s.WaitForDiagnostics(ctx, s.uri, func(d lspclient.Diagnostics) bool { return strings.Contains(fmt.Sprint(d.All), s.server.complaint) })
	g.Expect(err).NotTo(HaveOccurred())
	if found.Version != nil {
		g.Expect(*found.Version).To(BeEquivalentTo(s.version), "the version of the text to which the diagnostics belong")
	}
	s.edit(right)
	_, err = s.WaitForDiagnostics(ctx, s.uri, func(d lspclient.Diagnostics) bool { return !strings.Contains(fmt.Sprint(d.All), s.server.complaint) })
	g.Expect(err).NotTo(HaveOccurred())
	return map[string]string{"diagnostics": canonical("diagnostics", found.All)}
}

// canonical returns a result as text, without the parts that differ from one server process to the next.
func canonical(_ string, result any) string {
	text, _ := json.Marshal(result)
	var tree any
	_ = json.Unmarshal(text, &tree)
	text, _ = json.Marshal(strip(tree))
	return string(text)
}

// strip removes data that only the server understands and IDs of results.
func strip(tree any) any {
	switch node := tree.(type) {
	case []any:
		for i := range node {
			node[i] = strip(node[i])
		}
	case map[string]any:
		delete(node, "data")
		delete(node, "resultId")
		for key := range node {
			node[key] = strip(node[key])
		}
	}
	return tree
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

func TestServers_AnswerLikeAlone(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s := servers[name]
		t.Run(name, func(t *testing.T) {
			folder := s.folder(t)
			kinds := slices.Sorted(maps.Keys(clientKinds))
			want, got := map[string]map[string]string{}, map[string]map[string]string{}
			for _, kind := range kinds {
				t.Run("alone/"+kind, func(t *testing.T) {
					c := s.open(t, s.alone(t, folder, clientKinds[kind]), folder)
					want[kind] = c.answers()
					if s.complaint != "" {
						maps.Copy(want[kind], c.diagnosticsOfMistake())
					}
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
					got[kind] = clients[kind].answers()
					if s.complaint != "" {
						maps.Copy(got[kind], clients[kind].diagnosticsOfMistake())
					}
					for _, question := range slices.Sorted(maps.Keys(want[kind])) {
						if got[kind][question] != want[kind][question] {
							t.Errorf("%s\nalone:  %.600s\nshared: %.600s", question, want[kind][question], got[kind][question])
						}
					}
				})
			}
		})
	}
}
