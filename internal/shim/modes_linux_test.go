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
	terminal.publish([]byte("\x1b[>1u\x1b[?2004h\x1b[?1000;1006h\x1b[?25l\x1b[?7h\x1b[?1006l\x1b[?1049h\x1b[>1u\x1b[>7u\x1b[=5;1u\x1b[>4;2m\x1b=\x1b[5;10r"))
	for range 100 {
		terminal.publish([]byte(strings.Repeat("a line of the program\x1b[0m\r\n", 100)))
	}
	last := terminal.last()
	const modes = "\x1b[>1u\x1b[?2004h\x1b[?1000h\x1b[?25l\x1b[?1049h\x1b[>1u\x1b[>5u\x1b=\x1b[>4;2m\x1b[5;10r"
	if !bytes.HasPrefix(last, []byte(modes)) {
		t.Errorf("the last output begins with %q, want %q", last[:2*len(modes)], modes)
	}
	if c := last[len(modes)]; c != '\x1b' && c != '\n' {
		t.Errorf("the last output begins within a line or a sequence: %q", last[len(modes):][:20])
	}
	if most := ringSize + len(modes); len(last) > most || len(last) < ringSize-100 {
		t.Errorf("the last output has %d bytes, want about %d", len(last), ringSize)
	}
	terminal.publish([]byte("\x1b[<2u\x1b[?1049l\x1b[<u\x1b[?2004l\x1b[?1000l\x1b[?25h\x1b>\x1b[>4m\x1b[r" + strings.Repeat("x\n", ringSize)))
	if last := terminal.last(); last[0] == '\x1b' {
		t.Errorf("modes that were reset are set again: %q", last[:20])
	}
}

func TestTerminal_LastOutputIsWholeWhileItFits(t *testing.T) {
	terminal := newTerminal(nil, nil, nil)
	terminal.publish([]byte("$ make\x1b[?2004h\r\n"))
	if last := string(terminal.last()); last != "$ make\x1b[?2004h\r\n" {
		t.Errorf("the last output is %q", last)
	}
}
