// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plainWriter writes text without the sequences that control a terminal. All readable output of the commands goes through a plainWriter, because names,
// messages and errors may contain text that an object, a process or a server chose. Output that a terminal or a protocol needs unchanged goes to app.raw.
type plainWriter struct{ to io.Writer }

// Write implements io.Writer. Each call must contain whole characters.
func (w *plainWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.to, printable(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// controlSequence matches an ANSI control sequence, such as one that sets a color or moves the cursor. Such a sequence contains no text, unlike the sequences
// that set a title or write to the clipboard.
var controlSequence = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]`)

// printable removes control sequences such as colors. It replaces everything else that could control a terminal or change the order in which text is displayed:
// control characters except line feed and tab, format characters including bidirectional marks, line and paragraph separators, and bytes that are not valid
// UTF-8.
func printable(text string) string {
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

// lineEnds replaces the characters that printable keeps but that must not occur within one line.
var lineEnds = strings.NewReplacer("\n", " ", "\t", " ")

// clean makes a value printable within one line. The value therefore cannot start a line that looks like output of Berth.
func clean(text string) string { return lineEnds.Replace(printable(text)) }
