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

// plainWriter writes text that cannot control a terminal. Everything that the commands print goes through one, because names, messages and errors may hold
// what an object, a process or a server has chosen. What a terminal or a protocol needs as it is goes to app.raw.
type plainWriter struct{ to io.Writer }

// Write implements io.Writer. Each call is taken for whole characters.
func (w *plainWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.to, printable(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// controlSequence is what sets a color or moves the cursor. It holds no text of its own, unlike the strings that set a title or write the clipboard.
var controlSequence = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]`)

// printable removes control sequences such as colors, and replaces what else could control a terminal or show text in another order than it has: control
// characters except line feed and tab, format characters, bidirectional marks among them, line and paragraph separators, and bytes that are not UTF-8.
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

// lineEnds are what clean replaces beside printable.
var lineEnds = strings.NewReplacer("\n", " ", "\t", " ")

// clean makes a value printable that is shown within one line: it cannot begin another one, which would look like Berth's own.
func clean(text string) string { return lineEnds.Replace(printable(text)) }
