// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// modes are what a program has set in its terminal, usually once, when it starts: how keys are encoded, the mouse, bracketed paste, the alternate screen, the
// cursor. A client that attaches later needs them in addition to the last output.
type modes struct {
	// private are the private modes (DECSET) that differ from those of a new terminal, as in "1049h" or "25l", in the order in which they were changed.
	private []string
	// keyboards are the stacks of keyboard modes (kitty protocol) of the main and of the alternate screen.
	keyboards [2][]int
	// settings are sequences, which are empty for the initial state.
	settings [settingCount]string
}

// The settings, in the order in which they are restored: the mode of the keypad, modifyOtherKeys, the character set, insert mode, the shape of the cursor, the
// scroll region, and the title.
const (
	keypad = iota
	otherKeys
	characterSet
	insertMode
	cursorShape
	scrollRegion
	title
	settingCount
)

// The private modes that are restored. offFirst are off in a new terminal: keys, mouse, focus, the alternate screen, reverse colors, origin mode, bracketed paste,
// clusters of code points, reports of the size and of the color scheme. onFirst are on: wrapping, and the visible cursor. softFirst are those that a soft reset
// sets back.
var (
	offFirst = []string{"1", "5", "6", "9", "45", "66", "1000", "1002", "1003", "1004", "1005", "1006", "1007", "1015", "1016", "47", "1047", "1049", "2004", "2027", "2031",
		"2048"}
	onFirst   = []string{"7", "25"}
	softFirst = []string{"1", "6", "66", "7", "25"}
)

const (
	// longestModes bounds the parameters of a sequence in bytes.
	longestModes = 64
	// longestTitle bounds a title that is restored, in bytes.
	longestTitle = 256
	// maxKeyboards is the number of entries of a stack of keyboard modes. As in terminals, the oldest one is lost if there are more.
	maxKeyboards = 16
)

func (m *modes) clone() modes {
	copied := *m
	copied.private = slices.Clone(m.private)
	for i := range m.keyboards {
		copied.keyboards[i] = slices.Clone(m.keyboards[i])
	}
	return copied
}

// pass records the mode changes in output that is no longer replayed to clients.
func (m *modes) pass(output []byte) {
	for {
		at := bytes.IndexByte(output, 0x1b)
		if at < 0 || at+1 == len(output) {
			return
		}
		output = output[at+1:]
		switch output[0] {
		case '[':
			m.control(output[1:])
		case ']':
			m.command(output[1:])
		case '(':
			m.designate(output)
		case '=':
			m.settings[keypad] = "\x1b="
		case '>':
			m.settings[keypad] = ""
		case 'c':
			*m = modes{}
		}
	}
}

// control records the change of a control sequence, which begins with its parameters.
func (m *modes) control(sequence []byte) {
	length := bytes.IndexFunc(sequence[:min(len(sequence), longestModes)], func(r rune) bool { return r < '0' || r > '?' })
	if length < 0 {
		return
	}
	inner, final := string(sequence[:length]), sequence[length:]
	if inner != "" && inner[0] > ';' {
		m.extended(inner[0], inner[1:], final[0])
		return
	}
	switch {
	case final[0] == 'r':
		m.settings[scrollRegion] = sequenceIf(inner != "", "\x1b["+inner+"r")
	case (final[0] == 'h' || final[0] == 'l') && slices.Contains(strings.Split(inner, ";"), "4"):
		m.settings[insertMode] = sequenceIf(final[0] == 'h', "\x1b[4h")
	case bytes.HasPrefix(final, []byte(" q")):
		m.settings[cursorShape] = sequenceIf(inner != "" && inner != "0", "\x1b["+inner+" q")
	case bytes.HasPrefix(final, []byte("!p")):
		m.soften()
	}
}

