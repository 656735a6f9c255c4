// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/berth-dev/berth/internal/facts"
)

// Moment is what a terminal shows, and how its programs read it, at one time.
type Moment struct {
	View  View
	Input facts.Input
	// Known reports that Input comes from the operating system. The zero value of Input is also that of a program in raw mode that computes.
	Known bool
	// Silent reports that the terminal has shown nothing since the last input. It is false if that is not known.
	Silent bool
}

// Reads reports whether a program reads the terminal, or whether that is not known. A program that starts, or that computes, does not read.
func (m Moment) Reads() bool {
	return !m.Known || m.Input.Reader == facts.ReaderRead || m.Input.Reader == facts.ReaderPoll
}

// Ready reports whether a text can be typed. A program in raw mode is ready after it has shown something: it draws its screen before it handles keys. If such a
// program cannot be inspected, its screen is all that is known.
func (m Moment) Ready() bool {
	switch {
	case !m.Known || m.Asks() != "":
		return true
	case m.Input.Canonical:
		return m.Reads()
	}
	return m.View.Text != "" && m.Input.Reader != facts.ReaderNone
}

// Asks returns the name of the question that the terminal shows according to the default patterns; empty if it shows none.
func (m Moment) Asks() string { return Asks(m.View, m.Input, defaults()) }

// Verdict is whether Enter may follow what was typed.
type Verdict string

const (
	// Proceed means that Enter goes to the question or the prompt at which the text was typed.
	Proceed Verdict = "Proceed"
	// Answered means that the text itself has answered the question: the question is gone.
	Answered Verdict = "Answered"
	// AnotherQuestion means that Enter would answer a question other than the one at which the text was typed.
	AnotherQuestion Verdict = "AnotherQuestion"
	// NotTaken means that the program does not show that it has read the text.
	NotTaken Verdict = "NotTaken"
	// Unread means that everything was typed, but no program reads the terminal yet. The terminal keeps the line.
	Unread Verdict = "Unread"
)

// MayEnter decides whether Enter may follow a text, from what the terminal showed before the text and shows after it. Enter confirms a question, so it is
// permitted only if the text is visible at the prompt, if the line discipline still holds the text for the same read, or if a menu shows the text as its choice.
//
// A menu that reacts to single keys may show the same question twice in succession, which looks like a menu that has not reacted. Therefore a menu that has
// drawn its question again without a change counts as another question.
func MayEnter(before, after Moment, text string) Verdict {
	asked, asks := menuOf(before, ""), menuOf(after, text)
	switch {
	case asks != nil && asked != nil && asks.repeats(*asked, text):
		return sameMenu(*asked, *asks, before, after, text)
	case asks != nil:
		return AnotherQuestion
	case asked != nil:
		return Answered
	case before.Input.Canonical && after.Input.Canonical: // the terminal holds the text until Enter
		if before.Asks() == "" && asksAtCursor(after, text) {
			return AnotherQuestion
		}
		return Proceed
	case before.Asks() != "":
		return samePrompt(before, after, text)
	case asksAtCursor(after, text):
		return AnotherQuestion
	case idles(before.Input, before.View) && idles(after.Input, after.View), showsMore(before.View, after.View, text):
		return Proceed
	}
	return NotTaken
}

// MayPress decides whether Enter may follow other keys, such as arrow keys in a menu: not if a menu has appeared or was replaced meanwhile.
func MayPress(before, after Moment) Verdict {
	asked, asks := menuOf(before, ""), menuOf(after, "")
	switch {
	case asks != nil && (asked == nil || asked.question != asks.question):
		return AnotherQuestion
	case asks == nil && asked != nil:
		return Answered
	}
	return Proceed
}

// sameMenu decides about a menu that was there before the text.
func sameMenu(asked, asks menu, before, after Moment, text string) Verdict {
	chosen := asks.chooses(text)
	switch {
	case !after.Reads():
		return NotTaken
	case chosen && asked.choice != asks.choice, showsMore(before.View, after.View, text):
		return Proceed
	case chosen && after.Silent && after.Known:
		return Proceed // the program has read the text, and has nothing to draw
	case after.Silent:
		return NotTaken
	}
	return AnotherQuestion
}

// samePrompt decides about a question of one line that was there before the text.
func samePrompt(before, after Moment, text string) Verdict {
	prompt, now := before.View.Prompt, after.View.Prompt
	switch rest, extended := strings.CutPrefix(now, prompt); {
	case strings.HasSuffix(letters(after.View.Text), letters(prompt+text)) && letters(text) != "",
		extended && strings.TrimSpace(rest) == strings.TrimSpace(text), extended && masked(rest):
		return Proceed
	case before.Asks() == "password" && before.View.Text == after.View.Text:
		return Proceed // echo is off
	case asksAtCursor(after, text):
		return AnotherQuestion
	case showsMore(before.View, after.View, text):
		return Proceed
	case before.View.Text == after.View.Text:
		return NotTaken
	}
	return Answered
}

// masked reports whether text consists of one repeated character, as a hidden answer does.
func masked(text string) bool {
	text = strings.TrimSpace(text)
	return text != "" && strings.Trim(text, text[:len(text)-len(strings.TrimLeft(text, string([]rune(text)[0])))]) == "" && letters(text) == ""
}

// asksAtCursor reports whether the terminal shows a question of one line, unless what looks like its end is the typed text.
func asksAtCursor(m Moment, text string) bool {
	return m.Asks() != "" && !strings.HasSuffix(m.View.Prompt, strings.TrimSpace(text))
}

