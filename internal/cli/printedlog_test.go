// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"io"
	"testing"

	. "github.com/onsi/gomega"
)

func TestPrintedLog_PassesTextAndColorsOnly(t *testing.T) {
	for name, test := range map[string]struct{ output, colored, plain string }{
		"text":             {"caf\u00e9 \u4e16\u754c\tx\r\n", "caf\u00e9 \u4e16\u754c\tx\r\n", "caf\u00e9 \u4e16\u754c\tx\r\n"},
		"colors":           {"\x1b[1;31mred\x1b[m \x1b[38:2::1:2:3mrgb\x1b[0m", "\x1b[1;31mred\x1b[m \x1b[38:2::1:2:3mrgb\x1b[0m", "red rgb"},
		"a color at end":   {"\x1b[31mred", "\x1b[31mred\x1b[m", "red"},
		"modes":            {"\x1b[?1049h\x1b[>7u\x1b[?1003h\x1b[>4;2m\x1b=a\x1b[2J\x1b[5;10r", "a", "a"},
		"questions":        {"\x1b[6n\x1b[c\x1bZ\x05\x1b]11;?\aa\x1bP$qm\x1b\\b", "ab", "ab"},
		"clipboard, title": {"\x1b]52;c;aGk=\a\x1b]0;a title\x1b\\a\x1b_Gi=1;AAAA\x1b\\b", "ab", "ab"},
		"notifications":    {"\x1b]9;It asks\aa\x1b]9;4;3\a\x1b]777;notify;T;B\x1b\\b\x1b]99;i=1:d=0;T\x1b\\\x1b]133;C\ac\a", "abc", "abc"},
		"control":          {"a\a\bb\x7fc\x00", "abc", "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			for colors, want := range map[bool]string{true: test.colored, false: test.plain} {
				out := &bytes.Buffer{}
				l := newPrintedLog(out, colors)
				for i := range len(test.output) {
					_, err := l.Write([]byte{test.output[i]})
					g.Expect(err).NotTo(HaveOccurred())
				}
				l.end()
				g.Expect(out.String()).To(Equal(want))
			}
		})
	}
}

func TestLogDisplay_KeepsAllForFilesAndPipes(t *testing.T) {
	const output, colored, plain = "\x1b[31m\x1b[?1003ha", "\x1b[31ma\x1b[m", "a"
	for _, test := range []struct {
		display            logDisplay
		terminal, disabled bool // disabled: NO_COLOR is set
		want               string
	}{
		{display: logDisplay{color: "auto"}, want: output},
		{display: logDisplay{color: "always"}, want: output},
		{display: logDisplay{color: "never"}, want: plain},
		{display: logDisplay{color: "auto"}, disabled: true, want: plain},
		{display: logDisplay{color: "always"}, disabled: true, want: output},
		{display: logDisplay{color: "auto"}, terminal: true, want: colored},
		{display: logDisplay{color: "never"}, terminal: true, want: plain},
		{display: logDisplay{color: "auto"}, terminal: true, disabled: true, want: plain},
		{display: logDisplay{color: "auto", raw: true}, terminal: true, want: output},
	} {
		g := NewWithT(t)
		t.Setenv("NO_COLOR", map[bool]string{true: "1"}[test.disabled])
		out := &bytes.Buffer{}
		to, end := test.display.writer(out, test.terminal)
		_, err := io.WriteString(to, output)
		g.Expect(err).NotTo(HaveOccurred())
		end()
		g.Expect(out.String()).To(Equal(test.want), "%+v", test)
	}
	NewWithT(t).Expect((&logDisplay{color: "red"}).check()).To(MatchError(`--color "red" is not supported: use auto, always or never`))
}
