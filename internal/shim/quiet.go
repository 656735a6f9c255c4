// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"sync"
)

// longestQuery is the maximum number of bytes of an incomplete escape sequence that are held back.
const longestQuery = 256

// sequences returns the patterns of escape sequences. It compiles them at its first call and not when the shim starts, because compiling them takes a tenth of
// the start time of a shim.
var sequences = sync.OnceValue(func() *struct{ csi, str, once, begun, onceBegun *regexp.Regexp } {
	return &struct{ csi, str, once, begun, onceBegun *regexp.Regexp }{
		// csi and str match complete sequences: CSI, and those with a string (OSC, DCS, SOS, PM, APC).
		csi: regexp.MustCompile(`^\x1b\[[0-?]*[ -/]*[@-~]`),
		str: regexp.MustCompile(`^\x1b[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)`),
		// once matches sequences that must not be repeated.
		once: regexp.MustCompile(`(?s)^\x1b(` + strings.Join([]string{
			`\[[0-?]*(c|n|x|\$[puw]|&u|\*y|'\|)`,                                                // questions for the identity, the cursor, modes, settings and the screen
			`\[>[0-9]*q`, `\[\?([0-9;]*[mS]|u)`, `P(\$|\+)q.*`, `\][0-9;]*;\?.*`, `\]21;.*\?.*`, // questions for the version, keys, graphics, and colors
			`\[(1?[0-9]|2[01])(;[0-9]*)*t`,                // questions for the window, and changes of it; not its title
			`\[\??[0-9;]*i`,                               // print
			`\](52|5522|99|777);.*`,                       // the clipboard, and notifications
			`\]9;([^4]|4[^;]).*`, `\]1337;([^F]|F[^i]).*`, // notifications and questions; not the progress of a task, and not images
			`_G.*`, // images, which the terminal acknowledges
		}, "|") + `)`),
		// begun matches an incomplete sequence, and onceBegun an incomplete one that must not be repeated, however long it becomes.
		begun:     regexp.MustCompile(`^\x1b(\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?)?$`),
		onceBegun: regexp.MustCompile(`(?s)^\x1b(\](52|5522|99|777);|_G)`),
	}
})

// Control characters in the replay: enquiry is a question, bell and the end of a string, escape begins a sequence.
const (
	enquiry = 0x05
	bell    = 0x07
	escape  = 0x1b
)

// Quiet returns a writer that passes output on to out, but removes from earlier output what must happen once only. replay is the number of bytes at the
// beginning that are earlier output; see Client.Replay.
func Quiet(out io.Writer, replay int) io.Writer { return &quiet{out: out, left: replay} }

// quiet passes output on, but removes from the replay questions to the terminal, notifications and writes to the clipboard: the questions were answered when the
// program wrote them, and the program would mistake a second answer for typed input.
type quiet struct {
	out      io.Writer
	left     int    // bytes that are still filtered
	held     []byte // beginning of an incomplete sequence
	skipping bool   // within a long string that is removed
}

func (q *quiet) Write(p []byte) (int, error) {
	if q.left <= 0 && len(q.held) == 0 {
		return q.out.Write(p)
	}
	old := min(len(p), max(q.left, 0))
	q.left -= old
	text := append(q.held, p[:old]...)
	q.held = nil
	kept := append(q.filter(text), p[old:]...)
	if _, err := q.out.Write(kept); err != nil {
		return 0, err
	}
	return len(p), nil
}

// filter returns what to keep of earlier output, and holds back an incomplete sequence at its end.
func (q *quiet) filter(text []byte) (kept []byte) {
	for len(text) > 0 {
		at := bytes.IndexAny(text, "\x05\x07\x1b")
		if at < 0 {
			at = len(text)
		}
		if !q.skipping {
			kept = append(kept, text[:at]...)
		}
		if text = text[at:]; len(text) == 0 {
			break
		}
		length, is := measure(text)
		if q.skipping {
			length, is = q.skip(text)
		}
		switch is {
		case incomplete:
			if q.left > 0 {
				q.held = bytes.Clone(text)
				return kept
			}
			kept = append(kept, text[:length]...)
		case repeatable:
			kept = append(kept, text[:length]...)
		case endless:
			q.skipping = true
		}
		text = text[length:]
	}
	return kept
}

// skip returns what to remove at the beginning of text, which is the end of a long string or within it.
func (q *quiet) skip(text []byte) (length int, is class) {
	switch {
	case text[0] == enquiry:
		return 1, once
	case len(text) == 1 && text[0] == escape && q.left > 0:
		return 1, incomplete
	}
	q.skipping = false
	if bytes.HasPrefix(text, []byte("\x1b\\")) {
		return 2, once
	}
	if text[0] == bell {
		return 1, once
	}
	return 0, once // another sequence interrupts the string
}

// class says what to do with a sequence in earlier output.
type class int

const (
	repeatable class = iota
	once             // it must not be repeated
	incomplete       // the rest of it decides
	endless          // it must not be repeated, and is incomplete and long
)

// measure returns the length in bytes and the class of the sequence or control character at the beginning of text.
func measure(text []byte) (length int, is class) {
	if text[0] != escape {
		return 1, once
	}
	if bytes.HasPrefix(text, []byte("\x1bZ")) { // a question for the identity
		return 2, once
	}
	known := sequences()
	sequence := known.csi.Find(text)
	if sequence == nil {
		sequence = known.str.Find(text)
	}
	switch {
	case sequence != nil && known.once.Match(sequence):
		return len(sequence), once
	case sequence != nil:
		return len(sequence), repeatable
	case !known.begun.Match(text):
		return 1, repeatable
	case len(text) < longestQuery:
		return len(text), incomplete
	case known.onceBegun.Match(text):
		return len(text), endless
	}
	return 1, repeatable
}
