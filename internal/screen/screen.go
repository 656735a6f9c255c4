// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package screen tells from the output of a program what its terminal shows, and whether that is a question.
package screen

import (
	"strings"
	"unicode/utf8"
)

// Screen is what a terminal shows: text without colours. It understands what programs use to draw, and skips the rest. Not for concurrent use.
type Screen struct {
	columns, rows int
	lines, other  []*line // other is the screen beside the one that is shown: the main or the alternate one
	spare         []*line // room to scroll by many lines
	alternate     bool
	hidden        bool // the cursor is hidden
	x, y          int
	savedX        int
	savedY        int
	top, bottom   int    // the region that scrolls, both inside
	wrap          bool   // the last column was written: the next character begins a line
	rest          []byte // the beginning of what is not complete yet
	last          rune   // the character that was written last
	lastWidth     int    // how many cells it takes
}

// line is the cells of a line that something was written to; the others are blank. An operation on lines that were never written to costs nothing for
// each cell, so that a short sequence does not cause much work on a large screen.
type line struct{ cells []rune }

// blank marks a cell that nothing was written to; wide one that belongs to the character before it.
const (
	blank = ' '
	wide  = 0
)

// The size of a terminal that nothing is known of, and the largest that is kept. mostCells bounds memory to 2 MiB, for both screens together.
const (
	usualColumns, usualRows = 120, 40
	mostColumns, mostRows   = 1000, 1000
	mostCells               = 256 << 10
)

// New returns an empty screen. A size that is not positive means the default, 120 columns and 40 rows. A screen of more than mostCells has fewer rows.
func New(columns, rows int) *Screen {
	if columns <= 0 {
		columns = usualColumns
	}
	if rows <= 0 {
		rows = usualRows
	}
	s := &Screen{columns: min(columns, mostColumns)}
	s.rows = min(rows, mostRows, mostCells/s.columns)
	s.lines, s.other, s.spare = blankLines(s.rows), blankLines(s.rows), make([]*line, s.rows)
	s.reset()
	return s
}

func blankLines(n int) []*line {
	lines, all := make([]*line, n), make([]line, n)
	for i := range lines {
		lines[i] = &all[i]
	}
	return lines
}

func (s *Screen) reset() {
	empty(s.lines)
	empty(s.other)
	s.alternate, s.hidden, s.wrap = false, false, false
	s.x, s.y, s.savedX, s.savedY, s.top, s.bottom = 0, 0, 0, 0, 0, s.rows-1
}

// empty makes lines blank and keeps their memory.
func empty(lines []*line) {
	for _, l := range lines {
		l.cells = l.cells[:0]
	}
}

// clean makes the cells in [from, to) blank.
func (l *line) clean(from, to int) {
	if from >= len(l.cells) {
		return
	}
	if to >= len(l.cells) {
		l.cells = l.cells[:from]
		return
	}
	for i := range l.cells[from:to] {
		l.cells[from+i] = blank
	}
}

// reach makes a line have at least n cells.
func (l *line) reach(n int) {
	for len(l.cells) < n {
		l.cells = append(l.cells, blank)
	}
}

// Text gives what is shown: lines without spaces at their ends, and without empty lines at the end.
func (s *Screen) Text() string {
	var text strings.Builder
	for _, l := range s.lines {
		for _, r := range l.cells {
			if r != wide {
				text.WriteRune(r)
			}
		}
		text.WriteByte('\n')
	}
	return Tidy(text.String())
}

// View returns the text on the screen and the position of the cursor.
func (s *Screen) View() View {
	x := s.x
	if s.wrap {
		x = s.columns
	}
	return NewView(s.Text(), x, s.y, s.hidden, s.alternate)
}

// Tidy takes spaces off the ends of lines, and empty lines off the end of a text.
func Tidy(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t\r\u00a0")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// Write implements io.Writer with the output of a program. It never fails.
func (s *Screen) Write(p []byte) (int, error) {
	data := p
	if len(s.rest) > 0 {
		data = append(s.rest, p...)
		s.rest = nil
	}
	for len(data) > 0 {
		n := s.take(data)
		if n == 0 {
			if len(data) < longestSequence {
				s.rest = append([]byte(nil), data...)
				break
			}
			n = 1 // it is no sequence
		}
		data = data[n:]
	}
	return len(p), nil
}

// longestSequence is how much may belong to one escape sequence, in bytes; some hold a picture.
const longestSequence = 64 << 10

const escape = 0x1b

// take carries out what the data begins with and says how long it was; 0 when its end has not come yet.
func (s *Screen) take(data []byte) int {
	switch b := data[0]; {
	case b == escape:
		return s.sequence(data)
	case b < ' ' || b == 0x7f:
		s.control(b)
		return 1
	case b < utf8.RuneSelf:
		s.put(rune(b))
		return 1
	}
	if !utf8.FullRune(data) {
		return 0
	}
	r, n := utf8.DecodeRune(data)
	s.put(r)
	return n
}

func (s *Screen) control(b byte) {
	switch b {
	case '\r':
		s.x, s.wrap = 0, false
	case '\n', '\v', '\f':
		s.feed()
	case '\b':
		s.x, s.wrap = max(s.x-1, 0), false
	case '\t':
		s.x = min((s.x/8+1)*8, s.columns-1)
	}
}

// feed goes one line down, and scrolls at the end of the region.
func (s *Screen) feed() {
	s.wrap = false
	switch {
	case s.y == s.bottom:
		s.scroll(s.top, 1)
	case s.y < s.rows-1:
		s.y++
	}
}

// scroll moves the lines from first to the end of the region up, or down for a negative number.
func (s *Screen) scroll(first, by int) {
	height := s.bottom - first + 1
	if height <= 0 {
		return
	}
	region, n := s.lines[first:s.bottom+1], min(max(by, -by), height)
	if by > 0 {
		copy(s.spare, region[:n])
		copy(region, region[n:])
		region = region[height-n:]
	} else {
		copy(s.spare, region[height-n:])
		copy(region[n:], region)
	}
	copy(region, s.spare[:n])
	empty(region[:n])
}

func (s *Screen) put(r rune) { s.putWide(r, width(r)) }

func (s *Screen) putWide(r rune, cells int) {
	if cells == 0 {
		return
	}
	if s.wrap || s.x+cells > s.columns {
		s.x = 0
		s.feed()
	}
	l := s.lines[s.y]
	l.reach(min(s.x+cells, s.columns))
	line := l.cells
	if line[s.x] == wide && s.x > 0 {
		line[s.x-1] = blank // half of a character is none
	}
	if next := s.x + cells; next < len(line) && line[next] == wide {
		line[next] = blank
	}
	line[s.x] = r
	if cells == 2 && s.x+1 < len(line) {
		line[s.x+1] = wide
	}
	s.last, s.lastWidth = r, cells
	s.x += cells
	if s.x >= s.columns {
		s.x, s.wrap = s.columns-1, true
	}
}
