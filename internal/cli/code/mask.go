// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import "strings"

// quoting is how a language marks text that is not code. A mark ends at its end or, if it is not for several lines, at the end of the line.
type quoting []struct {
	begin, end string
	lines      bool // it can contain several lines
	escapes    bool // a backslash quotes the next character
}

var (
	likeC = quoting{
		{begin: "//"}, {begin: "/*", end: "*/", lines: true}, {begin: `"`, end: `"`, escapes: true}, {begin: "'", end: "'", escapes: true}, {begin: "`", end: "`", lines: true},
	}
	likePython = quoting{
		{begin: "#"}, {begin: `"""`, end: `"""`, lines: true, escapes: true}, {begin: "'''", end: "'''", lines: true, escapes: true},
		{begin: `"`, end: `"`, escapes: true}, {begin: "'", end: "'", escapes: true},
	}
	quotings = map[string]quoting{
		"go": likeC, "typescript": likeC, "typescriptreact": likeC, "javascript": likeC, "javascriptreact": likeC, "c": likeC, "cpp": likeC, "rust": likeC, "java": likeC, "php": likeC, "scss": likeC,
		"python": likePython, "shellscript": likePython, "ruby": likePython, "yaml": likePython,
	}
)

// mask replaces the comments and strings of a text with spaces, so that every other character keeps its place. It knows no more than the marks of a language, and may
// take code for a string.
func mask(text, language string) string {
	marks := quotings[language]
	masked := []byte(text)
	for at := 0; at < len(text); {
		length := 1
		for _, mark := range marks {
			if strings.HasPrefix(text[at:], mark.begin) {
				length = len(mark.begin) + lengthUntil(text[at+len(mark.begin):], mark.end, mark.lines, mark.escapes)
				for i := at; i < at+length; i++ {
					if masked[i] != '\n' {
						masked[i] = ' '
					}
				}
				break
			}
		}
		at += length
	}
	return string(masked)
}

// lengthUntil returns the length of a text up to and including end or, without it, of the line.
func lengthUntil(text, end string, lines, escapes bool) int {
	for at := 0; at < len(text); at++ {
		switch {
		case text[at] == '\n' && !lines:
			return at
		case text[at] == '\\' && escapes:
			at++
		case end != "" && strings.HasPrefix(text[at:], end):
			return at + len(end)
		}
	}
	return len(text)
}
