// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestKeys_EncodesInput(t *testing.T) {
	for name, test := range map[string]struct {
		words              []string
		interrupt, noEnter bool
		want               string
	}{
		"a line":            {words: []string{"go", "on"}, want: "go on\r"},
		"no Enter":          {words: []string{"y"}, noEnter: true, want: "y"},
		"Ctrl-C":            {interrupt: true, want: "\x03"},
		"Ctrl-C and a line": {words: []string{"stop that"}, interrupt: true, want: "\x03stop that\r"},
		"an empty line":     {words: []string{""}, want: "\r"},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(keys(test.words, test.interrupt, test.noEnter)).To(Equal(test.want))
		})
	}
	_, err := keys(nil, false, true)
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("nothing to send")))
}
