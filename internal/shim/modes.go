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
	// keyboards are the stacks of keyboard modes (kitty protocol) of the main and of the alternate screen, as decimal numbers.
	keyboards [2][]string
	// keypad, otherKeys and region are sequences: the mode of the keypad, modifyOtherKeys, and the scroll region. Empty for the initial state.
	keypad, otherKeys, region string
}

// The private modes that are restored. offFirst are off in a new terminal: keys, mouse, focus, the alternate screen, bracketed paste, reports of the size and of
// the color scheme. onFirst are on: wrapping, and the visible cursor.
var (
	offFirst = []string{"1", "9", "66", "1000", "1002", "1003", "1004", "1005", "1006", "1015", "1016", "47", "1047", "1049", "2004", "2031", "2048"}
	onFirst  = []string{"7", "25"}
)

const (
	// longestModes bounds the parameters of a sequence in bytes.
	longestModes = 64
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
		case '=':
			m.keypad = "\x1b="
		case '>':
			m.keypad = ""
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
	inner, final := string(sequence[:length]), sequence[length]
	kind := final
	if inner != "" && inner[0] > ';' { // a private sequence: its kind is both characters
		kind, inner = inner[0], inner[1:]
	}
	switch {
	case kind == '?' && (final == 'h' || final == 'l'):
		for mode := range strings.SplitSeq(inner, ";") {
			m.change(mode, string(final))
		}
	case final == 'u' && kind != 'u':
		m.keyboard(kind, inner)
	case kind == '>' && final == 'm':
		m.otherKeys = sequenceIf(strings.HasPrefix(inner, "4;") && inner != "4;0", "\x1b[>"+inner+"m")
	case kind == 'r':
		m.region = sequenceIf(inner != "", "\x1b["+inner+"r")
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

// keyboard pushes (kind >) or pops (<) keyboard modes, or changes the current one (=).
func (m *modes) keyboard(kind byte, inner string) {
	stack := &m.keyboards[m.alternate()]
	first, _, _ := strings.Cut(inner, ";")
	switch kind {
	case '>':
		if len(*stack) == maxKeyboards {
			*stack = (*stack)[1:]
		}
		*stack = append(*stack, first)
	case '<':
		count, _ := strconv.Atoi(first)
		*stack = (*stack)[:max(len(*stack)-max(count, 1), 0)]
	case '=':
		if top := len(*stack) - 1; top >= 0 {
			(*stack)[top] = first
		} else {
			*stack = append(*stack, first)
		}
	}
}

// sequences returns the escape sequences that set a new terminal to the modes.
func (m *modes) sequences() []byte {
	var all []byte
	push := func(screen int) {
		for _, flags := range m.keyboards[screen] {
			all = append(all, "\x1b[>"+flags+"u"...)
		}
	}
	push(0)
	for _, mode := range m.private {
		all = append(all, "\x1b[?"+mode...)
	}
	if m.alternate() == 1 {
		push(1)
	}
	return append(all, m.keypad+m.otherKeys+m.region...)
}
