// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"hash/maphash"
	"maps"
	"strings"
	"unicode"

	"github.com/berth-dev/berth/internal/facts"
)

// Motion remembers which lines of a terminal move, and which text the terminal has shown. With that, a question is recognized although a spinner or a clock
// beside it is never still, and new text is distinguished from a repaint. The zero value is ready for use. A Motion keeps hashes, not text.
type Motion struct {
	looked bool
	lines  lineSet // of the last look
	moving lineSet // the lines that had changed at the last look
	shown  lineSet // all text since the beginning, or since there was too much of it
}

// Look is one look at a terminal.
type Look struct {
	View  View
	Input facts.Input
	// Still reports that the terminal has not changed for so long that its whole content counts.
	Still bool
	// Waits reports that a question stood at the last look.
	Waits bool
}

// lineSet contains hashes of lines.
type lineSet map[uint64]struct{}

// mostShown is the maximum number of hashes of text that a Motion keeps.
const mostShown = 1024

var hashSeed = maphash.MakeSeed()

func (s lineSet) has(text string) bool {
	_, found := s[maphash.String(hashSeed, text)]
	return found
}

func (s lineSet) add(text string) { s[maphash.String(hashSeed, text)] = struct{}{} }

// wording returns what identifies a line: its letters and digits, because the mark of a spinner is none. A line without them is identified by its characters.
func wording(line string) string {
	if words := letters(line); words != "" {
		return words
	}
	return strings.TrimSpace(line)
}

// Asks returns the name of the question that a terminal shows; empty if there is none. While the terminal moves, only lines that were there at the last look
// count, and a question that has just appeared is returned at the next look. Looks should be about a second apart.
func (m *Motion) Asks(look Look, questions Questions) string {
	known := m.looked
	m.note(look)
	if look.Still || look.Waits {
		if name := Asks(look.View, look.Input, questions); name != "" {
			return name
		}
	}
	if !known || look.Still && !look.Waits {
		return ""
	}
	return Asks(m.steady(look.View), look.Input, questions)
}

// note remembers the lines of a look. While a question stands, a line that moves seldom, such as a clock without seconds, remains a moving line.
func (m *Motion) note(look Look) {
	now, moving := lineSet{}, lineSet{}
	for line := range strings.SplitSeq(look.View.Text, "\n") {
		words := wording(line)
		now.add(words)
		if words != "" && !m.lines.has(words) {
			moving.add(words)
		}
	}
	if len(moving) > 0 || !look.Waits {
		m.moving = moving
	}
	m.lines, m.looked = now, true
}

// steady returns a view without its moving lines. Below the cursor they are empty, such as a status line below a prompt. Further up, they keep their place, so
// a question above what the program prints is not the end of the text.
func (m *Motion) steady(view View) View {
	const moved = "…"
	lines := strings.Split(view.Text, "\n")
	for i, line := range lines {
		switch {
		case !m.moving.has(wording(line)):
		case i > view.y && !view.Hidden:
			lines[i] = ""
		default:
			lines[i] = moved
		}
	}
	steady := NewView(strings.Join(lines, "\n"), view.x, view.y, view.Hidden, view.FullScreen)
	if steady.Prompt == moved {
		steady.Prompt = ""
	}
	return steady
}

// interrupts matches how agents name the key that interrupts their work. They show it only while they work.
var interrupts = lazily(`(?i)\b(esc|escape|ctrl[+-]c)( to)? (interrupt|cancel|stop)\b`)

// Adds reports whether a look shows activity. Text that the terminal has not shown before is activity. A repaint is activity only if the program may be working:
// if it does not read the terminal, if that is not known, or if it offers to interrupt its work. While a question stands, and at the prompt of a shell, digits
// are no text: they are those of a clock. Otherwise they are, because they may be all that changes while a program works.
func (m *Motion) Adds(look Look) bool {
	rests := look.Waits || idles(look.Input, look.View)
	reads := look.Input.Reader == facts.ReaderRead || look.Input.Reader == facts.ReaderPoll
	adds := !rests && (!reads || interrupts().MatchString(look.View.Text))
	all := lineSet{}
	for line := range strings.SplitSeq(look.View.Text, "\n") {
		words := letters(line)
		if words == "" {
			continue
		}
		plain := "\x00" + strings.Map(withoutDigits, words)
		adds = adds || !m.shown.has(words) && (!rests || !m.shown.has(plain))
		all.add(words)
		all.add(plain)
	}
	if m.shown == nil || len(m.shown)+len(all) > mostShown {
		m.shown = all
		return adds
	}
	maps.Copy(m.shown, all)
	return adds
}

func withoutDigits(r rune) rune {
	if unicode.IsDigit(r) {
		return -1
	}
	return r
}
