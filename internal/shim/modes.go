// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"slices"
	"strings"
)

// modes are the private modes of a terminal (DECSET) that a program has set: key modes, bracketed paste, the alternate screen, a hidden cursor. A program sets
// them once, when it starts, so a client that attaches later needs them in addition to the last output.
type modes struct {
	set    []string // in the order in which they were set
	hidden bool     // whether the cursor is hidden; it is visible by default
}

// keptModes are the modes that are replayed to a client: cursor keys, mouse reports, focus reports, the alternate screen, bracketed paste.
var keptModes = []string{"1", "1000", "1002", "1003", "1004", "1006", "47", "1047", "1049", "2004"}

// pass records the mode changes in output that is no longer replayed to clients.
func (m *modes) pass(output []byte) {
	const begin = "\x1b[?"
	for {
		at := bytes.Index(output, []byte(begin))
		if at < 0 {
			return
		}
		output = output[at+len(begin):]
		length := bytes.IndexFunc(output, func(r rune) bool { return (r < '0' || r > '9') && r != ';' })
		if length < 0 {
			return
		}
		if final := output[length]; final == 'h' || final == 'l' {
			for mode := range strings.SplitSeq(string(output[:length]), ";") {
				m.change(mode, final == 'h')
			}
		}
	}
}

func (m *modes) change(mode string, on bool) {
	if mode == "25" {
		m.hidden = !on
	}
	if !slices.Contains(keptModes, mode) {
		return
	}
	m.set = slices.DeleteFunc(m.set, func(other string) bool { return other == mode })
	if on {
		m.set = append(m.set, mode)
	}
}

// sequences returns the escape sequences that set a new terminal to the modes.
func (m *modes) sequences() []byte {
	var all []byte
	for _, mode := range m.set {
		all = append(all, "\x1b[?"+mode+"h"...)
	}
	if m.hidden {
		all = append(all, "\x1b[?25l"...)
	}
	return all
}
