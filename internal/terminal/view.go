// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import "strings"

// View is the content of a terminal with the position of its cursor.
type View struct {
	// Text contains all lines, without trailing spaces, empty lines at the end and format characters.
	Text string
	// Prompt is the text from the beginning of the cursor's line to the cursor, without trailing spaces, if there is no text behind or below the cursor.
	// Otherwise it is empty.
	Prompt string
	// Above is the last line with text above the cursor, if the cursor is at the beginning of an empty line and there is no text below. Otherwise it is empty.
	Above string
	// Hidden reports whether the program has hidden the cursor, and FullScreen whether it uses the alternate screen.
	Hidden, FullScreen bool

	x, y int // the position of the cursor
}

// NewView returns the view of a text with the cursor at column x and line y, both counted from 0.
func NewView(text string, x, y int, hidden, fullScreen bool) View {
	text = tidy(text)
	view := View{Text: visible(text), Hidden: hidden, FullScreen: fullScreen, x: x, y: y}
	lines := strings.Split(text, "\n")
	switch last := len(lines) - 1; {
	case text == "":
	case y == last:
		if line := lines[last]; cells(line) <= x {
			view.Prompt = visible(line)
		}
	case y > last && x == 0:
		view.Above = visible(lines[last])
	}
	return view
}

// cells returns the width of a text in columns.
func cells(text string) int {
	n, previous := 0, rune(0)
	for _, r := range text {
		n += widthAfter(previous, r)
		previous = r
	}
	return n
}
