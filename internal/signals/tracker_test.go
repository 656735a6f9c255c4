// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package signals

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
)

var at = time.Unix(1_800_000_000, 0)

func TestTracker_FindsSignals(t *testing.T) {
	said := func(text string) facts.Signal { return facts.Signal{Text: text, At: at} }
	for name, tc := range map[string]struct {
		output string
		want   facts.Signals
	}{
		"text":                             {output: "hello\r\n\x1b[31mred\x1b[0m"},
		"a title":                          {output: "\x1b]0;⠂ Claude Code\a", want: facts.Signals{Title: said("⠂ Claude Code")}},
		"the last title":                   {output: "\x1b]0;one\a\x1b]2;two\x1b\\", want: facts.Signals{Title: said("two")}},
		"the name of the icon":             {output: "\x1b]1;icon\a"},
		"a bell":                           {output: "a\ab", want: facts.Signals{Bell: at}},
		"a notification of iTerm2":         {output: "\x1b]9;Claude needs your permission\a", want: facts.Signals{Notice: said("Claude needs your permission")}},
		"progress":                         {output: "\x1b]9;4;3;\a", want: facts.Signals{Progress: said("3")}},
		"progress with a value":            {output: "\x1b]9;4;1;50\x1b\\", want: facts.Signals{Progress: said("1")}},
		"progress that is invalid":         {output: "\x1b]9;4;7\a\x1b]9;4\a"},
		"the directory of ConEmu":          {output: "\x1b]9;9;/tmp\a"},
		"a notification of rxvt":           {output: "\x1b]777;notify;Claude Code;Claude needs; it\a", want: facts.Signals{Notice: said("Claude Code: Claude needs; it")}},
		"another command of rxvt":          {output: "\x1b]777;precmd\a"},
		"a notification of kitty":          {output: "\x1b]99;i=1:d=0:p=title;Claude Code\x1b\\\x1b]99;i=1:p=body;Claude waits\x1b\\\x1b]99;i=1:d=1:a=focus;\x1b\\", want: facts.Signals{Notice: said("Claude Code: Claude waits")}},
		"a notification of kitty, base 64": {output: "\x1b]99;e=1;aGk=\x1b\\", want: facts.Signals{Notice: said("hi")}},
		"an incomplete one":                {output: "\x1b]99;i=1:d=0;Hello\x1b\\"},
		"a question for kitty":             {output: "\x1b]99;i=opentui-notifications:p=?;\x1b\\"},
		"marks of a shell":                 {output: "\x1b]133;A\a$ \x1b]133;B\als\r\n\x1b]133;C;cmdline=ls\a", want: facts.Signals{Mark: said("C")}},
		"a mark that is unknown":           {output: "\x1b]133;Z\a\x1b]133;\a"},
		"control characters":               {output: "\x1b]0;a\tb\u202ec\xff\u0085d\a", want: facts.Signals{Title: said("abcd")}},
		"a long title":                     {output: "\x1b]0;" + strings.Repeat("é", 300) + "\a", want: facts.Signals{Title: said(strings.Repeat("é", 128))}},
		"a command that is too long":       {output: "\x1b]0;" + strings.Repeat("a", maxCommand) + "\ab\x1b]2;c\a", want: facts.Signals{Title: said("c")}},
		"a title that is canceled":         {output: "\x1b]0;a\x18\x1b]0;b\x1b[m\x1b]0;c\x1a"},
		"a bell in another string":         {output: "\x1bPa\a\x1b_b\a\x1b^c\x1b\\"},
		"an interrupted title, and a bell": {output: "\x1b]0;a\x1b\a", want: facts.Signals{Bell: at}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var whole, bytewise Tracker
			whole.Note([]byte(tc.output), at)
			g.Expect(whole.Signals()).To(Equal(tc.want))
			for i := range len(tc.output) {
				bytewise.Note([]byte(tc.output[i:i+1]), at)
			}
			g.Expect(bytewise.Signals()).To(Equal(tc.want), "byte by byte")
		})
	}
}

func FuzzTracker_IsBounded(f *testing.F) {
	f.Add([]byte("\x1b]0;title\a\x1b]99;d=0;x\x1b\\\x1b]9;4;1\a"))
	f.Fuzz(func(t *testing.T, output []byte) {
		var tracker Tracker
		for range 3 {
			tracker.Note(output, at)
		}
		told := tracker.Signals()
		for _, s := range []string{told.Title.Text, told.Progress.Text, told.Mark.Text, told.Notice.Text, tracker.chunks} {
			if len(s) > facts.SignalSize || !utf8.ValidString(s) || strings.ContainsAny(s, "\x1b\a\r\n") {
				t.Fatalf("%q", s)
			}
		}
		if len(tracker.inner) > maxCommand {
			t.Fatal(len(tracker.inner))
		}
	})
}
