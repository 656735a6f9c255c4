// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/facts"
)

// How programs read a terminal.
var (
	raw    = facts.Input{Reader: facts.ReaderPoll, Program: "node"}
	lines  = facts.Input{Reader: facts.ReaderRead, Program: "rm", Canonical: true, Echo: true}
	secret = facts.Input{Reader: facts.ReaderRead, Program: "sudo", Canonical: true}
	shell  = facts.Input{Reader: facts.ReaderPoll, Program: "bash"}
	busy   = facts.Input{Reader: facts.ReaderNone, Canonical: true, Echo: true}
)

func approval(command, marked string) string {
	menu := "Bash command\n  " + command + "\nDo you want to proceed?\n  1. Yes\n  2. No\n"
	return strings.Replace(menu, "  "+marked, "❯ "+marked, 1)
}

const box = "Welcome\n╭────────╮\n│ > Type your message │\n╰────────╯\n ? for shortcuts"

func moment(text string, input facts.Input) Moment {
	return Moment{View: renderView(100, 30, []byte(strings.ReplaceAll(text, "\n", "\r\n"))), Input: input, Known: input != facts.Input{}}
}

// The cursor of each screen is behind its text.
func TestMayEnter_OnlyAtTheQuestionOfTheText(t *testing.T) {
	for name, test := range map[string]struct {
		before, after string
		read, reads   facts.Input // before and after
		silent        bool
		text          string
		want          Verdict
	}{
		"a menu that answers at once, and another one":         {before: approval("make deploy", "1"), after: approval("drop database", "1"), read: raw, reads: raw, text: "1", want: AnotherQuestion},
		"a menu that answers at once, and the same one again":  {before: approval("make deploy", "1"), after: approval("make deploy", "1"), read: raw, reads: raw, text: "1", want: AnotherQuestion},
		"a menu that answers at once":                          {before: approval("make deploy", "1"), after: "deploying…", read: raw, reads: raw, text: "1", want: Answered},
		"a menu in a terminal whose reader is not known":       {before: approval("make deploy", "1"), after: approval("drop database", "1"), text: "1", want: AnotherQuestion},
		"a menu that marks the choice":                         {before: approval("make deploy", "1"), after: approval("make deploy", "2"), read: raw, reads: raw, text: "2", want: Proceed},
		"a menu that marks the choice by its words":            {before: approval("make deploy", "1"), after: approval("make deploy", "2"), read: raw, reads: raw, text: "no", want: Proceed},
		"a menu that has read the number of its mark":          {before: approval("make deploy", "1"), after: approval("make deploy", "1"), read: raw, reads: raw, silent: true, text: "1", want: Proceed},
		"a menu that may not have read the number of its mark": {before: approval("make deploy", "1"), after: approval("make deploy", "1"), silent: true, text: "1", want: NotTaken},
		"a menu that ignores numbers":                          {before: approval("make deploy", "1"), after: approval("make deploy", "1"), read: raw, reads: raw, silent: true, text: "2", want: NotTaken},
		"a menu that ignores a sentence":                       {before: approval("make deploy", "1"), after: approval("make deploy", "1"), read: raw, reads: raw, silent: true, text: "please go on", want: NotTaken},
		"a menu of a busy program":                             {before: approval("make deploy", "1"), after: approval("make deploy", "1"), read: raw, reads: facts.Input{Reader: facts.ReaderNone}, silent: true, text: "1", want: NotTaken},
		"a menu with a text field":                             {before: approval("make deploy", "2"), after: approval("make deploy", "2") + "  use staging", read: raw, reads: raw, text: "use staging", want: Proceed},
		"a menu that appears meanwhile":                        {before: box, after: approval("make deploy", "1"), read: raw, reads: raw, text: "go on", want: AnotherQuestion},
		"an input box":                                         {before: box, after: strings.Replace(box, "Type your message", "1", 1), read: raw, reads: raw, text: "1", want: Proceed},
		"an input box with a list of lines":                    {before: box, after: strings.Replace(box, "> Type your message", "❯ 1. fix a\n  2. fix b", 1), read: raw, reads: raw, text: "1. fix a\n2. fix b", want: Proceed},
		"an input box with a placeholder for a long text":      {before: box, after: strings.Replace(box, "Type your message", "[Pasted text #1 +30 lines]", 1), read: raw, reads: raw, text: strings.Repeat("many lines\n", 30), want: Proceed},
		"an input box that wraps a text":                       {before: box, after: strings.Replace(box, "Type your message │", "please explain  │\n│   what this is  │", 1), read: raw, reads: raw, text: "please explain what this is", want: Proceed},
		"an input box that shows nothing yet":                  {before: box, after: box + ".", read: raw, reads: raw, text: "go on", want: NotTaken},
		"an input box with a history":                          {before: "❯ 1\n● done\n❯ ", after: "❯ 1\n● done\n❯ 1", read: raw, reads: raw, text: "1", want: Proceed},
		"a question in an input box":                           {before: "❯ ", after: "❯ what is this?", read: raw, reads: raw, text: "what is this?", want: Proceed},
		"buttons that ignore letters":                          {before: "Permission required\n  Allow once   Reject", after: "Permission required\n  Allow once   Reject", read: raw, reads: raw, silent: true, text: "1", want: NotTaken},
		"a line":                                               {before: "remove 'a'? ", after: "remove 'a'? y", read: lines, reads: lines, text: "y", want: Proceed},
		"a line without a reader report":                       {before: "remove 'a'? ", after: "remove 'a'? y", text: "y", want: Proceed},
		"a secret":                                             {before: "[sudo] password for ann: ", after: "[sudo] password for ann: ", read: secret, reads: secret, silent: true, text: "hunter2", want: Proceed},
		"a secret without a reader report":                     {before: "[sudo] password for ann: ", after: "[sudo] password for ann: ", silent: true, text: "hunter2", want: Proceed},
		"a secret that shows stars":                            {before: "? Token: ", after: "? Token: *******", read: raw, reads: raw, text: "hunter2", want: Proceed},
		"a line editor":                                        {before: ">>> ", after: ">>> print(1)", read: raw, reads: raw, text: "print(1)", want: Proceed},
		"a key that answers, and another question":             {before: "Continue? [y/N] ", after: "Continue? [y/N] y\nDelete all? [y/N] ", read: raw, reads: raw, text: "y", want: AnotherQuestion},
		"a key that answers, and the same question again":      {before: "Overwrite? [y/N] ", after: "Overwrite? [y/N] y\nOverwrite? [y/N] ", read: raw, reads: raw, text: "y", want: AnotherQuestion},
		"a key that answers, and another question on its line": {before: "Continue? [y/N] ", after: "Continue? [y/N] yDelete all? [y/N] ", read: raw, reads: raw, text: "y", want: AnotherQuestion},
		"a key that answers":                                   {before: "Continue? [y/N] ", after: "going on", read: raw, reads: raw, text: "y", want: Answered},
		"a shell":                                              {before: "$ ", after: "$ ls", read: shell, reads: shell, text: "ls", want: Proceed},
		"a shell that suggests more":                           {before: "~> ", after: "~> ls -la", text: "ls", want: Proceed},
		"a program that reads later":                           {before: "building", after: "building\nls", read: busy, reads: busy, text: "ls", want: Proceed},
		"a program that asks while a line is typed":            {before: "building", after: "building\nls\nOverwrite? [y/N] ", read: busy, reads: lines, text: "ls", want: AnotherQuestion},
		"a program that starts":                                {before: "", after: "Welcome", read: busy, reads: raw, text: "go on", want: NotTaken},
		"a number in an unrelated line":                        {before: "working 10s\n❯ ", after: "working 11s\n❯ ", read: raw, reads: raw, text: "1", want: NotTaken},
	} {
		t.Run(name, func(t *testing.T) {
			after := moment(test.after, test.reads)
			after.Silent = test.silent
			if got := MayEnter(moment(test.before, test.read), after, test.text); got != test.want {
				t.Errorf("the verdict is %s, want %s, for\n%s", got, test.want, after.View.Text)
			}
		})
	}
}

