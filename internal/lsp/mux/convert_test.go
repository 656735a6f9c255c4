// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
)

func TestSnippetText(t *testing.T) {
	for snippet, want := range map[string]string{
		"plain":                     "plain",
		"f($1, $0)":                 "f(, )",
		"f(${1}, ${2:name})$0":      "f(, name)",
		"${1:outer ${2:inner} end}": "outer inner end",
		"color: ${1|red,blue|};":    "color: red;",
		"${TM_FILENAME:main}.go":    "main.go",
		"$TM_FILENAME.go":           ".go",
		"${TM_FILENAME/(.*)/$1/}x":  "x",
		`cost \$5 \} \\ \n`:         `cost $5 } \ \n`,
		"a{b}":                      "a{b}",
		"$":                         "$",
		"${1:open":                  "open",
		"${1|open":                  "open",
	} {
		NewWithT(t).Expect(snippetText(snippet)).To(Equal(want), snippet)
	}
	snippetText(strings.Repeat("${1:", 1<<20)) // must not exhaust the stack
}

func TestConvert_ResultsForClientsWithLessSupport(t *testing.T) {
	for name, test := range map[string]struct {
		method, result, want string
	}{
		"list": {"textDocument/completion", `[{"label":"f","insertTextFormat":2,"insertText":"f($1)","sortText":"1"},{"label":"g","insertTextFormat":1,"insertText":"$1"}]`,
			`[{"label":"f","insertTextFormat":1,"insertText":"f()","sortText":"1"},{"label":"g","insertTextFormat":1,"insertText":"$1"}]`},
		"completion list": {"textDocument/completion", `{"isIncomplete":true,"items":[{"label":"f","insertTextFormat":2,"textEdit":{"range":{"start":{"line":12345678901234567890}},"newText":"${1:x};"}}]}`,
			`{"isIncomplete":true,"items":[{"label":"f","insertTextFormat":1,"textEdit":{"range":{"start":{"line":12345678901234567890}},"newText":"x;"}}]}`},
		"resolved item": {"completionItem/resolve", `{"label":"f","insertTextFormat":2,"insertText":"f$0"}`, `{"label":"f","insertTextFormat":1,"insertText":"f"}`},
		"symbols": {"textDocument/documentSymbol", `[{"name":"A","kind":5,"range":1,"selectionRange":2,"detail":"x","children":[{"name":"m","kind":6,"range":3,"selectionRange":4,"tags":[1]}]},{"name":"B","kind":5,"range":5,"selectionRange":6}]`,
			`[{"name":"A","kind":5,"location":{"uri":"file:///a","range":1}},{"name":"m","kind":6,"tags":[1],"containerName":"A","location":{"uri":"file:///a","range":3}},{"name":"B","kind":5,"location":{"uri":"file:///a","range":5}}]`},
		"flat symbols":  {"textDocument/documentSymbol", `[{"name":"A","kind":5,"location":{}}]`, ""},
		"no snippets":   {"textDocument/completion", `[{"label":"f"}]`, ""},
		"other method":  {"textDocument/hover", `{"insertTextFormat":2,"selectionRange":1}`, ""},
		"hover":         {"textDocument/hover", `{"contents":{"kind":"markdown","value":"**f** returns ` + "`x`" + `"}}`, `{"contents":{"kind":"plaintext","value":"f returns x"}}`},
		"documentation": {"textDocument/completion", `[{"label":"f","documentation":{"kind":"markdown","value":"# A"}}]`, `[{"label":"f","documentation":{"kind":"plaintext","value":"A"}}]`},
		"signature": {"textDocument/signatureHelp", `{"signatures":[{"label":"f","parameters":[{"documentation":{"kind":"markdown","value":"_a_"}}]}]}`,
			`{"signatures":[{"label":"f","parameters":[{"documentation":{"kind":"plaintext","value":"a"}}]}]}`},
		"links":  {"textDocument/definition", `[{"targetUri":"file:///b","targetRange":1,"targetSelectionRange":2}]`, `[{"uri":"file:///b","range":2}]`},
		"places": {"textDocument/definition", `{"uri":"file:///b","range":2}`, ""},
		"code actions": {"textDocument/codeAction", `[{"title":"a","edit":{}},{"title":"b","command":{"title":"run","command":"x"}},{"title":"c","command":"y"},{"title":"d","edit":{},"command":{"command":"z"}}]`,
			`[{"title":"run","command":"x"},{"title":"c","command":"y"}]`},
		"edits of documents": {"textDocument/rename", `{"documentChanges":[{"textDocument":{"uri":"file:///a","version":null},"edits":[1]},{"textDocument":{"uri":"file:///a"},"edits":[2]}]}`,
			`{"changes":{"file:///a":[1,2]}}`},
		"edits that create files": {"textDocument/rename", `{"documentChanges":[{"kind":"create","uri":"file:///b"}]}`, `{"documentChanges":[{"kind":"create","uri":"file:///b"}]}`},
		"null":                    {"textDocument/completion", `null`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got, ok := convert(neededConversions(json.RawMessage(`{}`)), test.method, []byte("file:///a"), json.RawMessage(test.result), false)
			g.Expect(ok).To(Equal(test.want != ""))
			if ok {
				g.Expect(string(got)).To(MatchJSON(test.want))
			}
		})
	}
}

func TestConvert_ChangesNothingForClientsThatSupportEverything(t *testing.T) {
	NewWithT(t).Expect(neededConversions(clientCapabilities)).To(BeEmpty())
}

func TestPlainText(t *testing.T) {
	for markdown, want := range map[string]string{
		"```go\nfunc f(a *int, b *int)\n```":         "func f(a *int, b *int)",
		"### function `helper`  \n\n---\n→ `int`  ":  "function helper\n\n→ int",
		"**bold** and *thin* and __both__ and _all_": "bold and thin and both and all",
		"snake_case_name a*b*c":                      "snake_case_name a*b*c",
		"![icon](x.png) [link](https://example.com)": "link: https://example.com",
		`a \* b \_ c &lt;T&gt; &nbsp;d`:              "a * b _ c <T> \u00a0d",
		"`**kept**` x":                               "**kept** x",
		"text\r\n\r\n\r\n\r\nmore":                   "text\n\nmore",
		"```\nnever closed":                          "never closed",
		"":                                           "",
	} {
		NewWithT(t).Expect(plainText(markdown)).To(Equal(want), markdown)
	}
	plainText(strings.Repeat("[", 1<<20) + strings.Repeat("*_`", 1<<18)) // takes linear time
}

func TestCompletion_IsConvertedForClientWithoutSnippets(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	const snippet = `[{"label":"f","insertTextFormat":2,"insertText":"f($1)"}]`
	b.serve(func(s *fakeServer, m message) {
		if m.Method == "textDocument/completion" {
			s.answer(m, snippet)
		}
	})
	plain, full := b.join(), b.connect()
	full.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"capabilities":{"textDocument":{"completion":{"completionItem":{"snippetSupport":true}}}}}}`)
	b.Eventually(func() int { return len(full.answers(`"init"`)) }).Should(Equal(1))
	full.notify("initialized", "{}")
	for c, want := range map[*fakeClient]string{plain: `[{"label":"f","insertTextFormat":1,"insertText":"f()"}]`, full: snippet} {
		c.request("1", "textDocument/completion", hoverParams("file:///a.go"))
		b.Expect(string(c.awaitAnswer("1").Result)).To(MatchJSON(want))
	}
}
