// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTail_KeepsLastRelevantLines(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"nothing":      {"", nil},
		"blank lines":  {"\n\r\n \n", nil},
		"one line":     {"npm error Missing script: \"dev\"\n", []string{`npm error Missing script: "dev"`}},
		"stack frames": {"SyntaxError: x\n    at wrapSafe (node:internal:1)\n    at Module\n\nNode.js v20\n", []string{"SyntaxError: x", "Node.js v20"}},
		"escapes":      {"\x1b[31mred\x1b[0m\x07\r\n", []string{"red\ufffd"}},
		"many lines":   {strings.Repeat("x\n", 40) + "last\n", append(slices.Repeat([]string{"x"}, maxLines-1), "last")},
		"long lines":   {strings.Repeat(strings.Repeat("y", 200)+"\n", 9), slices.Repeat([]string{strings.Repeat("y", maxLine-3) + "…"}, 6)},
		"one too long": {strings.Repeat("ä", 600), []string{strings.Repeat("ä", (maxLine-3)/2) + "…"}},
		"frames":       {"failed to load config\n ╭─[ vite.config.js:1:2 ]\n │" + strings.Repeat(" ", 900) + "┬\n ╯\n}\n", []string{"failed to load config", " ╭─[ vite.config.js:1:2 ]"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got := Tail([]byte(test.text))
			g.Expect(got).To(Equal(test.want))
			g.Expect(len(strings.Join(got, "\n"))).To(BeNumerically("<=", MaxTail))
		})
	}
}
