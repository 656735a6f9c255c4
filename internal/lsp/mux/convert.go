// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"strings"
)

// support is what a client has declared that affects the form of results. The server is told that its clients support all of it, because some servers offer a
// feature only then; the results for other clients are converted.
type support struct {
	snippets  bool // completions with tab stops and placeholders
	hierarchy bool // symbols of a document as a tree
}

func supported(capabilities json.RawMessage) support {
	return support{
		snippets:  capable(capabilities, "textDocument", "completion", "completionItem", "snippetSupport"),
		hierarchy: capable(capabilities, "textDocument", "documentSymbol", "hierarchicalDocumentSymbolSupport"),
	}
}

// convert returns the result of a request about a document in the form that the client supports. ok is false if the result needs no conversion.
func (s support) convert(method string, uri []byte, result json.RawMessage) (converted json.RawMessage, ok bool) {
	var change func(tree any) any
	switch {
	case (method == "textDocument/completion" || method == "completionItem/resolve") && !s.snippets && bytes.Contains(result, []byte(`"insertTextFormat"`)):
		change = withoutSnippets
	case method == "textDocument/documentSymbol" && !s.hierarchy && bytes.Contains(result, []byte(`"selectionRange"`)):
		change = func(tree any) any { return flatSymbols(tree, string(uri), "") }
	default:
		return nil, false
	}
	decoder := json.NewDecoder(bytes.NewReader(result))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return nil, false
	}
	return encode(change(tree)), true
}

// withoutSnippets replaces the snippets of a completion item, of a list of items, or of a completion list with plain text.
func withoutSnippets(tree any) any {
	switch node := tree.(type) {
	case []any:
		for _, item := range node {
			withoutSnippets(item)
		}
	case map[string]any:
		withoutSnippets(node["items"])
		if node["insertTextFormat"] != json.Number("2") {
			break
		}
		node["insertTextFormat"] = 1
		plain(node, "insertText")
		plain(node, "textEditText")
		if edit, ok := node["textEdit"].(map[string]any); ok {
			plain(edit, "newText")
		}
	}
	return tree
}

func plain(node map[string]any, key string) {
	if text, ok := node[key].(string); ok {
		node[key] = snippetText(text)
	}
}

// flatSymbols returns a tree of symbols as a list, in the same order. container is the name of the parent.
func flatSymbols(tree any, uri, container string) []any {
	list := []any{}
	symbols, _ := tree.([]any)
	for _, child := range symbols {
		symbol, ok := child.(map[string]any)
		if !ok {
			continue
		}
		name, _ := symbol["name"].(string)
		flat := map[string]any{"name": name, "kind": symbol["kind"], "location": map[string]any{"uri": uri, "range": symbol["range"]}}
		for _, key := range []string{"tags", "deprecated"} {
			if value, ok := symbol[key]; ok {
				flat[key] = value
			}
		}
		if container != "" {
			flat["containerName"] = container
		}
		list = append(append(list, flat), flatSymbols(symbol["children"], uri, name)...)
	}
	return list
}

// snippetText returns the text that an editor inserts for a snippet if the user accepts every default: placeholders without their marks, the first of the choices,
// and nothing for tab stops and variables without a default.
func snippetText(snippet string) string {
	text, _ := snippetPart(snippet, 0)
	return text
}

// maxSnippetDepth bounds the nesting of placeholders.
const maxSnippetDepth = 50

// snippetPart returns the text of a snippet up to its end or, inside a placeholder, up to the closing brace, and what follows.
func snippetPart(snippet string, depth int) (text, rest string) {
	var out strings.Builder
	for len(snippet) > 0 {
		switch c := snippet[0]; {
		case c == '\\' && len(snippet) > 1 && strings.ContainsRune(`\$}`, rune(snippet[1])):
			out.WriteByte(snippet[1])
			snippet = snippet[2:]
		case c == '}' && depth > 0:
			return out.String(), snippet[1:]
		case c == '$' && len(snippet) > 1 && snippet[1] == '{' && depth < maxSnippetDepth:
			var inner string
			inner, snippet = placeholder(snippet[2:], depth+1)
			out.WriteString(inner)
		case c == '$' && len(snippet) > 1 && nameLength(snippet[1:]) > 0:
			snippet = snippet[1+nameLength(snippet[1:]):]
		default:
			out.WriteByte(c)
			snippet = snippet[1:]
		}
	}
	return out.String(), ""
}

// placeholder returns the text of a placeholder, variable or choice whose opening brace was read, and what follows its closing brace.
func placeholder(snippet string, depth int) (text, rest string) {
	snippet = snippet[nameLength(snippet):]
	switch {
	case strings.HasPrefix(snippet, ":"):
		return snippetPart(snippet[1:], depth)
	case strings.HasPrefix(snippet, "|"):
		choices, rest, _ := strings.Cut(snippet[1:], "|}")
		first, _, _ := strings.Cut(choices, ",")
		return first, rest
	}
	_, rest = snippetPart(snippet, depth) // a tab stop, or a transformation of a variable
	return "", rest
}

// nameLength returns the length of the number or name at the beginning of a text.
func nameLength(text string) int {
	n := 0
	for n < len(text) && (text[n] == '_' || text[n] >= '0' && text[n] <= '9' || text[n] >= 'a' && text[n] <= 'z' || text[n] >= 'A' && text[n] <= 'Z') {
		n++
	}
	return n
}
