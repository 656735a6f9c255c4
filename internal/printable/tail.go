// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxTail is the maximum length of the result of Tail, in bytes with line feeds. maxLines is its maximum number of lines, and maxLine the maximum length of one of
	// them, in bytes.
	MaxTail  = 1 << 10
	maxLines = 16
	maxLine  = 160
)

// stackFrame matches the lines that JavaScript and Java print below an error. There are often so many that they would displace the error itself.
var stackFrame = regexp.MustCompile(`^\s+at \S`)

// Tail returns the last lines of text that contain a letter or a digit, within the limits, without stack frames and control characters. Lines without letters are
// parentheses and frames, which would displace the error that they surround.
func Tail(text []byte) []string {
	var shown []string
	for line := range strings.SplitSeq(string(text), "\n") {
		line = strings.TrimRight(Text(strings.TrimRight(line, "\r")), " \t")
		if strings.ContainsFunc(line, isWord) && !stackFrame.MatchString(line) {
			shown = append(shown, Shorten(line, maxLine))
		}
	}
	shown = shown[max(0, len(shown)-maxLines):]
	size := 0
	for i := len(shown) - 1; i >= 0; i-- {
		if size += len(shown[i]) + 1; size <= MaxTail {
			continue
		}
		return shown[i+1:]
	}
	return shown
}

func isWord(char rune) bool { return unicode.IsLetter(char) || unicode.IsDigit(char) }

// Shorten shortens text to at most limit bytes, ellipsis included, and keeps characters whole.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const mark = "…"
	cut := limit - len(mark)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strings.TrimRight(text[:max(cut, 0)], " ") + mark
}
