// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"strings"
	"sync"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/pattern"
)

// lastLines is the number of lines at the end of a screen that are searched for a question. Questions further up were already answered.
const lastLines = 20

// Questions are patterns that match a screen on which a program waits for an answer.
type Questions struct {
	names    []string // names of the patterns, for messages; nil for the patterns of a spec, which are identified by index
	patterns *pattern.Set
}

// defaults are tested with recorded screens in testdata. The pattern for a question of one line matches only at the end of the text, where the cursor is,
// because text after the question would be its answer. The pattern for a question in a box matches anywhere, because programs erase the box after the answer.
// They are compiled at the first use, because the shims contain this package for its Screen.
var defaults = sync.OnceValue(func() Questions { return questions(defaultQuestions) })

var defaultQuestions = []question{
	{"Claude Code", `(?s)(Do you (want|trust)|Would you like|Is this a project you|Choose the text style|Claude wants to|Ready to submit).+❯\s*\d\. \S`},
	{"Claude Code", `(?s)❯ .+\n *(Space to select · )?Enter to (confirm|select) · ([^\n]+ · )?Esc to [a-z ]+\z`},
	{"Claude Code", `(?m)^[ │]*Enter to continue · ([^\n]+ · )?Esc to (cancel|go back)[ │]*\z`},
	{"Codex", `(?s)(Would you like to|Do you want to|Do you trust|Allow command).+(›|▌|❯)\s*(\d\. )?(Yes|No)\b`},
	{"Codex", `(?i)press enter to (confirm or|save\s+press) esc to (cancel|go back)\S*\s*\z`},
	{"Codex", `(?s)› \d\. \S[^›]+\benter (to )?(continue|confirm)`},
	{"Gemini CLI", `Waiting for user confirmation`},
	{"Gemini CLI", `(?s)(Allow execution|Apply this change).+●\s*(\d\. )?(Yes|No|Modify|Allow)`},
	{"Gemini CLI", `(?s)●\s*\d\. .+Enter to select · [^\n]*Esc to`},
	{"Gemini CLI", `(?s)(Do you trust|authenticate for this).+●\s*\d\. \S`},
	{"Gemini CLI", `\(Press Enter to submit`},
	{"opencode", `(?s)Permission required.+Allow once +Allow always +Reject|△ .+⇆ select +enter confirm|enter (submit|toggle|confirm) +esc dismiss`},
	{"Aider", `\(Y\)es/\(N\)o[^\n]{0,80}\[\w+\]:\z`},
	{"menu", `(?m)^◆ +\S|^\? [^\n]+ ›|^\? [^\n]+\n *❯ \S|│ +<(Yes|Ok|OK)>`},
	{"yes or no", `(?i)[\[(](y/n|yes/no)(/[^\])\n]{1,40})?[\])][^\w\n]{0,4}\z`},
	{"password", `(?i)(password|passphrase|passcode)[^\n]{0,120}:\z`},
	{"key", `(?i)press (enter|return|any key)( to [^\n]{1,60})?[.:…]*\z`},
}

type question struct{ name, pattern string }

// questions compiles patterns that are known to be valid. It panics on an error.
func questions(list []question) Questions {
	var names, patterns []string
	for _, q := range list {
		names, patterns = append(names, q.name), append(patterns, q.pattern)
	}
	set := pattern.Compile(patterns)
	if err := set.Err("defaults"); err != nil {
		panic(err)
	}
	return Questions{names: names, patterns: set}
}

// Defaults returns the questions of common coding agents, of shells and of programs that ask for passwords.
func Defaults() Questions { return defaults() }

// Of returns the questions that the patterns of a spec recognize.
func Of(patterns *pattern.Set) Questions { return Questions{patterns: patterns} }

// Asks returns the name of the question that a terminal shows; empty if there is none. If the spec has patterns, only they decide.
//
// Otherwise Asks returns an empty string if no program reads the terminal, or if the program that reads it is a shell at its prompt or a viewer. In all other
// cases Asks first evaluates what the operating system reports about the reader. If that implies no question, Asks matches the default patterns. They
// recognize questions that a program draws, and questions on a terminal whose reader is not known.
func Asks(view View, input facts.Input, questions Questions) string {
	if questions.names == nil {
		return questions.match(view.Text)
	}
	if input.Reader == facts.ReaderNone || idles(input, view) {
		return ""
	}
	if name := asks(input, view); name != "" {
		return name
	}
	return questions.match(view.Text)
}

// match returns the name of the first question that the end of a text matches.
func (q Questions) match(text string) string {
	lines := strings.Split(tidy(text), "\n")
	end := strings.Join(lines[max(0, len(lines)-lastLines):], "\n")
	switch at := q.patterns.MatchEnd(end); {
	case at < 0:
		return ""
	case q.names == nil:
		return fmt.Sprintf("patterns[%d]", at)
	default:
		return q.names[at]
	}
}
