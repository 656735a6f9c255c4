// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"html"
	"regexp"
	"strings"
)

var (
	codeSpan   = regexp.MustCompile("``[^\n]+?``|`[^`\n]+`")
	image      = regexp.MustCompile(`!\[[^\]\n]*\]\([^)\n]*\) ?`)
	link       = regexp.MustCompile(`\[([^\]\n]*)\]\(<?([^)>\s]*)[^)\n]*\)`)
	strong     = regexp.MustCompile(`\*\*([^*\n]+)\*\*|\b__([^_\n]+)__\b`)
	emphasis   = regexp.MustCompile(`(^|[\s(])(?:\*([^*\s][^*\n]*)\*|_([^_\n]+)_)`)
	escaped    = regexp.MustCompile("\\\\([!-/:-@\\[-`{-~])")
	heading    = regexp.MustCompile(`^#{1,6} +`)
	rule       = regexp.MustCompile(`^ {0,3}(-{3,}|\*{3,}|_{3,}) *$`)
	blankLines = regexp.MustCompile(`\n{3,}`)
)

// plainText returns Markdown, as language servers write it, without its marks.
func plainText(markdown string) string {
	var out []string
	fence := ""
	for line := range strings.SplitSeq(strings.ReplaceAll(markdown, "\r\n", "\n"), "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "" && trimmed == fence:
			fence = ""
		case fence != "":
			out = append(out, line)
		case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
			fence = trimmed[:3]
		case rule.MatchString(line):
			out = append(out, "")
		default:
			out = append(out, strings.TrimRight(plainLine(heading.ReplaceAllString(line, "")), " "))
		}
	}
	return strings.TrimSpace(blankLines.ReplaceAllString(strings.Join(out, "\n"), "\n\n"))
}

// plainLine removes the marks in one line outside code spans.
func plainLine(line string) string {
	var out strings.Builder
	for line != "" {
		span := codeSpan.FindStringIndex(line)
		if span == nil {
			span = []int{len(line), len(line)}
		}
		text := link.ReplaceAllString(image.ReplaceAllString(line[:span[0]], ""), "$1: $2")
		text = strong.ReplaceAllString(text, "$1$2")
		text = emphasis.ReplaceAllString(text, "$1$2$3")
		out.WriteString(html.UnescapeString(escaped.ReplaceAllString(text, "$1")))
		out.WriteString(strings.Trim(line[span[0]:span[1]], "`"))
		line = line[span[1]:]
	}
	return out.String()
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
