// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestApply_EditsText(t *testing.T) {
	const whole = `{"text":"new"}`
	for _, test := range []struct {
		name, text, want string
		exact            bool
		changes          []string
	}{
		{"nothing", "a", "a", true, nil},
		{"whole", "a", "new", true, []string{whole}},
		{"whole, then a part", "a", "nXw", true, []string{whole, edit(0, 1, 0, 2, "X")}},
		{"insert at the beginning", "ab", "Xab", true, []string{edit(0, 0, 0, 0, "X")}},
		{"insert at the end", "ab", "abX", true, []string{edit(0, 2, 0, 2, "X")}},
		{"insert into an empty text", "", "X", true, []string{edit(0, 0, 0, 0, "X")}},
		{"delete", "abc", "ac", true, []string{edit(0, 1, 0, 2, "")}},
		{"a shorter text", "abcdef", "aXf", true, []string{edit(0, 1, 0, 5, "X")}},
		{"a longer text", "abc", "aXYZWc", true, []string{edit(0, 1, 0, 2, "XYZW")}},
		{"successive changes", "ab", "YXab", true, []string{edit(0, 0, 0, 0, "X"), edit(0, 0, 0, 0, "Y")}},
		{"across lines", "a1\nb2\nc3\n", "aX3\n", true, []string{edit(0, 1, 2, 1, "X")}},
		{"after the last line end", "a\n", "a\nX", true, []string{edit(1, 0, 1, 0, "X")}},
		{"CRLF", "a1\r\nb2\r\n", "a1\r\nbX\r\n", true, []string{edit(1, 1, 1, 2, "X")}},
		{"CRLF is removed completely", "a\r\nb", "ab", true, []string{edit(0, 1, 1, 0, "")}},
		{"single CR", "a\rb", "a\rX", false, []string{edit(1, 0, 1, 1, "X")}},
		{"all kinds of line endings", "a\rb\r\nc\nd", "a\rb\r\nc\nX", false, []string{edit(3, 0, 3, 1, "X")}},
		{"two bytes are one unit", "äöü", "äXü", true, []string{edit(0, 1, 0, 2, "X")}},
		{"three bytes are one unit", "日本語", "日X語", true, []string{edit(0, 1, 0, 2, "X")}},
		{"four bytes are two units", "a😀b", "a😀X", true, []string{edit(0, 3, 0, 4, "X")}},
		{"a pair is replaced", "a😀b", "aXb", true, []string{edit(0, 1, 0, 3, "X")}},
		{"within a pair", "a😀b", "aX😀b", false, []string{edit(0, 2, 0, 2, "X")}},
		{"after the end of the line", "ab\ncd", "abX\ncd", false, []string{edit(0, 9, 0, 9, "X")}},
		{"after the end of the line, CRLF", "ab\r\ncd", "abX\r\ncd", false, []string{edit(0, 3, 0, 3, "X")}},
		{"after the end of the text", "ab\ncd", "ab\ncdX", false, []string{edit(7, 0, 7, 0, "X")}},
		{"the whole text by a large end", "ab\ncd", "X", false, []string{edit(0, 0, 99, 0, "X")}},
		{"backwards", "abcd", "aXd", false, []string{edit(0, 3, 0, 1, "X")}},
		{"with an unknown member", "ab", "X", true, []string{`{"range":{"start":{"line":0,"character":0},"end":{"line":0,"character":2}},"rangeLength":2,"text":"X"}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			got, events, err := apply(test.text, rawMessages(test.changes...))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(test.want))
			g.Expect(events != nil).To(Equal(test.exact))
		})
	}
}

func TestApply_RejectsInvalidChanges(t *testing.T) {
	for change, want := range map[string]error{
		`{}`: errChange, `null`: errChange, `5`: errChange, `{"text":5}`: errChange, `{"text":"a","range":5}`: errChange,
		edit(-1, 0, 0, 0, ""): errChange, edit(0, 0, 0, -1, ""): errChange,
		`{"text":"a","range":{"start":{"line":1e30,"character":0},"end":{"line":0,"character":0}}}`: errChange,
	} {
		_, _, err := apply("text", rawMessages(change))
		NewWithT(t).Expect(err).To(MatchError(want), change)
	}
	one := json.RawMessage(edit(0, 0, 0, 0, ""))
	many := make([]json.RawMessage, 20_000)
	for i := range many {
		many[i] = one
	}
	_, _, err := apply(strings.Repeat("x", 1<<20), many)
	NewWithT(t).Expect(err).To(MatchError(errLimit))
}

func edit(startLine, startCharacter, endLine, endCharacter int, text string) string {
	raw, err := json.Marshal(event{&span{position{startLine, startCharacter}, position{endLine, endCharacter}}, text})
	if err != nil {
		panic(err)
	}
	return string(raw)
}

func rawMessages(changes ...string) (raws []json.RawMessage) {
	for _, change := range changes {
		raws = append(raws, json.RawMessage(change))
	}
	return raws
}
