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
