// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/ansi/parser"
)

// maxModes bounds how many changed modes are remembered; terminals know fewer.
const maxModes = 256

// terminalModes passes the output of a program on to the terminal of the user, and remembers which modes of the terminal it changed, so that they can be changed
// back: the program keeps running and does not know when the user leaves.
type terminalModes struct {
	to     io.Writer
	parser *ansi.Parser
	// modes are the private modes (CSI ? N h) that differ from their initial value.
	modes map[int]bool
	// undo are the sequences that undo everything else, without order.
	undo map[string]bool
	// keyboards count what the program has pushed on the stack of keyboard modes (kitty protocol) of the main and of the alternate screen; keyboardSet is true
	// if it has changed the mode below.
	keyboards   [2]int
	keyboardSet [2]bool
	// alternate is the mode that has selected the alternate screen; 0 for the main screen.
	alternate int
}

func newTerminalModes(to io.Writer) *terminalModes {
	m := &terminalModes{to: to, parser: ansi.NewParser()}
	m.parser.SetDataSize(1 << 10)
	m.parser.SetHandler(ansi.Handler{HandleCsi: m.control, HandleEsc: m.escape, HandleOsc: m.command, Execute: m.execute})
	m.forget()
	return m
}

func (m *terminalModes) forget() {
	m.modes, m.undo = map[int]bool{}, map[string]bool{}
	m.keyboards, m.keyboardSet, m.alternate = [2]int{}, [2]bool{}, 0
}

// Write implements io.Writer.
func (m *terminalModes) Write(text []byte) (int, error) {
	for _, b := range text {
		m.parser.Advance(b)
	}
	return m.to.Write(text)
}

// restore changes all modes back. The caller must have stopped the output of the program.
func (m *terminalModes) restore() {
	var text strings.Builder
	if m.parser.State() != parser.GroundState {
		text.WriteString("\x18\x1b\\") // cancel the incomplete sequence
		m.parser.Reset()
	}
	if m.alternate != 0 {
		text.WriteString(m.keyboardBack())
		_, _ = fmt.Fprintf(&text, "\x1b[?%dl", m.alternate)
		m.alternate = 0
	}
	text.WriteString(m.keyboardBack())
	for _, sequence := range slices.Sorted(maps.Keys(m.undo)) {
		text.WriteString(sequence)
	}
	for _, mode := range slices.Sorted(maps.Keys(m.modes)) {
		final := 'l'
		if onInitially(mode) {
			final = 'h'
		}
		_, _ = fmt.Fprintf(&text, "\x1b[?%d%c", mode, final)
	}
	m.forget()
	if text.Len() > 0 {
		_, _ = io.WriteString(m.to, text.String())
	}
}

// screen is the index of the current screen in the keyboard modes.
func (m *terminalModes) screen() int {
	if m.alternate != 0 {
		return 1
	}
	return 0
}

// keyboardBack returns what restores the keyboard mode of the current screen.
func (m *terminalModes) keyboardBack() (text string) {
	screen := m.screen()
	if n := m.keyboards[screen]; n > 0 {
		text = fmt.Sprintf("\x1b[<%du", n)
	}
	if m.keyboardSet[screen] {
		text += "\x1b[=0u"
	}
	return text
}

// mark remembers how to undo a change, or that it was undone.
func (m *terminalModes) mark(undo string, changed bool) {
	if changed && len(m.undo) < maxModes {
		m.undo[undo] = true
	} else {
		delete(m.undo, undo)
	}
}

// onInitially reports whether a private mode is set before a program changes it: wrapping, repeating keys, and the visible cursor.
func onInitially(mode int) bool { return mode == 7 || mode == 8 || mode == 25 }

// private handles CSI ? N h and CSI ? N l.
func (m *terminalModes) private(mode int, on bool) {
	switch {
	case mode == 47 || mode == 1047 || mode == 1049:
		if m.alternate = 0; on {
			m.alternate = mode
		}
	case on == onInitially(mode):
		delete(m.modes, mode)
	case len(m.modes) < maxModes:
		m.modes[mode] = true
	}
}

