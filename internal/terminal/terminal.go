// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal interprets the output of a program as the content of a terminal, and recognizes questions on it.
package terminal

import (
	"strings"
	"unicode/utf8"
)

// Screen is the content of a terminal: text without colors. It interprets the sequences that programs use to draw, and skips all others. It is not safe for
// concurrent use.
type Screen struct {
	columns, rows int
	lines, other  []*line // other is the screen that is not shown: the main or the alternate one
	spare         []*line // buffer for scrolling by several lines
	alternate     bool
	hidden        bool // the cursor is hidden
	x, y          int
	savedX        int
	savedY        int
	top, bottom   int    // the first and the last line of the scroll region
	wrap          bool   // the last column was written: the next character goes to the next line
	rest          []byte // the beginning of an incomplete sequence or character
	last          rune   // the last written character
	lastWidth     int    // its width in cells
}

// line contains the cells of a line up to the last written one; the cells after it are blank and are not stored. Operations on unwritten cells therefore take
// no time, and a short sequence does not cause much work on a large screen.
type line struct{ cells []rune }

// blank marks an empty cell. wide marks a cell that belongs to the character in the cell before it.
const (
	blank = ' '
	wide  = 0
)

// usualColumns and usualRows are the default size of a terminal, mostColumns and mostRows the maximum size. mostCells is the maximum number of cells of a
// screen. It limits the memory to 2 MiB for both screens together.
const (
	usualColumns, usualRows = 120, 40
	mostColumns, mostRows   = 1000, 1000
	mostCells               = 256 << 10
)

// New returns an empty screen. A size that is not positive selects the default of 120 columns or 40 rows. Dimensions are limited to 1000 each, and the number
// of rows is reduced so that the screen has at most mostCells cells.
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

// empty clears lines and keeps their memory.
func empty(lines []*line) {
	for _, l := range lines {
		l.cells = l.cells[:0]
	}
}

// clean clears the cells in [from, to).
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

// reach extends a line to at least n cells.
func (l *line) reach(n int) {
	for len(l.cells) < n {
		l.cells = append(l.cells, blank)
	}
}

// Text returns the text on the screen, without trailing spaces and without empty lines at the end.
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
	return tidy(text.String())
}

// View returns the text on the screen and the position of the cursor.
func (s *Screen) View() View {
	x := s.x
	if s.wrap {
		x = s.columns
	}
	return NewView(s.Text(), x, s.y, s.hidden, s.alternate)
}

// tidy removes trailing spaces from lines, and empty lines from the end of a text.
func tidy(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t\r\u00a0")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// Write implements io.Writer for the output of a program. It never returns an error.
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
			n = 1 // the data is not a valid sequence
		}
		data = data[n:]
	}
	return len(p), nil
}

// longestSequence is the maximum length of an escape sequence, in bytes; some contain an image.
const longestSequence = 64 << 10

const escape = 0x1b

// take interprets the character or sequence at the beginning of data and returns its length in bytes; 0 if it is incomplete.
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

// feed moves the cursor one line down, and scrolls at the end of the region.
func (s *Screen) feed() {
	s.wrap = false
	switch {
	case s.y == s.bottom:
		s.scroll(s.top, 1)
	case s.y < s.rows-1:
		s.y++
	}
}

// scroll moves the lines of the scroll region, beginning with the line first. It moves them up by the given number of lines, or down if the number is negative.
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
		line[s.x-1] = blank // the other half of a wide character is overwritten
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
