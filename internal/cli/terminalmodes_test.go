// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTerminalModes_AreChangedBack(t *testing.T) {
	for name, test := range map[string]struct{ output, back string }{
		"text":                     {"hello \u4e16\r\n", ""},
		"mouse and paste":          {"\x1b[?1000;1006h\x1b[?2004h", "\x1b[?1000l\x1b[?1006l\x1b[?2004l"},
		"changed back already":     {"\x1b[?1004h\x1b[?1004l\x1b[?25l\x1b[?25h\x1b[1m\x1b[m\x1b[>1u\x1b[<u\x1b[>4;2m\x1b[>4m\x1b=\x1b>\x1b[5;10r\x1b[r", ""},
		"hidden cursor":            {"\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h"},
		"colors":                   {"\x1b[1;31mred", "\x1b[0m"},
		"alternate screen":         {"\x1b[?1049h", "\x1b[?1049l"},
		"keyboard":                 {"\x1b[>1u\x1b[>3u", "\x1b[<2u"},
		"keyboard of both screens": {"\x1b[>1u\x1b[?1047h\x1b[>7u", "\x1b[<1u\x1b[?1047l\x1b[<1u"},
		"keyboard set in an entry": {"\x1b[>1u\x1b[=5;1u", "\x1b[<1u"},
		"modifyOtherKeys":          {"\x1b[>4;2m", "\x1b[>4m"},
		"modifyCursorKeys":         {"\x1b[>4;2m\x1b[>1;2m", "\x1b[>4m"},
		"all key resources reset":  {"\x1b[>4;2m\x1b[>m", ""},
		"keypad and cursor keys":   {"\x1b=\x1b[?1h", "\x1b>\x1b[?1l"},
		"scroll region":            {"\x1b[5;10r", "\x1b7\x1b[r\x1b8"},
		"shape of the cursor":      {"\x1b[5 q", "\x1b[0 q"},
		"character sets":           {"\x1b(0\x0e", "\x0f\x1b(B"},
		"insert mode":              {"\x1b[4h", "\x1b[4l"},
		"colors of the terminal":   {"\x1b]11;#000000\a\x1b]4;1;#ffffff\a\x1b]10;?\a", "\x1b]104\a\x1b]111\a"},
		"a link and a progress":    {"\x1b]8;;http://localhost/\aa\x1b]9;4;1;50\a", "\x1b]8;;\a\x1b]9;4;0\a"},
		"reset":                    {"\x1b[?1049h\x1b[>1u\x1b[?1000h\x1bc", ""},
		"an incomplete sequence":   {"\x1b[?1000h\x1b]0;" + strings.Repeat("a title", 10), "\x18\x1b\\\x1b[?1000l"},
		"all at once":              {"\x1b[?1049h\x1b[>1u\x1b[>4;2m\x1b[?1h\x1b=", "\x1b[<1u\x1b[?1049l\x1b>\x1b[>4m\x1b[?1l"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			out := &bytes.Buffer{}
			m := newTerminalModes(out)
			for i := range len(test.output) { // in pieces of one byte
				_, err := m.Write([]byte{test.output[i]})
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Expect(out.String()).To(Equal(test.output))
			out.Reset()
			m.restore()
			g.Expect(out.String()).To(Equal(test.back))
			out.Reset()
			m.restore()
			g.Expect(out.String()).To(BeEmpty(), "once is enough")
		})
	}
}

// The keyboard mode that the shell of the user has set is below those of the program.
func TestTerminalModes_KeepKeyboardOfUser(t *testing.T) {
	for name, test := range map[string]struct{ output, shown, back string }{
		"set":                     {"a\x1b[=5;1ub", "a\x1b[>u\x1b[=5;1ub", "\x1b[<1u"},
		"set twice":               {"\x1b[=5;1u\x1b[=1u", "\x1b[>u\x1b[=5;1u\x1b[=1u", "\x1b[<1u"},
		"popped":                  {"\x1b[<u", "\x1b[>u\x1b[<u", ""},
		"more popped than pushed": {"\x1b[>1u\x1b[<3u\x1b[>1u", "\x1b[>1u\x1b[>u\x1b[>u\x1b[<3u\x1b[>1u", "\x1b[<1u"},
		"a large number":          {"\x1b[<99999u", "\x1b[>u\x1b[>u\x1b[>u\x1b[>u\x1b[<99999u", ""},
		"both screens":            {"\x1b[=1u\x1b[?1049h\x1b[=3u", "\x1b[>u\x1b[=1u\x1b[?1049h\x1b[>u\x1b[=3u", "\x1b[<1u\x1b[?1049l\x1b[<1u"},
	} {
		for _, piece := range []int{1, 3, 1000} {
			t.Run(fmt.Sprintf("%s in pieces of %d bytes", name, piece), func(t *testing.T) {
				g := NewWithT(t)
				out := &bytes.Buffer{}
				m := newTerminalModes(out)
				for text := range slices.Chunk([]byte(test.output), piece) {
					g.Expect(m.Write(text)).To(Equal(len(text)))
				}
				g.Expect(out.String()).To(Equal(test.shown))
				out.Reset()
				m.restore()
				g.Expect(out.String()).To(Equal(test.back))
			})
		}
	}
}

// The beginning of a sequence reaches the terminal only together with its end.
func TestTerminalModes_HoldIncompleteSequence(t *testing.T) {
	g := NewWithT(t)
	out := &bytes.Buffer{}
	m := newTerminalModes(out)
	_, err := m.Write([]byte("text\x1b[?10"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out.String()).To(Equal("text"))
	m.restore()
	g.Expect(out.String()).To(Equal("text"))
	_, err = m.Write([]byte("more"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out.String()).To(Equal("textmore"))
}
