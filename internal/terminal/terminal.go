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
	cursor
	saved       cursor
	top, bottom int    // the first and the last line of the scroll region
	wrap        bool   // the last column was written: the next character goes to the next line
	inserts     bool   // a character moves the rest of the line to the right
	cuts        bool   // there is no wrapping: what does not fit replaces the last column
	tabs        []bool // the columns of the tab stops
	rest        []byte // the beginning of an incomplete sequence or character
	last        rune   // the last written character
	lastWidth   int    // its width in cells
	clusters    clusters
}

// cursor is what a program saves and restores with the position of its cursor.
type cursor struct {
	x, y    int
	origin  bool    // positions count from the scroll region
	sets    [2]byte // the character sets G0 and G1
	shifted int     // which of them is in use
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
	s.tabs = make([]bool, s.columns)
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
	s.alternate = false
	s.cursor, s.clusters = cursor{}, clusters{}
	for column := range s.tabs {
		s.tabs[column] = column%tabWidth == 0
	}
	s.soften()
}

// soften resets the modes, but neither the content nor the position.
func (s *Screen) soften() {
	s.hidden, s.wrap, s.inserts, s.cuts = false, false, false, false
	s.top, s.bottom, s.saved = 0, s.rows-1, cursor{}
	s.origin, s.sets, s.shifted = false, [2]byte{}, 0
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

// Text returns the text on the screen, without trailing spaces, empty lines at the end and format characters.
func (s *Screen) Text() string { return visible(s.text()) }

func (s *Screen) text() string {
	var text strings.Builder
	for _, l := range s.lines {
		for _, r := range l.cells {
			s.clusters.write(&text, r)
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
	return NewView(s.text(), x, s.y, s.hidden, s.alternate)
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

// Control characters: escape begins a sequence, cancel and substitute end one, shiftOut and shiftIn select a character set.
const (
	shiftOut   = 0x0e
	shiftIn    = 0x0f
	cancel     = 0x18
	substitute = 0x1a
	escape     = 0x1b
)

// take interprets the character or sequence at the beginning of data and returns its length in bytes; 0 if it is incomplete.
func (s *Screen) take(data []byte) int {
	switch b := data[0]; {
	case b == escape:
		return s.sequence(data)
	case b < ' ' || b == 0x7f:
		s.control(b)
		return 1
	case b < utf8.RuneSelf:
		s.put(s.mapped(b))
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
		s.tab(1)
	case shiftOut, shiftIn:
		s.shifted = int(shiftIn - b)
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

func (s *Screen) put(r rune) {
	if r < utf8.RuneSelf {
		s.putWide(r, 1)
	} else if cells := widthAfter(s.clusters.end(s.before()), r); cells > 0 {
		s.putWide(r, cells)
	} else {
		s.join(r)
	}
}

func (s *Screen) putWide(r rune, cells int) {
	if cells == 0 {
		return
	}
	if s.wrap || s.x+cells > s.columns {
		if s.x = 0; s.cuts {
			s.x = max(s.columns-cells, 0)
		} else {
			s.feed()
		}
	}
	if s.inserts {
		s.lines[s.y].insert(s.x, cells, s.columns)
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