// Question returns the text of the question that a terminal shows, for users; empty if it shows none.
func (m Moment) Question() string {
	if found := menuOf(m, ""); found != nil {
		return found.text
	}
	if m.Asks() == "" {
		return ""
	}
	lines := strings.Split(m.View.Text, "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "\n")
}

// menu is a question with choices, one of which is marked.
type menu struct {
	text     string // for users
	question string // identifies the question: its letters, without marks
	choice   string // the marked choice
}

var (
	// marked matches the marked choice of a menu, in a box or not.
	marked = lazily(`^[\s│┃|▌]*[❯›▸▶●◉◆→>]\s*(?:(\d{1,2})[.)]\s+)?(\S.*)$`)
	// numbered matches a numbered choice.
	numbered = lazily(`^[\s│┃|▌❯›▸▶●◉○◯◆→>]*(\d{1,2})[.)]\s+\S`)
)

// nearChoice is the maximum distance of two successive choices in lines, because descriptions may follow a choice.
const nearChoice = 4

// menuOf returns the menu that a terminal shows; nil if it shows none. A menu is what a default pattern for questions with choices matches, or numbered
// choices one of which is marked. What the user has just typed is no menu.
func menuOf(m Moment, typed string) *menu {
	if idles(m.Input, m.View) || m.Input.Canonical && m.Input.Reader == facts.ReaderRead {
		return nil
	}
	lines := strings.Split(m.View.Text, "\n")
	lines = lines[max(0, len(lines)-2*lastLines):]
	at, choice := markedChoice(lines, typed)
	if name := defaults().match(m.View.Text); at < 0 && (name == "" || slices.Contains(lineQuestions, name)) {
		return nil
	}
	first := len(lines)
	for i := at; i >= 0 && at-i <= lastLines; i-- { // a move of the mark must not move the beginning of the question
		if numbered().MatchString(lines[i]) {
			first, at = i, i
		}
	}
	text := strings.TrimSpace(strings.Join(lines[max(0, first-lastLines):], "\n"))
	return &menu{text: text, question: letters(text), choice: choice}
}

// markedChoice returns the last numbered choice that is marked, and its line; -1 if there is none.
func markedChoice(lines []string, typed string) (at int, choice string) {
	for i, line := range slices.Backward(lines) {
		parts := marked().FindStringSubmatch(line)
		if parts == nil || typed != "" && strings.Contains(letters(typed), letters(line)) {
			continue
		}
		if number, err := strconv.Atoi(parts[1]); err == nil && hasNeighbor(lines, i, number) {
			return i, strings.TrimRight(parts[1]+". "+parts[2], " │┃|")
		}
	}
	return -1, ""
}

// repeats reports whether a menu asks the question of an earlier one, apart from a text that was typed into it.
func (m menu) repeats(earlier menu, typed string) bool {
	return m.question == earlier.question || len(letters(typed)) >= shortText && strings.Replace(m.question, letters(typed), "", 1) == earlier.question
}

// lineQuestions are the names of the default patterns that match questions of one line.
var lineQuestions = []string{"yes or no", "password", "key", "Aider"}

// hasNeighbor reports whether the choice before or after a numbered choice is near.
func hasNeighbor(lines []string, at, number int) bool {
	for i := max(0, at-nearChoice); i < min(len(lines), at+nearChoice+1); i++ {
		parts := numbered().FindStringSubmatch(lines[i])
		if parts == nil || i == at {
			continue
		}
		if other, _ := strconv.Atoi(parts[1]); i < at && other == number-1 || i > at && other == number+1 {
			return true
		}
	}
	return false
}

// chooses reports whether the marked choice is the one that a text names, by its number or its words.
func (m menu) chooses(text string) bool {
	text = strings.ToLower(strings.TrimSpace(text))
	number, words, _ := strings.Cut(strings.ToLower(m.choice), ". ")
	return text != "" && (text == number || strings.HasPrefix(words, text))
}

// shortText is the number of letters below which a text is searched only at the end of a line.
const shortText = 4

// showsMore reports whether a terminal shows a text more often than before, or a placeholder for a long one.
func showsMore(before, after View, text string) bool {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	start := letters(first)
	if runes := []rune(start); len(runes) > 24 {
		start = string(runes[:24])
	}
	if len(start) >= shortText && strings.Count(letters(after.Text), start) > strings.Count(letters(before.Text), start) {
		return true
	}
	const placeholder = "[pasted"
	if strings.Count(strings.ToLower(after.Text), placeholder) > strings.Count(strings.ToLower(before.Text), placeholder) {
		return true
	}
	return lineShows(before, after, strings.TrimSpace(first))
}

// lineShows reports whether there is a new line that consists of the beginning of an earlier line and a text, as in an input box.
func lineShows(before, after View, text string) bool {
	if text == "" {
		return false
	}
	earlier := strings.Split(before.Text, "\n")
	count := func(lines []string, line string) (n int) {
		for _, other := range lines {
			if other == line {
				n++
			}
		}
		return n
	}
	now := strings.Split(after.Text, "\n")
	for _, line := range now {
		at := strings.LastIndex(line, text)
		if at < 0 || count(now, line) <= count(earlier, line) {
			continue
		}
		start, rest := strings.TrimRight(line[:at], " "), line[at+len(text):]
		empty := slices.ContainsFunc(earlier, func(old string) bool { return strings.TrimRight(old, " │┃|") == start })
		begun := slices.ContainsFunc(earlier, func(old string) bool { return strings.HasPrefix(old, start) })
		if empty || begun && letters(rest) == "" {
			return true
		}
	}
	return false
}

// letters returns the letters and digits of a text: neither borders nor marks nor line breaks.
func letters(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return -1
	}, text)
}