func TestMayPress_NotAtAnotherMenu(t *testing.T) {
	for name, test := range map[string]struct {
		before, after string
		want          Verdict
	}{
		"the mark has moved": {approval("make deploy", "1"), approval("make deploy", "2"), Proceed},
		"another menu":       {approval("make deploy", "1"), approval("drop database", "1"), AnotherQuestion},
		"a new menu":         {box, approval("drop database", "1"), AnotherQuestion},
		"no menu":            {box, box, Proceed},
		"the menu has gone":  {approval("make deploy", "1"), box, Answered},
	} {
		t.Run(name, func(t *testing.T) {
			if got := MayPress(moment(test.before, raw), moment(test.after, raw)); got != test.want {
				t.Errorf("the verdict is %s, want %s", got, test.want)
			}
		})
	}
}

func TestQuestion_ReturnsTextForUsers(t *testing.T) {
	for want, shown := range map[string]Moment{
		"Do you want to proceed?": moment(approval("make deploy", "1"), raw),
		"remove 'a'?":             moment("remove 'a'? ", lines),
	} {
		if got := shown.Question(); !strings.Contains(got, want) {
			t.Errorf("the question is %q, want %q", got, want)
		}
	}
	if got := moment(box, raw).Question(); got != "" {
		t.Errorf("an input box is no question: %q", got)
	}
}
