// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package printable removes control characters from text of processes and objects, shortens it, derives names of objects from it, and quotes words for a shell.
package printable

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// controlSequence matches an ANSI control sequence, such as one that sets a color or moves the cursor. Such a sequence contains no text, unlike the sequences
// that set a title or write to the clipboard.
var controlSequence = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]`)

// lineEnds replaces the characters that Text keeps but that must not occur within one line.
var lineEnds = strings.NewReplacer("\n", " ", "\t", " ")

// Line is Text for a value that must stay within one line. The value therefore cannot start a line that looks like output of Berth, or end a comment.
func Line(text string) string { return lineEnds.Replace(Text(text)) }

// Text removes control sequences such as colors. It replaces everything else that could control a terminal or change the order in which text is displayed:
// control characters except line feed and tab, format characters including bidirectional marks, line and paragraph separators, and bytes that are not valid
// UTF-8.
func Text(text string) string {
	if strings.ContainsRune(text, '\x1b') {
		text = controlSequence.ReplaceAllString(text, "")
	}
	return strings.Map(func(char rune) rune {
		switch {
		case char == '\n', char == '\t':
			return char
		case unicode.In(char, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
			return utf8.RuneError
		}
		return char
	}, text)
}
