// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// unordered are the requests whose results servers return in a different order each time.
var unordered = []string{"textDocument/documentHighlight", "textDocument/references", "workspace/symbol"}

// canonical returns a result without what differs from one server process to the next: data that only the server understands (a list is semantic tokens), the versions of documents, which
// the multiplexer removes, and the order of a list.
func canonical(method string, result any) any {
	text, _ := json.Marshal(result)
	var tree any
	_ = json.Unmarshal(text, &tree)
	tree = strip(tree)
	if list, ok := tree.([]any); ok && slices.Contains(unordered, method) {
		slices.SortFunc(list, func(a, b any) int { return cmp.Compare(encoded(a), encoded(b)) })
	}
	return tree
}

func encoded(tree any) string {
	text, _ := json.Marshal(tree)
	return string(text)
}

func strip(tree any) any {
	switch node := tree.(type) {
	case []any:
		for i := range node {
			node[i] = strip(node[i])
		}
	case map[string]any:
		if _, tokens := node["data"].([]any); !tokens {
			delete(node, "data")
		}
		delete(node, "resultId")
		for key := range node {
			node[key] = strip(node[key])
		}
		changes, ok := node["documentChanges"].([]any)
		if !ok {
			break
		}
		byDocument := map[string]any{} // servers list the documents in any order
		for _, change := range changes {
			edit, _ := change.(map[string]any)
			document, _ := edit["textDocument"].(map[string]any)
			byDocument[fmt.Sprint(document["uri"])] = edit["edits"]
		}
		delete(node, "documentChanges")
		node["changes"] = byDocument
	}
	return tree
}

// compare returns how the answer of the shared server differs from that of the server alone; empty if it does not. An editor declares all that the multiplexer
// declares, so that the answers must be equal. For the other clients the multiplexer converts answers, so that they are compared in content.
func compare(kind, question string, alone, shared any) string {
	if encoded(alone) == encoded(shared) {
		return ""
	}
	if kind == "editor" {
		return "the answers are not equal"
	}
	if _, failed := alone.(failure); failed {
		return "" // some servers fail when a client declares little
	}
	text := encoded(shared)
	if strings.Contains(text, `"markdown"`) {
		return "the client does not understand Markdown"
	}
	switch question {
	case hover, "textDocument/signatureHelp":
		return missing(words(alone), words(shared))
	case completion:
		if strings.Contains(text, `"insertTextFormat":2`) {
			return "the client does not understand snippets"
		}
		if items(alone) != items(shared) {
			return fmt.Sprintf("%d items instead of %d", items(shared), items(alone))
		}
		return ""
	case documentSymbols:
		if kind == "minimal" && strings.Contains(text, `"selectionRange"`) {
			return "the client does not understand trees"
		}
		return missing(values(alone, "name"), values(shared, "name"))
	case "textDocument/codeAction":
		return missing(values(shared, "title"), values(alone, "title")) // those that have no command are omitted
	case "textDocument/definition":
		return missing(values(alone, "uri"), values(shared, "uri")) // the place is the name, or the whole declaration
	case "diagnostics":
		return missing(firstLines(alone), firstLines(shared)) // the server adds hints for clients that can show them differently
	case "textDocument/semanticTokens/full":
		if encoded(alone) == `{"data":[]}` {
			return "" // the client declares no types of tokens
		}
	}
	return "the answers are not equal"
}

// missing returns which strings of one list the other one lacks.
func missing(wanted, present []string) string {
	var lacks []string
	for _, want := range wanted {
		if !slices.Contains(present, want) {
			lacks = append(lacks, want)
		}
	}
	if len(lacks) == 0 {
		return ""
	}
	return fmt.Sprintf("missing: %q", lacks)
}

var (
	fences = regexp.MustCompile("(?m)^\\s*```.*$")
	links  = regexp.MustCompile(`\]\([^)]*\)`)
	word   = regexp.MustCompile(`[A-Za-z0-9]+`)
)

// words returns the words of all values of a result, without the marks of Markdown.
func words(tree any) (all []string) {
	for _, key := range []string{"value", "contents", "label"} {
		for _, value := range values(tree, key) {
			all = append(all, word.FindAllString(links.ReplaceAllString(fences.ReplaceAllString(value, ""), ""), -1)...)
		}
	}
	return all
}

// values returns the strings with a key anywhere in a result.
func values(tree any, key string) (all []string) {
	switch node := tree.(type) {
	case []any:
		for _, child := range node {
			all = append(all, values(child, key)...)
		}
	case map[string]any:
		if text, ok := node[key].(string); ok {
			all = append(all, text)
		}
		for _, child := range node {
			all = append(all, values(child, key)...)
		}
	}
	return all
}

// items returns the number of completions.
func items(tree any) int {
	if list, ok := tree.(map[string]any); ok {
		tree = list["items"]
	}
	all, _ := tree.([]any)
	return len(all)
}

// firstLines returns diagnostics without notes: a server adds them to the message if the client does not understand them.
func firstLines(tree any) (lines []string) {
	all, _ := tree.([]any)
	for _, child := range all {
		diagnostic, _ := child.(map[string]any)
		message, _, _ := strings.Cut(fmt.Sprint(diagnostic["message"]), "\n")
		lines = append(lines, encoded(diagnostic["range"])+message)
	}
	return lines
}
