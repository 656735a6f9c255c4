// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import "strings"

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
