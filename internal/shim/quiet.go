// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"io"
	"regexp"
	"sync"
)

// longestQuery is the maximum number of bytes of an incomplete escape sequence that are held back.
const longestQuery = 256

// sequences returns the patterns of escape sequences. It compiles them at its first call and not when the shim starts, because compiling them takes a tenth of
// the start time of a shim.
var sequences = sync.OnceValue(func() *struct{ csi, str, query, begun *regexp.Regexp } {
	return &struct{ csi, str, query, begun *regexp.Regexp }{
		// csi and str match complete sequences: CSI, OSC and DCS.
		csi: regexp.MustCompile(`^\x1b\[[0-?]*[ -/]*[@-~]`),
		str: regexp.MustCompile(`^\x1b[\]P][^\x07\x1b]*(\x07|\x1b\\)`),
		// query matches sequences that a terminal answers: its identity, cursor position, modes, size, colors and settings.
		query: regexp.MustCompile(`^\x1b(\[[0-?]*(c|n|x|\$p)|\[>[0-9]*q|\[\?u|\[(1[1345689]|2[01])t|\][0-9;]*;\?.*|P(\$|\+)q.*)`),
		// begun matches an incomplete CSI, OSC or DCS sequence.
		begun: regexp.MustCompile(`^\x1b(\[[0-?]*[ -/]*|[\]P][^\x07\x1b]*\x1b?)?$`),
	}
})

// Quiet returns a writer that passes output on to out, but removes terminal queries from earlier output. replay is the number of bytes at the beginning that
// are earlier output; see Client.Replay.
func Quiet(out io.Writer, replay int) io.Writer { return &quiet{out: out, left: replay} }

// quiet passes output on, but removes terminal queries from the replay: they were answered when the program wrote them, and the program would mistake a
// second answer for typed input.
type quiet struct {
	out  io.Writer
	left int    // bytes that are still filtered
	held []byte // beginning of an incomplete sequence
}

func (q *quiet) Write(p []byte) (int, error) {
	if q.left <= 0 && len(q.held) == 0 {
		return q.out.Write(p)
	}
	old := min(len(p), max(q.left, 0))
	q.left -= old
	text := append(q.held, p[:old]...)
	q.held = nil
	var kept []byte
	for len(text) > 0 {
		at := bytes.IndexByte(text, 0x1b)
		if at < 0 {
			at = len(text)
		}
		kept, text = append(kept, text[:at]...), text[at:]
		length, asks := measure(text)
		if length == 0 && len(text) > 0 && q.left > 0 {
			q.held = append([]byte(nil), text...)
			break
		}
		if length == 0 {
			length = len(text)
		}
		if !asks {
			kept = append(kept, text[:length]...)
		}
		text = text[length:]
	}
	if _, err := q.out.Write(append(kept, p[old:]...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// measure returns the length of the sequence at the beginning of text (0 while it is incomplete) and whether it is a query.
func measure(text []byte) (length int, asks bool) {
	if len(text) == 0 {
		return 0, false
	}
	known := sequences()
	sequence := known.csi.Find(text)
	if sequence == nil {
		sequence = known.str.Find(text)
	}
	switch {
	case sequence != nil:
		return len(sequence), known.query.Match(sequence)
	case len(text) < longestQuery && known.begun.Match(text):
		return 0, false
	}
	return 1, false
}
