// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"io"
	"testing"

	. "github.com/onsi/gomega"
)

// A terminal sends more than keystrokes. Only what a user does ends the report of a hook and keeps an Instance awake.
func TestNoting_IgnoresReportsOfTheTerminal(t *testing.T) {
	for input, typed := range map[string]bool{
		"\x1b[I":                       false, // focus
		"\x1b[O\x1b[I":                 false,
		"\x1b[5;1R":                    false, // answers to questions of the program
		"\x1b[?62;22c":                 false,
		"\x1b[>0;276;0c":               false,
		"\x1b[0n":                      false,
		"\x1b[?997;1n":                 false,
		"\x1b[?2026;2$y":               false,
		"\x1b[?1u":                     false,
		"\x1b[8;40;120t":               false,
		"\x1b]11;rgb:0000/0000/00\x07": false,
		"\x1bP>|xterm(390)\x1b\\":      false,
		"\x1b[<64;10;10M":              false, // the wheel
		"\x1b[<35;10;11M":              false, // a movement
		"\x1b[<0;10;10M":               true,  // a click
		"\x1b[A":                       true,  // keys
		"\x1b":                         true,
		"\x1b[97;1u":                   true,
		"\x1b[15~":                     true,
		"\r":                           true,
		"y":                            true,
		"\x1b[Iy":                      true,
		"\x1b[200~text\x1b[201~":       true,
	} {
		g := NewWithT(t)
		noted := false
		_, err := noting{io.Discard, func() { noted = true }}.Write([]byte(input))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(noted).To(Equal(typed), "%q", input)
	}
}
