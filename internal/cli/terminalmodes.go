// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
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

const (
	// longestHeld is how much of an incomplete sequence is held back, in bytes. All sequences that change the keyboard mode are shorter.
	longestHeld = 64
	// maxReserved is the maximum number of entries to reserve on a stack of keyboard modes.
	maxReserved = 4
)

// terminalModes passes the output of a program on to the terminal of the user, and remembers which modes of the terminal it changed, so that they can be changed
// back: the program keeps running and does not know when the user leaves.
type terminalModes struct {
	to     io.Writer
	parser *ansi.Parser
	// modes are the private modes (CSI ? N h) that differ from their initial value.
	modes map[int]bool
	// undo are the sequences that undo everything else, without order.
	undo map[string]bool
	// keyboards count the entries of the program on the stack of keyboard modes (kitty protocol) of the main and of the alternate screen. The entries below
	// belong to the shell of the user. Before the program would change or remove one of these, the entries that lack are pushed: insert.
	keyboards [2]int
	insert    string
	held      []byte // the beginning of a sequence, which is written with its end
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
	m.keyboards, m.alternate = [2]int{}, 0
}

// Write implements io.Writer.
func (m *terminalModes) Write(text []byte) (int, error) {
	begun := len(m.held)
	all := append(m.held, text...)
	var out []byte
	passed, start := 0, 0 // what is in out, and the beginning of the current sequence
	if begun == 0 && m.parser.State() != parser.GroundState {
		start = -longestHeld // a longer sequence, whose beginning is written
	}
	for i, b := range text {
		if m.parser.State() == parser.GroundState {
			start = begun + i
		}
		m.parser.Advance(b)
		if m.insert != "" {
			start = max(start, 0)
			out = append(append(out, all[passed:start]...), m.insert...)
			passed, m.insert = start, ""
		}
	}
	end := len(all)
	if m.parser.State() != parser.GroundState && end-start < longestHeld {
		end = start
	}
	m.held = bytes.Clone(all[end:])
	_, err := m.to.Write(append(out, all[passed:end]...))
	return len(text), err
}

// restore changes all modes back. The caller must have stopped the output of the program.
func (m *terminalModes) restore() {
	var text strings.Builder
	if m.parser.State() != parser.GroundState {
		if len(m.held) == 0 {
			text.WriteString("\x18\x1b\\") // cancel the incomplete sequence
		}
		m.parser.Reset()
		m.held = nil
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
	if n := m.keyboards[m.screen()]; n > 0 {
		text = fmt.Sprintf("\x1b[<%du", n)
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
		if value, _, _ := params.Param(1, 0); first == 4 || len(params) == 0 { // others do not change modifyOtherKeys
			m.mark("\x1b[>4m", key[2] == 'm' && value > 0)
		}
	default:
		m.keyboard(key, first)
	}
}

// keyboard handles the sequences that change the keyboard mode of the kitty protocol.
func (m *terminalModes) keyboard(key [3]byte, first int) {
	pushed := &m.keyboards[m.screen()]
	switch key {
	case [3]byte{'>', 0, 'u'}:
		*pushed = min(*pushed+1, maxModes)
	case [3]byte{'<', 0, 'u'}:
		count := max(first, 1)
		m.reserve(count)
		*pushed = max(*pushed-count, 0)
	case [3]byte{'=', 0, 'u'}:
		m.reserve(1)
	}
}

// reserve pushes entries, so that the program has the given number of them on the current screen, at most maxReserved: stacks of terminals are small.
func (m *terminalModes) reserve(entries int) {
	pushed := &m.keyboards[m.screen()]
	if lack := min(entries, maxReserved) - *pushed; lack > 0 {
		m.insert += strings.Repeat("\x1b[>u", lack)
		*pushed += lack
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
