// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package signals finds what programs tell their terminal beside their text: titles, notifications, progress, marks of shells, and the bell. It is separate from
// the package terminal, because programs that draw no screen need it.
package signals

import (
	"bytes"
	"encoding/base64"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-dev/berth/internal/facts"
)

// maxCommand is the maximum length of a sequence in bytes. Longer ones are ignored.
const maxCommand = 4 << 10

// Control characters of sequences.
const (
	bell       = 0x07
	cancel     = 0x18
	substitute = 0x1a
	escape     = 0x1b
)

// state is what the next byte of the output belongs to.
type state int

const (
	ground  state = iota
	escaped       // follows ESC
	command       // an operating system command (OSC)
	text          // another string, or a command that is too long
)

// Tracker interprets output as it is written. Its memory is bounded. The zero value is ready for use. It is not safe for concurrent use.
type Tracker struct {
	state  state
	inner  []byte // the command so far
	open   bool   // ESC interrupts a command; a backslash completes it
	chunks string // the parts of an incomplete notification (OSC 99)
	told   facts.Signals
}

// Signals returns the last signal of each kind.
func (t *Tracker) Signals() facts.Signals { return t.told }

// Note interprets output that was written at a time.
func (t *Tracker) Note(output []byte, at time.Time) {
	for len(output) > 0 {
		if t.state == ground {
			next := bytes.IndexAny(output, "\a\x1b")
			if next < 0 {
				return
			}
			output = output[next:]
		}
		t.next(output[0], at)
		output = output[1:]
	}
}

func (t *Tracker) next(b byte, at time.Time) {
	switch {
	case b == escape:
		t.state, t.open = escaped, t.state == command
	case b == cancel || b == substitute:
		t.state, t.open = ground, false
	case t.state == escaped:
		t.follow(b, at)
	case b == bell:
		switch t.state {
		case ground:
			t.told.Bell = at
		case command:
			t.tell(at)
		}
		t.state = ground
	case t.state == command && len(t.inner) == maxCommand:
		t.state = text
	case t.state == command:
		t.inner = append(t.inner, b)
	}
}

// follow handles the byte after ESC.
func (t *Tracker) follow(b byte, at time.Time) {
	complete := t.open && b == '\\'
	t.state, t.open = ground, false
	switch {
	case complete:
		t.tell(at)
	case b == ']':
		t.state, t.inner = command, t.inner[:0]
	case strings.IndexByte("PX^_k", b) >= 0:
		t.state = text
	case b == bell:
		t.told.Bell = at
	}
}

// tell records a complete command.
func (t *Tracker) tell(at time.Time) {
	number, rest, _ := strings.Cut(string(t.inner), ";")
	switch number {
	case "0", "2":
		t.told.Title = signal(rest, at)
	case "9":
		t.nine(rest, at)
	case "99":
		t.kitty(rest, at)
	case "133":
		if rest != "" && strings.Contains("ABCD", rest[:1]) {
			t.told.Mark = signal(rest[:1], at)
		}
	case "777":
		if rest, notifies := strings.CutPrefix(rest, "notify;"); notifies {
			t.told.Notice = signal(strings.Replace(rest, ";", ": ", 1), at)
		}
	}
}

// nine records OSC 9: a notification, or a command of ConEmu, which begins with a number.
func (t *Tracker) nine(rest string, at time.Time) {
	kind, value, _ := strings.Cut(rest, ";")
	switch {
	case kind == "4" && value != "" && value[0] >= '0' && value[0] <= '4':
		t.told.Progress = signal(value[:1], at)
	case strings.Trim(kind, "0123456789") != "":
		t.told.Notice = signal(rest, at)
	}
}

// kitty records a part of a notification of the kitty protocol: metadata and a payload, such as "i=1:d=0:p=title;Agent". Other kinds of payloads are no text.
func (t *Tracker) kitty(rest string, at time.Time) {
	metadata, payload, _ := strings.Cut(rest, ";")
	kind, done, encoded := "title", true, false
	for field := range strings.SplitSeq(metadata, ":") {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "p":
			kind = value
		case "d":
			done = value != "0"
		case "e":
			encoded = value == "1"
		}
	}
	if kind != "title" && kind != "body" {
		return
	}
	if encoded {
		decoded, err := base64.StdEncoding.DecodeString(payload)
		if err != nil {
			return
		}
		payload = string(decoded)
	}
	if t.chunks != "" && payload != "" && kind == "body" {
		payload = ": " + payload
	}
	if t.chunks = Clean(t.chunks + payload); !done || t.chunks == "" {
		return
	}
	t.told.Notice, t.chunks = facts.Signal{Text: t.chunks, At: at}, ""
}

func signal(text string, at time.Time) facts.Signal { return facts.Signal{Text: Clean(text), At: at} }

// Clean removes what is not printable from a text, and cuts it to facts.SignalSize bytes.
func Clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
	for len(text) > facts.SignalSize {
		_, size := utf8.DecodeLastRuneInString(text[:facts.SignalSize+1])
		text = text[:facts.SignalSize+1-size]
	}
	return text
}