// control handles a control sequence (CSI).
func (m *terminalModes) control(cmd ansi.Cmd, params ansi.Params) {
	first, _, _ := params.Param(0, 0)
	switch key := [3]byte{cmd.Prefix(), cmd.Intermediate(), cmd.Final()}; key {
	case [3]byte{'?', 0, 'h'}, [3]byte{'?', 0, 'l'}:
		params.ForEach(0, func(_, mode int, _ bool) { m.private(mode, key[2] == 'h') })
	case [3]byte{0, 0, 'h'}, [3]byte{0, 0, 'l'}:
		params.ForEach(0, func(_, mode int, _ bool) {
			if mode == 4 || mode == 20 { // insert, and line feeds that return the carriage
				m.mark(fmt.Sprintf("\x1b[%dl", mode), key[2] == 'h')
			}
		})
	case [3]byte{0, 0, 'm'}:
		last, _, _ := params.Param(len(params)-1, 0)
		m.mark("\x1b[0m", len(params) > 1 || last != 0)
	case [3]byte{0, 0, 'r'}:
		m.mark("\x1b7\x1b[r\x1b8", len(params) > 0)
	case [3]byte{0, ' ', 'q'}:
		m.mark("\x1b[0 q", first != 0)
	case [3]byte{'>', 0, 'm'}, [3]byte{'>', 0, 'n'}:
		value, _, _ := params.Param(1, 0)
		m.mark("\x1b[>4m", key[2] == 'm' && first == 4 && value > 0)
	default:
		m.keyboard(key, params, first)
	}
}

// keyboard handles the sequences that change the keyboard mode of the kitty protocol.
func (m *terminalModes) keyboard(key [3]byte, params ansi.Params, first int) {
	pushed := &m.keyboards[m.screen()]
	switch key {
	case [3]byte{'>', 0, 'u'}:
		*pushed = min(*pushed+1, maxModes)
	case [3]byte{'<', 0, 'u'}:
		count, _, _ := params.Param(0, 1)
		*pushed = max(*pushed-max(count, 1), 0)
	case [3]byte{'=', 0, 'u'}:
		if *pushed == 0 {
			m.keyboardSet[m.screen()] = first != 0
		}
	}
}

// escape handles a short sequence: the mode of the keypad, a character set, or a reset of the terminal.
func (m *terminalModes) escape(cmd ansi.Cmd) {
	switch final := cmd.Final(); cmd.Intermediate() {
	case 0:
		switch final {
		case '=', '>':
			m.mark("\x1b>", final == '=')
		case 'c':
			m.forget()
		}
	case '(':
		m.mark("\x1b(B", final != 'B')
	}
}

// execute handles a control character: one that selects a character set.
func (m *terminalModes) execute(b byte) {
	if b == 0x0e || b == 0x0f {
		m.mark("\x0f", b == 0x0e)
	}
}

// command handles a command of the operating system sequences (OSC): colors, links and the progress of a task.
func (m *terminalModes) command(number int, data []byte) {
	_, value, _ := strings.Cut(string(data), ";")
	switch number {
	case 4:
		m.mark("\x1b]104\a", !strings.HasSuffix(value, "?"))
	case 10, 11, 12:
		if value != "?" {
			m.mark(fmt.Sprintf("\x1b]%d\a", 100+number), true)
		}
	case 104, 110, 111, 112:
		m.mark(fmt.Sprintf("\x1b]%d\a", number), false)
	case 8:
		_, link, _ := strings.Cut(value, ";")
		m.mark("\x1b]8;;\a", link != "")
	case 9:
		if state, found := strings.CutPrefix(value, "4;"); found {
			m.mark("\x1b]9;4;0\a", !strings.HasPrefix(state, "0"))
		}
	}
}
