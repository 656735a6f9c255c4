// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/berth-dev/berth/internal/printable"
)

// maxShown is the maximum length of a body, in bytes, because terminals drop long sequences.
const maxShown = 250

// Sequences of terminals for notifications.
const (
	osc9   = "9"   // iTerm2, Windows Terminal, kitty, Ghostty, WezTerm
	osc777 = "777" // foot, urxvt, terminals with VTE
)

// Terminal shows notifications through a terminal emulator.
type Terminal struct {
	out      io.Writer
	sequence string
	tmux     bool
}

// NewTerminal returns a sender for a terminal emulator that getenv describes.
func NewTerminal(out io.Writer, getenv func(string) string) *Terminal {
	t := &Terminal{out: out, sequence: osc9, tmux: getenv("TMUX") != ""}
	if name := getenv("TERM"); strings.HasPrefix(name, "foot") || strings.HasPrefix(name, "rxvt") || getenv("VTE_VERSION") != "" {
		t.sequence = osc777
	}
	return t
}

func (t *Terminal) String() string { return "terminal (OSC " + t.sequence + ")" }

// Destination implements Sender.
func (t *Terminal) Destination() string { return t.String() }

// Send implements Sender.
func (t *Terminal) Send(_ context.Context, m Message) error {
	// A semicolon would end the title. Control characters would end the sequence, so only printable text gets into it.
	title, body := strings.ReplaceAll(printable.Line(m.Title), ";", ","), printable.Shorten(printable.Line(m.Body), maxShown)
	text := title + ": " + body
	if t.sequence == osc777 {
		text = "notify;" + title + ";" + body
	}
	sequence := "\x1b]" + t.sequence + ";" + text + "\x1b\\"
	if t.tmux { // tmux passes it on if allow-passthrough is on
		sequence = "\x1bPtmux;" + strings.ReplaceAll(sequence, "\x1b", "\x1b\x1b") + "\x1b\\"
	}
	if _, err := io.WriteString(t.out, sequence); err != nil {
		return fmt.Errorf("write to the terminal: %w", err)
	}
	return nil
}
