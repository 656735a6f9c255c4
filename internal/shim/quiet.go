// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"io"
	"strconv"
	"strings"
)

// longestQuery is the maximum number of bytes of an incomplete escape sequence that are held back.
const longestQuery = 256

// Control characters: enquiry is a question, bell is also the end of a string, escape begins a sequence.
const (
	enquiry = 0x05
	bell    = 0x07
	escape  = 0x1b
)

// Quiet returns a writer that passes output on to out, but removes from earlier output what must happen once only. replay is the number of bytes at the
// beginning that are earlier output; see Client.Replay.
func Quiet(out io.Writer, replay int) io.Writer { return &quiet{out: out, left: replay} }

type quiet struct {
	sieve
	out  io.Writer
	left int // bytes that are still filtered
}

func (q *quiet) Write(p []byte) (int, error) {
	if q.left <= 0 && len(q.held) == 0 {
		return q.out.Write(p)
	}
	old := min(len(p), max(q.left, 0))
	q.left -= old
	kept := append(q.filter(p[:old], q.left > 0), p[old:]...)
	if _, err := q.out.Write(kept); err != nil {
		return 0, err
	}
	return len(p), nil
}

// sieve removes from the output of a program what must happen at one terminal and once only: questions to the terminal, whose answers are typed into the program,
// notifications, writes to the clipboard, and changes of the window.
type sieve struct {
	held     []byte // beginning of an incomplete sequence
	skipping bool   // within a long string that is removed
	// removed, if not nil, is called for each removed sequence, with the output that is kept of the current call before it.
	removed func(kept, sequence []byte)
}

// filter returns what to keep of the output. If more follows, it holds back an incomplete sequence at the end.
func (s *sieve) filter(output []byte, more bool) (kept []byte) {
	text := append(s.held, output...)
	s.held = nil
	for len(text) > 0 {
		at := bytes.IndexAny(text, "\x05\x07\x1b")
		if at < 0 {
			at = len(text)
		}
		if !s.skipping {
			kept = append(kept, text[:at]...)
		}
		if text = text[at:]; len(text) == 0 {
			break
		}
		length, is := s.measure(text)
		switch is {
		case incomplete:
			if more {
				s.held = bytes.Clone(text)
				return kept
			}
			kept = append(kept, text[:length]...)
		case repeatable:
			kept = append(kept, text[:length]...)
		case endless:
			s.skipping = true
		case once:
			if s.removed != nil && length > 0 {
				s.removed(kept, text[:length])
			}
		}
		text = text[length:]
	}
	return kept
}

// class is how a sequence is treated.
type class int

const (
	repeatable class = iota
	once             // it must not be repeated
	incomplete       // the rest of it decides
	endless          // it must not be repeated, and is incomplete and long
)

// measure returns the length in bytes and the class of the sequence or control character at the beginning of text.
func (s *sieve) measure(text []byte) (length int, is class) {
	if s.skipping {
		return s.skip(text)
	}
	if text[0] != escape {
		return 1, once
	}
	if len(text) == 1 {
		return 1, incomplete
	}
	switch text[1] {
	case 'Z': // a question for the identity
		return 2, once
	case '[':
		return measureControl(text)
	case ']', 'P', 'X', '^', '_':
		return measureString(text)
	}
	return 1, repeatable
}

// skip is measure within a long string that is removed.
func (s *sieve) skip(text []byte) (length int, is class) {
	switch {
	case text[0] == enquiry:
		return 1, once
	case len(text) == 1 && text[0] == escape:
		return 1, incomplete
	}
	s.skipping = false
	if bytes.HasPrefix(text, []byte("\x1b\\")) {
		return 2, once
	}
	if text[0] == bell {
		return 1, once
	}
	return 0, once // another sequence interrupts the string
}

// measureControl measures a control sequence (CSI): parameters, intermediate characters, and a final one.
func measureControl(text []byte) (length int, is class) {
	inner := bytes.TrimLeft(text[2:], "0123456789:;<=>?")
	parameters := string(text[2 : len(text)-len(inner)])
	final := bytes.TrimLeft(inner, " !\"#$%&'()*+,-./")
	between := string(inner[:len(inner)-len(final)])
	switch {
	case len(final) == 0 && len(text) < longestQuery:
		return len(text), incomplete
	case len(final) == 0 || final[0] < '@' || final[0] > '~':
		return 1, repeatable
	}
	length = len(text) - len(final) + 1
	if controlOnce(parameters, between+string(final[0])) {
		return length, once
	}
	return length, repeatable
}

// controlOnce reports whether a control sequence is a question, or changes or prints the window.
func controlOnce(parameters, final string) bool {
	switch final {
	case "c", "x", "i", "$p", "$u", "$w", "&u", "*y", "'|":
		return true
	case "n":
		return !strings.HasPrefix(parameters, ">")
	case "q":
		return strings.HasPrefix(parameters, ">")
	case "m", "S":
		return strings.HasPrefix(parameters, "?")
	case "u":
		return parameters == "?"
	case "t": // 22 and 23 save and restore the title
		first, _, _ := strings.Cut(parameters, ";")
		number, err := strconv.Atoi(first)
		return err == nil && number <= 21
	}
	return false
}

// measureString measures a sequence that contains a string and ends with BEL or ESC \.
func measureString(text []byte) (length int, is class) {
	end := bytes.IndexAny(text[2:], "\a\x1b") + 2
	switch {
	case end < 2 || text[end] == escape && end+1 == len(text):
		switch {
		case len(text) < longestQuery:
			return len(text), incomplete
		case stringOnce(text[1], string(text[2:])):
			return len(text), endless
		}
		return 1, repeatable
	case text[end] == bell:
		length = end + 1
	case text[end+1] == '\\':
		length = end + 2
	default:
		return 1, repeatable // interrupted by another sequence
	}
	if stringOnce(text[1], string(text[2:end])) {
		return length, once
	}
	return length, repeatable
}

// stringOnce reports whether a sequence with a string is a question, a notification, a write to the clipboard, or an image, which the terminal acknowledges.
func stringOnce(kind byte, text string) bool {
	switch kind {
	case 'P':
		return strings.HasPrefix(text, "$q") || strings.HasPrefix(text, "+q")
	case '_':
		return strings.HasPrefix(text, "G")
	case ']':
	default:
		return false
	}
	number, value, _ := strings.Cut(text, ";")
	switch number {
	case "52", "5522", "99", "777":
		return true
	case "9": // 9;4 is the progress of a task
		return value != "4" && !strings.HasPrefix(value, "4;")
	case "21":
		return strings.Contains(value, "?")
	case "1337":
		return !strings.HasPrefix(value, "File") && !strings.HasPrefix(value, "MultipartFile")
	}
	return strings.HasPrefix(strings.TrimLeft(value, "0123456789;"), "?")
}
