// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// mostLine limits a line of tmux in control mode, in bytes. The longest lines are those of a screen with 1000 columns of which each has its own color.
const mostLine = 1 << 20

// event is a message of tmux in control mode.
type event struct {
	kind  eventKind
	pane  string // of output
	data  []byte // output, or the lines of a reply without the last line feed
	asked bool   // a reply to a command that this client has sent, and not to one that it was started with or that a hook runs
}

type eventKind int

const (
	otherEvent  eventKind = iota // a notification that needs no reaction
	outputEvent                  // output of the program in a pane
	replyEvent                   // the reply to a command
	errorEvent                   // the reply to a command that failed
	layoutEvent                  // the size of a window or pane has changed
	exitEvent                    // the client is detached
)

// events reads the messages of tmux in control mode.
type events struct{ lines *bufio.Reader }

// next returns the next message.
//
// The lines of a reply are between a line %begin and a line %end or %error with the same numbers. A program whose screen shows such a line can only make this
// client misread the screen of that program.
func (e events) next() (event, error) {
	line, err := e.line(nil)
	if err != nil {
		return event{}, err
	}
	name, rest, _ := bytes.Cut(line, []byte(" "))
	switch string(name) {
	case "%output":
		pane, text, _ := bytes.Cut(rest, []byte(" "))
		return event{kind: outputEvent, pane: string(pane), data: unescape(text)}, nil
	case "%begin":
		return e.reply(string(rest))
	case "%layout-change":
		return event{kind: layoutEvent}, nil
	case "%exit":
		return event{kind: exitEvent}, nil
	}
	return event{}, nil
}

// reply reads a reply until its end. The last number is 1 if a command that the client has sent caused the reply.
func (e events) reply(numbers string) (event, error) {
	var lines []byte
	for {
		begin := len(lines)
		var err error
		if lines, err = e.line(lines); err != nil {
			return event{}, err
		}
		var kind eventKind
		switch string(lines[begin:]) {
		case "%end " + numbers:
			kind = replyEvent
		case "%error " + numbers:
			kind = errorEvent
		default:
			if lines = append(lines, '\n'); len(lines) > mostAnswer {
				return event{}, fmt.Errorf("the response of tmux exceeds %d bytes", mostAnswer)
			}
			continue
		}
		return event{kind: kind, data: bytes.TrimSuffix(lines[:begin], []byte("\n")), asked: strings.HasSuffix(numbers, " 1")}, nil
	}
}

// line appends the next line, without its line feed, to text.
func (e events) line(text []byte) ([]byte, error) {
	for begin := len(text); ; {
		part, err := e.lines.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case len(text)-begin > mostLine:
			return nil, fmt.Errorf("a line of tmux exceeds %d bytes", mostLine)
		case err == nil:
			return text[:len(text)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// unescape decodes output in control mode: tmux writes control characters and the backslash as a backslash and three octal digits.
func unescape(text []byte) []byte {
	plain := text[:0]
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if code, err := strconv.ParseUint(string(text[i+1:i+4]), 8, 8); err == nil {
				plain = append(plain, byte(code))
				i += 3
				continue
			}
		}
		plain = append(plain, text[i])
	}
	return plain
}

// stateFields are the fields of a pane that determine how its screen is drawn, in the order of paneState. A version of tmux that lacks a field returns "".
var stateFields = []string{
	"pid", "pane_pid", "cursor_x", "cursor_y", "scroll_region_upper", "scroll_region_lower", "pane_height", "alternate_on", "cursor_flag", "insert_flag",
	"keypad_cursor_flag", "keypad_flag", "wrap_flag", "origin_flag", "mouse_standard_flag", "mouse_button_flag", "mouse_all_flag", "mouse_utf8_flag",
	"mouse_sgr_flag", "bracket_paste_flag",
}

// paneState holds the values of stateFields.
type paneState []int

func parseState(text []byte) (paneState, error) {
	values := strings.Split(string(text), ",")
	if len(values) != len(stateFields) {
		return nil, fmt.Errorf("unexpected response %q of tmux to a query of the pane", text)
	}
	state := make(paneState, len(values))
	for i, value := range values {
		state[i] = number(value)
	}
	return state, nil
}

func stateFormat() string { return "#{" + strings.Join(stateFields, "},#{") + "}" }

// modes are the escape sequences that set and reset the modes of a terminal, in the order of stateFields from alternate_on on.
var modes = [][2]string{
	{"\x1b[?1049h", "\x1b[?1049l"}, {"\x1b[?25h", "\x1b[?25l"}, {"\x1b[4h", "\x1b[4l"}, {"\x1b[?1h", "\x1b[?1l"}, {"\x1b=", "\x1b>"}, {"\x1b[?7h", "\x1b[?7l"},
	{"\x1b[?6h", "\x1b[?6l"}, {"\x1b[?1000h", "\x1b[?1000l"}, {"\x1b[?1002h", "\x1b[?1002l"}, {"\x1b[?1003h", "\x1b[?1003l"}, {"\x1b[?1005h", "\x1b[?1005l"},
	{"\x1b[?1006h", "\x1b[?1006l"}, {"\x1b[?2004h", "\x1b[?2004l"},
}

// draw returns the output that shows a screen. screen holds the lines of the screen with colors and attributes, and rest is the beginning of an escape sequence
// that the program has not completed.
func (s paneState) draw(screen, rest []byte) []byte {
	x, y, upper, lower, height, set := s[2], s[3], s[4], s[5], s[6], s[7:]
	mode := func(i int) string {
		if set[i] != 0 {
			return modes[i][0]
		}
		return modes[i][1]
	}
	var b bytes.Buffer
	b.WriteString(mode(0))
	// G1 is the character set for lines, to which the screen changes by SO and SI. Lines are not wrapped, because each is drawn at its own position.
	b.WriteString("\x1b[0m\x0f\x1b)0\x1b[?6l\x1b[r\x1b[4l\x1b[?7l\x1b[H\x1b[2J")
	for i, line := range bytes.Split(screen, []byte("\n")) {
		fmt.Fprintf(&b, "\x1b[%d;1H%s", i+1, line)
	}
	b.WriteString("\x1b[0m\x0f")
	if upper > 0 || lower < height-1 {
		fmt.Fprintf(&b, "\x1b[%d;%dr", upper+1, lower+1)
	}
	for _, on := range []bool{false, true} { // resetting one mode of the mouse may reset the others
		for i := range modes[1:] {
			if on == (set[i+1] != 0) {
				b.WriteString(mode(i + 1))
			}
		}
	}
	if set[6] != 0 { // rows are counted from the scroll region
		y -= upper
	}
	fmt.Fprintf(&b, "\x1b[%d;%dH", y+1, x+1)
	b.Write(rest)
	return b.Bytes()
}
