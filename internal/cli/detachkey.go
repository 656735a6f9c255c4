// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// detachKey is the key that detaches: Ctrl together with another key. Its flag has the form ctrl-], the default.
type detachKey struct {
	key byte // lower case, without Ctrl
}

// String implements pflag.Value.
func (k *detachKey) String() string { return "ctrl-" + string(k.key) }

// Type implements pflag.Value.
func (*detachKey) Type() string { return "key" }

// Set implements pflag.Value. Ctrl-I, Ctrl-J, Ctrl-M and Ctrl-[ are refused: terminals send the same bytes for Tab, Enter and Escape.
func (k *detachKey) Set(text string) error {
	name, found := strings.CutPrefix(strings.ToLower(text), "ctrl-")
	if !found || len(name) != 1 || !strings.Contains(`abcdefghklnopqrstuvwxyz\]^_`, name) {
		return fmt.Errorf("%q is not a detach key: use ctrl- and a letter except i, j and m, or one of \\ ] ^ _", text)
	}
	k.key = name[0]
	return nil
}

// title names the key for the user.
func (k *detachKey) title() string { return "Ctrl-" + strings.ToUpper(string(k.key)) }

// control is the byte that a terminal sends for the key.
func (k *detachKey) control() byte { return k.key & 0x1f }

// Modifiers of a key, as encoded by the keyboard protocol of kitty and by modifyOtherKeys of xterm: 1 plus the sum of these.
const (
	ctrlModifier  = 4
	lockModifiers = 64 | 128 // Caps Lock and Num Lock
)

// keyReleased is the event of a key in the kitty protocol when it is released.
const keyReleased = 3

// encodes reports whether a control sequence encodes the key. Programs that request such encodings receive them for keys with Ctrl: the kitty protocol sends
// CSI 93;5u for Ctrl-], possibly with further fields after a colon, and modifyOtherKeys sends CSI 27;5;93~.
func (k *detachKey) encodes(sequence []byte) bool {
	final := sequence[len(sequence)-1]
	fields := strings.Split(string(sequence[2:len(sequence)-1]), ";")
	var code, modifiers string
	switch {
	case final == 'u' && len(fields) >= 2:
		code, modifiers = fields[0], fields[1]
	case final == '~' && len(fields) == 3 && fields[0] == "27":
		code, modifiers = fields[2], fields[1]
	default:
		return false
	}
	code, _, _ = strings.Cut(code, ":")
	modifiers, event, _ := strings.Cut(modifiers, ":")
	pressed, err := strconv.Atoi(modifiers)
	return err == nil && code == strconv.Itoa(int(k.key)) && (pressed-1)&^lockModifiers == ctrlModifier && event != strconv.Itoa(keyReleased)
}

// Sequences with which a terminal marks pasted text, if the program has requested this.
const (
	pasteBegins = "\x1b[200~"
	pasteEnds   = "\x1b[201~"
)

const (
	escape = 0x1b
	// longestKey bounds the sequence of one key in bytes.
	longestKey = 64
	// escapeWithin is how long the rest of a sequence may take after Escape, which is also a key of its own. sequenceWithin is the same for a longer beginning,
	// which no single key sends.
	escapeWithin   = 50 * time.Millisecond
	sequenceWithin = time.Second
)

// keyScanner finds the detach key in what a user types. A key may arrive in several pieces. The key within pasted text is text.
type keyScanner struct {
	key     detachKey
	pasting bool
	held    []byte // the beginning of a sequence, which may become the detach key
}

// scan returns what to pass on of the typed bytes, and whether the detach key follows.
func (s *keyScanner) scan(typed []byte) (pass []byte, detach bool) {
	typed = append(s.take(), typed...)
	for at := 0; at < len(typed); {
		if typed[at] == s.key.control() && !s.pasting {
			return typed[:at], true
		}
		length, complete := keyLength(typed[at:])
		if !complete {
			s.held = bytes.Clone(typed[at:])
			return typed[:at], false
		}
		switch sequence := typed[at : at+length]; {
		case length < len("\x1b[u"):
		case string(sequence) == pasteBegins:
			s.pasting = true
		case string(sequence) == pasteEnds:
			s.pasting = false
		case !s.pasting && s.key.encodes(sequence):
			return typed[:at], true
		}
		at += length
	}
	return typed, false
}

// take returns what was held back, and forgets it.
func (s *keyScanner) take() []byte {
	held := s.held
	s.held = nil
	return held
}

// patience is how long to wait for the rest of what is held back; 0 if nothing is.
func (s *keyScanner) patience() time.Duration {
	switch {
	case len(s.held) == 0:
		return 0
	case len(s.held) <= len("\x1b["): // also Escape, and Alt-[
		return escapeWithin
	}
	return sequenceWithin
}

// keyLength returns the length in bytes of the control sequence at the beginning of typed, or 1 if there is none, and whether it is complete.
func keyLength(typed []byte) (length int, complete bool) {
	if typed[0] != escape {
		return 1, true
	}
	if len(typed) > 1 && typed[1] != '[' {
		return 1, true
	}
	for at := 2; at < min(len(typed), longestKey); at++ {
		switch b := typed[at]; {
		case b >= 0x40 && b <= 0x7e:
			return at + 1, true
		case b < 0x20 || b > 0x3f:
			return 1, true // no control sequence
		}
	}
	return 1, len(typed) >= longestKey
}
