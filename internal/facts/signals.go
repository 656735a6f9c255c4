// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package facts

import "time"

// Signals are what a program has told its terminal beside its text. They are claims of the program about itself, and their text may be a secret.
type Signals struct {
	// Title is the title of the window (OSC 0 and 2).
	Title Signal `json:"title,omitzero"`
	// Progress is the state of a progress bar (OSC 9;4): 0 for none, 1 to 4 for normal, error, indeterminate and paused.
	Progress Signal `json:"progress,omitzero"`
	// Mark is the last mark of a shell (OSC 133): A and B before and after a prompt, C and D before and after the output of a command.
	Mark Signal `json:"mark,omitzero"`
	// Notice is the last desktop notification (OSC 9, 99 and 777), as "TITLE: BODY" or as its only text.
	Notice Signal `json:"notice,omitzero"`
	// Bell is when the program last rang the bell.
	Bell time.Time `json:"bell,omitzero"`
}

// Signal is the last signal of its kind.
type Signal struct {
	// Text has at most SignalSize bytes, all of which are printable.
	Text string `json:"text,omitempty"`
	// At is when the program last sent the signal, with this or another text. It is zero if the backend knows only the text.
	At time.Time `json:"at,omitzero"`
}

// SignalSize is the maximum length of the text of a Signal, in bytes. Longer texts are cut.
const SignalSize = 256
