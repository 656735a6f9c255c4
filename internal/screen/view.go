// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import "strings"

// View is what a terminal shows and where its cursor is.
type View struct {
	// Text is all lines, without spaces at their ends and without empty lines at the end.
	Text string
	// Prompt is the text from the beginning of the cursor's line up to the cursor, if nothing is shown behind or below the cursor; otherwise empty.
	// It has no spaces at its end.
	Prompt string
	// Above is the last line with text above the cursor, if the cursor is at the beginning of an empty line and nothing is shown below; otherwise empty.
	Above string
	// Hidden means that the program has hidden the cursor, and FullScreen that it uses the alternate screen.
	Hidden, FullScreen bool
}

// NewView returns the view of a text with the cursor at a column x and a line y, both from 0.
func NewView(text string, x, y int, hidden, fullScreen bool) View {
	text = Tidy(text)
	view := View{Text: text, Hidden: hidden, FullScreen: fullScreen}
	lines := strings.Split(text, "\n")
	switch last := len(lines) - 1; {
	case text == "":
	case y == last:
		if line := lines[last]; cells(line) <= x {
			view.Prompt = line
		}
	case y > last && x == 0:
		view.Above = lines[last]
	}
	return view
}

// cells returns the width of a text in columns.
func cells(text string) int {
	n := 0
	for _, r := range text {
		n += width(r)
	}
	return n
}
