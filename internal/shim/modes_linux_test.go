// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"strings"
	"testing"
)

// A client that attaches late receives the modes that the program set at its start, although the last output no longer contains them.
func TestTerminal_LastOutputBeginsWithModes(t *testing.T) {
	terminal := newTerminal(nil, nil, nil)
	terminal.Publish([]byte("\x1b[>1u\x1b[?2004h\x1b[?1000;1006h\x1b[?25l\x1b[?7h\x1b[?1006l\x1b[?1049h\x1b[>1u\x1b[>7u\x1b[=5;1u\x1b[>4;2m\x1b=\x1b[5;10r\x1b]0;a title\x1b\\"))
	for range 100 {
		terminal.Publish([]byte(strings.Repeat("a line of the program\x1b[0m\r\n", 100)))
	}
	last := terminal.last()
	const modes = "\x1b[>1u\x1b[?2004h\x1b[?1000h\x1b[?25l\x1b[?1049h\x1b[>1u\x1b[>5u\x1b=\x1b[>4;2m\x1b[5;10r\x1b]2;a title\a"
	if !bytes.HasPrefix(last, []byte(modes)) {
		t.Errorf("the last output begins with %q, want %q", last[:2*len(modes)], modes)
	}
	if c := last[len(modes)]; c != '\x1b' && c != '\n' {
		t.Errorf("the last output begins within a line or a sequence: %q", last[len(modes):][:20])
	}
	if most := ringSize + len(modes); len(last) > most || len(last) < ringSize-100 {
		t.Errorf("the last output has %d bytes, want about %d", len(last), ringSize)
	}
	terminal.Publish([]byte("\x1b[<2u\x1b[?1049l\x1b[<u\x1b[?2004l\x1b[?1000l\x1b[?25h\x1b>\x1b[>4m\x1b[r\x1b]2;\a" + strings.Repeat("x\n", ringSize)))
	if last := terminal.last(); last[0] == '\x1b' {
		t.Errorf("modes that were reset are set again: %q", last[:20])
	}
}

func TestTerminal_LastOutputIsWholeWhileItFits(t *testing.T) {
	terminal := newTerminal(nil, nil, nil)
	terminal.Publish([]byte("$ make\x1b[?2004h\r\n"))
	if last := string(terminal.last()); last != "$ make\x1b[?2004h\r\n" {
		t.Errorf("the last output is %q", last)
	}
}

func TestModes_AreThoseOfTheTerminal(t *testing.T) {
	for name, test := range map[string]struct{ output, want string }{
		"keyboard modes that are added":       {"\x1b[>1u\x1b[=4;2u", "\x1b[>5u"},
		"keyboard modes that are removed":     {"\x1b[>7u\x1b[=2;3u", "\x1b[>5u"},
		"keyboard modes without a push":       {"\x1b[=5;1u", "\x1b[>5u"},
		"modifyCursorKeys":                    {"\x1b[>4;2m\x1b[>1;2m", "\x1b[>4;2m"},
		"modifyOtherKeys, disabled":           {"\x1b[>4;2m\x1b[>4n", ""},
		"modifyOtherKeys, off":                {"\x1b[>4;2m\x1b[>4;0m", ""},
		"focus and application cursor keys":   {"\x1b[?1004h\x1b[?1h", "\x1b[?1004h\x1b[?1h"},
		"no wrapping, origin mode":            {"\x1b[?7l\x1b[?6h", "\x1b[?7l\x1b[?6h"},
		"insert mode":                         {"\x1b[4h", "\x1b[4h"},
		"insert mode, off":                    {"\x1b[20;4h\x1b[4l", ""},
		"the shape of the cursor":             {"\x1b[6 q", "\x1b[6 q"},
		"the first shape of the cursor":       {"\x1b[6 q\x1b[0 q", ""},
		"lines and boxes":                     {"\x1b(0", "\x1b(0"},
		"the first character set":             {"\x1b(0\x1b(B", ""},
		"a title":                             {"\x1b]1;icon\a\x1b]2;größe\a", "\x1b]2;größe\a"},
		"a title and an incomplete one":       {"\x1b]0;one\x1b\\\x1b]2;tw", "\x1b]2;one\a"},
		"a title with a control character":    {"\x1b]0;one\ntwo\a", ""},
		"a long title":                        {"\x1b]0;" + strings.Repeat("x", longestTitle) + "\a", ""},
		"no title":                            {"\x1b]0;one\a\x1b]0;\a", ""},
		"a soft reset":                        {"\x1b[?1h\x1b=\x1b[4h\x1b[2;3r\x1b[?25l\x1b[?7l\x1b(0\x1b[?1004h\x1b[!p", "\x1b[?1004h"},
		"a reset":                             {"\x1b[?1h\x1b=\x1b[4h\x1b[2;3r\x1b[>1u\x1b]0;t\a\x1bc", ""},
		"sequences that only look like modes": {"\x1b[4$h\x1b[4m\x1b[2;3\"r\x1b[>0q\x1b[?4m", ""},
	} {
		var m modes
		m.pass([]byte(test.output))
		if got := string(m.sequences()); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// What a program has set in the terminal of a window must not affect the next program.
func TestSetBack_ResetsAllModes(t *testing.T) {
	var m modes
	for _, mode := range offFirst {
		m.change(mode, "h")
	}
	for _, mode := range onFirst {
		m.change(mode, "l")
	}
	m.pass([]byte("\x1b=\x1b[>4;2m\x1b(0\x1b[4h\x1b[6 q\x1b[2;3r\x1b]0;a title\a"))
	m.pass([]byte("\x1b[?1049l\x1b[?1047l\x1b[?47l" + strings.Repeat("\x1b[>1u", maxKeyboards)))
	for setting, sequence := range m.settings {
		if sequence == "" {
			t.Fatalf("the test does not change setting %d", setting)
		}
	}
	m.pass([]byte("\x1b[?1049h" + setBack()))
	m.keyboards[1], m.settings[title] = nil, "" // the alternate screen has gone; the next program sets its own title
	if left := string(m.sequences()); left != "" {
		t.Errorf("these modes stay: %q", left)
	}
}
