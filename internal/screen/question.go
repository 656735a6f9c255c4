// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"regexp"
	"strings"
)

// lastLines is how much of a screen is looked at for a question: what is further up was answered.
const lastLines = 20

// Question is a pattern that a screen that waits for an answer matches. Name says for people what it recognizes.
type Question struct {
	Name    string
	pattern *regexp.Regexp
}

// defaults are tested with recorded screens, in testdata. A question of one line counts only where the cursor is, at the end: what follows it
// would be its answer. One in a box is drawn over when it was answered.
var defaults = []Question{
	{"Claude Code", regexp.MustCompile(`(?s)(Do you (want|trust)|Would you like|Is this a project you).{1,900}❯\s*\d\. \S`)},
	{"Codex", regexp.MustCompile(`(?s)(Would you like to|Do you want to|Allow command).{1,900}(›|▌|❯)\s*(\d\. )?(Yes|No)\b`)},
	{"Codex", regexp.MustCompile(`(?i)press enter to confirm or esc to (cancel|go back)\S*\s*\z`)},
	{"Gemini CLI", regexp.MustCompile(`Waiting for user confirmation`)},
	{"Gemini CLI", regexp.MustCompile(`(?s)(Allow execution|Apply this change).{1,900}●\s*(\d\. )?(Yes|No|Modify)`)},
	{"Aider", regexp.MustCompile(`\(Y\)es/\(N\)o[^\n]{0,80}\[\w+\]:\z`)},
	{"yes or no", regexp.MustCompile(`(?i)[\[(](y/n|yes/no)(/[^\])\n]{1,40})?[\])][^\w\n]{0,4}\z`)},
	{"password", regexp.MustCompile(`(?i)(password|passphrase|passcode)[^\n]{0,120}:\z`)},
	{"key", regexp.MustCompile(`(?i)press (enter|return|any key)( to [^\n]{1,60})?[.:…]*\z`)},
}

// Defaults are the questions of the common coding agents, of shells and of those who ask for passwords.
func Defaults() []Question { return defaults }

// Compile makes questions of regular expressions, by the names of which they are known. All that can be used are given, and the error names the
// others.
func Compile(patterns []string) ([]Question, error) {
	var questions []Question
	var bad []string
	for i, text := range patterns {
		pattern, err := regexp.Compile(text)
		if err != nil {
			bad = append(bad, fmt.Sprintf("patterns[%d]: %v", i, err))
			continue
		}
		questions = append(questions, Question{Name: fmt.Sprintf("patterns[%d]", i), pattern: pattern})
	}
	if len(bad) > 0 {
		return questions, fmt.Errorf("no regular expression: %s", strings.Join(bad, "; "))
	}
	return questions, nil
}

// Asks gives the name of the first question that the text, which a terminal shows, ends with; empty when there is none.
func Asks(text string, questions []Question) string {
	lines := strings.Split(Tidy(text), "\n")
	end := strings.Join(lines[max(0, len(lines)-lastLines):], "\n")
	for _, question := range questions {
		if question.pattern.MatchString(end) {
			return question.Name
		}
	}
	return ""
}
