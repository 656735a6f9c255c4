// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

func TestKeystrokes_FollowFlags(t *testing.T) {
	for name, test := range map[string]struct {
		words   []string
		options typing
		want    string
	}{
		"a line":            {words: []string{"go", "on"}, want: "go on\r"},
		"no Enter":          {words: []string{"y"}, options: typing{noEnter: true}, want: "y"},
		"Ctrl-C":            {options: typing{interrupt: true}, want: "\x03"},
		"Ctrl-C and a line": {words: []string{"stop that"}, options: typing{interrupt: true}, want: "\x03stop that\r"},
		"an empty line":     {words: []string{""}, want: "\r"},
		"keys":              {options: typing{keys: []string{"down", "Enter"}}, want: "\x1b[B\r"},
		"a text and keys":   {words: []string{"2"}, options: typing{keys: []string{"Escape"}}, want: "2\x1b"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			strokes, err := test.options.keystrokes(test.words)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(strokes.Bytes())).To(Equal(test.want))
		})
	}
	for says, options := range map[string]typing{
		"nothing to send":           {noEnter: true},
		`unknown key "Any": use`:    {keys: []string{"Any"}},
		"17 keys are too many: use": {keys: slices.Repeat([]string{"Tab"}, 17)},
	} {
		_, err := options.keystrokes(nil)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(says)))
	}
}
