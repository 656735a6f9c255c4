// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/lspclient"
)

// typescript-language-server keeps only the items of its last completion. A client that accepts an item nevertheless receives the import of its own item.
func TestServers_ResolveTheItemOfTheClient(t *testing.T) {
	g := NewWithT(t)
	s := servers["typescript-language-server"]
	s.options = maps.Clone(s.options)
	s.options["preferences"] = map[string]any{"includeCompletionsForModuleExports": true, "includeCompletionsWithInsertText": true}
	s.files = map[string]string{
		"tsconfig.json": typescriptFiles["tsconfig.json"], "main.ts": "alpha\n", "other.ts": "beta\n",
		"alpha.ts": "export function alpha0(): void {}\nexport function alpha1(): void {}\n", "beta.ts": "export function beta0(): void {}\nexport function beta1(): void {}\n",
	}
	s.ready, s.understands = completion, "alpha1"
	folder := s.folder(t)
	m := s.multiplexer(t, folder)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	type item struct{ Label string }
	items := func(c *lspclient.Client, name, label string) (found []json.RawMessage) {
		params := lspclient.PositionParams(lspclient.URI(folder, name), lspclient.Position{Character: len(label)})
		g.Eventually(func() []json.RawMessage {
			var list struct{ Items []json.RawMessage }
			g.Expect(c.Call(ctx, completion, params, &list)).To(Succeed())
			for _, raw := range list.Items {
				var it item
				g.Expect(json.Unmarshal(raw, &it)).To(Succeed())
				if strings.HasPrefix(it.Label, label) {
					found = append(found, raw)
				}
			}
			return found
		}).WithTimeout(patience).ShouldNot(BeEmpty())
		return found
	}
	one, other := s.connect(t, m, folder, clientKinds["editor"]), s.connect(t, m, folder, clientKinds["editor"])
	g.Expect(one.Open(lspclient.URI(folder, "main.ts"), s.language, 1, s.files["main.ts"])).To(Succeed())
	g.Expect(other.Open(lspclient.URI(folder, "other.ts"), s.language, 1, s.files["other.ts"])).To(Succeed())
	own := items(one, "main.ts", "alpha")
	for i := range 2 * len(own) {
		items(other, "other.ts", "beta")
		var got map[string]any
		g.Expect(one.Call(ctx, "completionItem/resolve", own[i%len(own)], &got)).To(Succeed())
		g.Expect(fmt.Sprint(got["additionalTextEdits"])).To(ContainSubstring(fmt.Sprintf("import { alpha%d }", i%len(own))))
	}
}

// clangd numbers the results of semantic tokens from 1 in each incarnation. A client with tokens of an earlier one receives all tokens.
func TestServers_TokensOfAnEarlierIncarnation(t *testing.T) {
	g := NewWithT(t)
	s := servers["clangd"]
	folder := s.folder(t)
	r := s.replaceable(t, folder)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	one, other := s.connect(t, r.Mux, folder, clientKinds["editor"]), s.connect(t, r.Mux, folder, clientKinds["editor"])
	uri := lspclient.URI(folder, s.main)
	document := map[string]any{"uri": uri}
	type tokens struct {
		ResultID string `json:"resultId"`
		Data     []int  `json:"data"`
	}
	full := func(c *lspclient.Client) (got tokens) {
		g.Expect(c.Call(ctx, "textDocument/semanticTokens/full", map[string]any{"textDocument": document}, &got)).To(Succeed())
		return got
	}
	delta := func(c *lspclient.Client, previous string) (got tokens) {
		g.Expect(c.Call(ctx, "textDocument/semanticTokens/full/delta", map[string]any{"textDocument": document, "previousResultId": previous}, &got)).To(Succeed())
		return got
	}
	g.Expect(one.Open(uri, s.language, 1, s.files[s.main])).To(Succeed())
	before := full(one)
	g.Expect(delta(one, before.ResultID).Data).To(BeEmpty(), "nothing has changed")
	before = full(one)

	r.restart()
	g.Expect(other.Open(uri, s.language, 1, "int unrelated;\n"+s.files[s.main])).To(Succeed())
	for range 3 { // clangd has now given the same number to other tokens
		full(other)
	}
	g.Expect(delta(one, before.ResultID).Data).To(Equal(before.Data))
}
