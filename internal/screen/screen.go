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
	cells, other  [][]rune // other is the screen beside the one that is shown: the main or the alternate one
	alternate     bool
	x, y          int
	savedX        int
	savedY        int
	top, bottom   int    // the region that scrolls, both inside
	wrap          bool   // the last column was written: the next character begins a line
	rest          []byte // the beginning of what is not complete yet
	last          rune   // the character that was written last
}

// blank marks a cell that nothing was written to; wide one that belongs to the character before it.
const (
	blank = ' '
	wide  = 0
)

// The size of a terminal that nothing is known of, and the largest that is kept.
const (
	usualColumns, usualRows = 120, 40
	mostColumns, mostRows   = 1000, 1000
)

// New gives an empty screen. A size that is not positive is the usual one, 120 times 40.
func New(columns, rows int) *Screen {
	if columns <= 0 {
		columns = usualColumns
	}
	if rows <= 0 {
		rows = usualRows
	}
	s := &Screen{columns: min(columns, mostColumns), rows: min(rows, mostRows)}
	s.reset()
	return s
}

func (s *Screen) reset() {
	s.cells, s.other = s.empty(), s.empty()
	s.alternate, s.wrap = false, false
	s.x, s.y, s.savedX, s.savedY, s.top, s.bottom = 0, 0, 0, 0, 0, s.rows-1
}

func (s *Screen) empty() [][]rune {
	cells := make([][]rune, s.rows)
	for i := range cells {
		cells[i] = s.line()
	}
	return cells
}

func (s *Screen) line() []rune {
	line := make([]rune, s.columns)
	for i := range line {
		line[i] = blank
	}
	return line
}

// Text gives what is shown: lines without spaces at their ends, and without empty lines at the end.
func (s *Screen) Text() string {
	lines := make([]string, 0, s.rows)
	for _, cells := range s.cells {
		var line strings.Builder
		for _, r := range cells {
			if r != wide {
				line.WriteRune(r)
			}
		}
		lines = append(lines, line.String())
	}
	return Tidy(strings.Join(lines, "\n"))
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
	region := s.cells[first : s.bottom+1]
	for range min(max(by, -by), height) {
		if by > 0 {
			copy(region, region[1:])
			region[height-1] = s.line()
		} else {
			copy(region[1:], region)
			region[0] = s.line()
		}
	}
}

func (s *Screen) put(r rune) {
	cells := width(r)
	if cells == 0 {
		return
	}
	if s.wrap || s.x+cells > s.columns {
		s.x = 0
		s.feed()
	}
	line := s.cells[s.y]
	if line[s.x] == wide && s.x > 0 {
		line[s.x-1] = blank // half of a character is none
	}
	if next := s.x + cells; next < s.columns && line[next] == wide {
		line[next] = blank
	}
	line[s.x] = r
	if cells == 2 && s.x+1 < s.columns {
		line[s.x+1] = wide
	}
	s.last = r
	s.x += cells
	if s.x >= s.columns {
		s.x, s.wrap = s.columns-1, true
	}
}