// extended records the change of a sequence whose parameters begin with a character that is its kind.
func (m *modes) extended(kind byte, inner string, final byte) {
	switch {
	case kind == '?' && (final == 'h' || final == 'l'):
		for mode := range strings.SplitSeq(inner, ";") {
			m.change(mode, string(final))
		}
	case final == 'u':
		m.keyboard(kind, inner)
	case kind == '>' && (final == 'm' || final == 'n'):
		if resource, _, _ := strings.Cut(inner, ";"); resource == "" || resource == "4" {
			m.settings[otherKeys] = sequenceIf(final == 'm' && strings.HasPrefix(inner, "4;") && inner != "4;0", "\x1b[>"+inner+"m")
		}
	}
}

// soften records a soft reset.
func (m *modes) soften() {
	m.private = slices.DeleteFunc(m.private, func(mode string) bool { return slices.Contains(softFirst, mode[:len(mode)-1]) })
	for _, setting := range []int{keypad, characterSet, insertMode, scrollRegion} {
		m.settings[setting] = ""
	}
}

// designate records the character set that a sequence selects, such as the one for lines and boxes.
func (m *modes) designate(sequence []byte) {
	if len(sequence) > 1 && sequence[1] >= '0' && sequence[1] <= '~' {
		m.settings[characterSet] = sequenceIf(sequence[1] != 'B', "\x1b("+string(sequence[1]))
	}
}

// command records the title that an operating system command sets.
func (m *modes) command(sequence []byte) {
	text, found := bytes.CutPrefix(sequence, []byte("2;"))
	if !found {
		if text, found = bytes.CutPrefix(sequence, []byte("0;")); !found {
			return
		}
	}
	text = text[:min(len(text), longestTitle)]
	length := bytes.IndexFunc(text, func(r rune) bool { return r < ' ' })
	switch {
	case length < 0, text[length] != bell && text[length] != escape: // not a title, or a long one
	default:
		m.settings[title] = sequenceIf(length > 0, "\x1b]2;"+string(text[:length])+"\a")
	}
}

func sequenceIf(set bool, sequence string) string {
	if set {
		return sequence
	}
	return ""
}

func (m *modes) change(mode, final string) {
	differs := final == "h"
	if slices.Contains(onFirst, mode) {
		differs = final == "l"
	} else if !slices.Contains(offFirst, mode) {
		return
	}
	m.private = slices.DeleteFunc(m.private, func(other string) bool { return other == mode+"h" || other == mode+"l" })
	if differs {
		m.private = append(m.private, mode+final)
	}
}

// alternate is 1 if the alternate screen is shown, otherwise 0.
func (m *modes) alternate() int {
	if slices.ContainsFunc(m.private, func(mode string) bool { return mode == "47h" || mode == "1047h" || mode == "1049h" }) {
		return 1
	}
	return 0
}

// keyboard pushes (kind >) or pops (<) keyboard modes, or changes the current ones (=): it sets all, or sets (2) or clears (3) those that are named.
func (m *modes) keyboard(kind byte, inner string) {
	stack := &m.keyboards[m.alternate()]
	first, second, _ := strings.Cut(inner, ";")
	number, _ := strconv.Atoi(first)
	switch kind {
	case '>':
		if len(*stack) == maxKeyboards {
			*stack = (*stack)[1:]
		}
		*stack = append(*stack, number)
	case '<':
		*stack = (*stack)[:max(len(*stack)-max(number, 1), 0)]
	case '=':
		if len(*stack) == 0 {
			*stack = append(*stack, 0)
		}
		switch top := &(*stack)[len(*stack)-1]; second {
		case "2":
			*top |= number
		case "3":
			*top &^= number
		default:
			*top = number
		}
	}
}

// sequences returns the escape sequences that set a new terminal to the modes.
func (m *modes) sequences() []byte {
	var all []byte
	push := func(screen int) {
		for _, flags := range m.keyboards[screen] {
			all = append(all, "\x1b[>"+strconv.Itoa(flags)+"u"...)
		}
	}
	push(0)
	for _, mode := range m.private {
		all = append(all, "\x1b[?"+mode...)
	}
	if m.alternate() == 1 {
		push(1)
	}
	return append(all, strings.Join(m.settings[:], "")...)
}
