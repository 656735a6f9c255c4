// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/terminal"
)

// Key is the name of a key.
type Key string

// Keys that have a meaning for a Typist.
const (
	KeyEnter  Key = "Enter"
	KeyEscape Key = "Escape"
	KeySpace  Key = "Space"
	// KeyInterrupt is what Keystrokes.Interrupt types.
	KeyInterrupt Key = "Ctrl-C"
)

// MaxKeys is the maximum number of keys that one call types.
const MaxKeys = 16

// keyBytes are the bytes that a terminal sends for each key. Cursor keys have another sequence if the program has requested application cursor keys.
var keyBytes = map[Key]string{
	KeyEnter: "\r", KeyEscape: "\x1b", KeySpace: " ", "Tab": "\t", "Shift-Tab": "\x1b[Z", "Backspace": "\x7f", "Delete": "\x1b[3~",
	"Up": "\x1b[A", "Down": "\x1b[B", "Right": "\x1b[C", "Left": "\x1b[D", "Home": "\x1b[H", "End": "\x1b[F", "PageUp": "\x1b[5~", "PageDown": "\x1b[6~",
	KeyInterrupt: "\x03", "Ctrl-D": "\x04",
}

// KeyNames returns the names of all keys in alphabetical order.
func KeyNames() []string {
	var names []string
	for _, key := range slices.Sorted(maps.Keys(keyBytes)) {
		names = append(names, string(key))
	}
	return names
}

// ParseKeys returns the keys with the given names. Upper and lower case are the same.
func ParseKeys(names []string) ([]Key, error) {
	if len(names) > MaxKeys {
		return nil, fmt.Errorf("%d keys are too many: use at most %d in one call", len(names), MaxKeys)
	}
	var keys []Key
	for _, name := range names {
		at := slices.IndexFunc(KeyNames(), func(known string) bool { return strings.EqualFold(known, name) })
		if at < 0 {
			return nil, fmt.Errorf("unknown key %q: use %s", name, strings.Join(KeyNames(), ", "))
		}
		keys = append(keys, Key(KeyNames()[at]))
	}
	return keys, nil
}

// bytes returns what a terminal sends for a key.
func (k Key) bytes(applicationCursor bool) []byte {
	sent := []byte(keyBytes[k])
	if applicationCursor && len(sent) == 3 && strings.ContainsRune("ABCDFH", rune(sent[2])) {
		sent[1] = 'O'
	}
	return sent
}

// answers reports whether a key can answer a question, so that it must not go to another question than the one for which it was meant.
func (k Key) answers() bool { return k == KeyEnter || k == KeyEscape || k == KeySpace }

// Keystrokes is what to type into a terminal: Ctrl-C, then a text, then keys.
type Keystrokes struct {
	Interrupt bool
	Text      string
	Keys      []Key
	// Look returns what the terminal shows and how it is read. If it is nil, the keys are typed without a check.
	Look func(context.Context) (terminal.Moment, error)
}

// Line returns the keystrokes of a text and Enter, without a check.
func Line(text string) Keystrokes { return Keystrokes{Text: text, Keys: []Key{KeyEnter}} }

// Empty reports whether there is nothing to type.
func (k Keystrokes) Empty() bool { return !k.Interrupt && k.Text == "" && len(k.Keys) == 0 }

// Bytes returns what a terminal sends for the keystrokes.
func (k Keystrokes) Bytes() []byte {
	var all []byte
	for _, step := range steps(k) {
		all = append(append(all, step.text...), step.key.bytes(false)...)
	}
	return all
}

// WithheldError reports that not everything was typed, or that no program reads what was typed.
type WithheldError struct {
	Verdict terminal.Verdict
	// Question is the text of the question that the terminal shows; empty if there is none.
	Question string
}

// Error implements error.
func (e *WithheldError) Error() string {
	switch e.Verdict {
	case terminal.Answered:
		return "the text has answered the question, so the keys after it were not typed"
	case terminal.AnotherQuestion:
		return "another question follows, so the keys that would answer it were not typed"
	case terminal.Unread:
		return "no program reads the terminal yet; the terminal keeps what was typed"
	}
	return "the program has not taken the text, so the keys after it were not typed"
}
