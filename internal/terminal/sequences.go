// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// sequence interprets a sequence that begins with ESC and returns its length in bytes; 0 if it is incomplete.
func (s *Screen) sequence(data []byte) int {
	at := 1
	for at < len(data) && data[at] >= 0x20 && data[at] <= 0x2f {
		at++
	}
	switch {
	case at == len(data):
		return 0
	case data[at] < 0x20 || data[at] > 0x7e: // interrupted by another character
		return at
	case at == 2 && (data[1] == '(' || data[1] == ')'): // a character set
		s.sets[data[1]-'('] = data[2]
	case at >= 2:
	case data[1] == '[':
		return s.csi(data)
	case strings.IndexByte("]PX^_k", data[1]) >= 0: // a string for the terminal, which is not displayed; k is the title in screen
		return text(data)
	default:
		s.simple(data[1])
	}
	return at + 1
}

// simple executes a sequence of one character.
func (s *Screen) simple(final byte) {
	switch final {
	case '7':
		s.save()
	case '8':
		s.restore()
	case 'D':
		s.feed()
	case 'E':
		s.x = 0
		s.feed()
	case 'H':
		s.tabs[s.x] = true
	case 'M':
		if s.y == s.top {
			s.scroll(s.top, -1)
		} else {
			s.y = max(s.y-1, 0)
		}
	case 'c':
		s.reset()
	}
}

// Cursor returns the position of the cursor, counted from 0.
func (s *Screen) Cursor() (column, row int) { return s.x, s.y }

func (s *Screen) save()    { s.saved = s.cursor }
func (s *Screen) restore() { s.cursor, s.wrap = s.saved, false }

// text returns the length in bytes of a sequence that contains a string and ends with BEL or ESC \, or is canceled; 0 if it is incomplete.
func text(data []byte) int {
	end := bytes.IndexAny(data[2:], "\a\x1b\x18\x1a")
	switch {
	case end < 0:
		return 0
	case data[2+end] != escape:
		return 2 + end + 1
	case 2+end+1 >= len(data):
		return 0
	case data[2+end+1] == '\\':
		return 2 + end + 2
	}
	return 2 + end // interrupted by another sequence
}

// csi interprets a control sequence with numeric parameters. Control characters within it are executed first.
func (s *Screen) csi(data []byte) int {
	at := 2
	for at < len(data) && within(data[at]) {
		at++
	}
	if at == len(data) {
		return 0
	}
	final := data[at]
	if final < 0x40 || final > 0x7e {
		return at // interrupted by another sequence, or canceled
	}
	inner := s.controls(data[2:at])
	if mode, private := strings.CutPrefix(inner, "?"); private {
		if final == 'h' || final == 'l' {
			s.mode(numbers(mode), final == 'h')
		}
		if final != 'J' && final != 'K' {
			return at + 1
		}
		inner = mode
	}
	switch {
	case strings.Trim(inner, "0123456789;:") == "":
		s.command(final, numbers(inner))
	case inner == "!" && final == 'p':
		s.soften()
	}
	return at + 1
}

// within reports whether a byte belongs to a control sequence and does not end it.
func within(b byte) bool {
	return b < 0x40 && b != escape && b != cancel && b != substitute
}

// controls executes the control characters in the parameters of a sequence, and returns the parameters without them.
func (s *Screen) controls(inner []byte) string {
	if slices.IndexFunc(inner, func(b byte) bool { return b < ' ' }) < 0 {
		return string(inner)
	}
	var parameters []byte
	for _, b := range inner {
		if b < ' ' {
			s.control(b)
		} else {
			parameters = append(parameters, b)
		}
	}
	return string(parameters)
}

// largest limits a number in a sequence; no screen is larger.
const largest = 1000

func numbers(text string) []int {
	var found []int
	for part := range strings.SplitSeq(text, ";") {
		n, _ := strconv.Atoi(part)
		found = append(found, n)
	}
	return found
}

// mode changes private modes: the screen, the cursor, wrapping, and where positions count from.
func (s *Screen) mode(modes []int, on bool) {
	for _, mode := range modes {
		switch mode {
		case 6:
			s.origin = on
			s.place([]int{1})
		case 7:
			s.cuts = !on
		case 25:
			s.hidden = !on
		case 1048:
			if on {
				s.save()
			} else {
				s.restore()
			}
		case 47, 1047, 1049:
			s.show(on, mode == 1049)
		}
	}
}

// show switches between the main and the alternate screen.
func (s *Screen) show(alternate, saves bool) {
	if s.alternate == alternate {
		return
	}
	if alternate && saves {
		s.save()
	}
	s.lines, s.other, s.alternate = s.other, s.lines, alternate
	if alternate {
		empty(s.lines)
	} else if saves {
		s.restore()
	}
}

// command executes a drawing command.
func (s *Screen) command(final byte, args []int) {
	n := min(max(args[0], 1), largest)
	pending := s.wrap
	s.wrap = false
	switch final {
	case 'A', 'F':
		s.up(n)
	case 'B', 'E':
		s.down(n)
	case 'e':
		s.y = min(s.y+n, s.rows-1)
	case 'C', 'a':
		s.x = min(s.x+n, s.columns-1)
	case 'D':
		s.x = max(s.x-n, 0)
	case 'G', '`':
		s.x = min(n, s.columns) - 1
	case 'd':
		s.y = s.row(n)
	case 'H', 'f':
		s.place(args)
	case 'I':
		s.tab(n)
	case 'Z':
		s.tab(-n)
	case 'r':
		s.region(args)
	case 'u':
		s.restore()
	default:
		s.wrap = pending
		s.change(final, args, n)
	}
	if final == 'E' || final == 'F' {
		s.x = 0
	}
}

// up moves the cursor up to the beginning of the scroll region, or beyond if it is above.
func (s *Screen) up(n int) {
	first := 0
	if s.y >= s.top {
		first = s.top
	}
	s.y = max(s.y-n, first)
}

// down moves the cursor down to the end of the scroll region, or beyond if it is below.
func (s *Screen) down(n int) {
	last := s.rows - 1
	if s.y <= s.bottom {
		last = s.bottom
	}
	s.y = min(s.y+n, last)
}

// tabWidth is the distance of the first tab stops.
const tabWidth = 8

// tab moves the cursor to the nth tab stop to the right, or to the left if n is negative.
func (s *Screen) tab(n int) {
	by := 1
	if n < 0 {
		by = -1
	}
	for n != 0 && s.x+by >= 0 && s.x+by < s.columns {
		if s.x += by; s.tabs[s.x] {
			n -= by
		}
	}
}

// row returns the line of a row that a sequence names.
func (s *Screen) row(n int) int {
	if s.origin {
		return min(s.top+max(n, 1)-1, s.bottom)
	}
	return min(max(n, 1), s.rows) - 1
}

func (s *Screen) place(args []int) {
	s.y, s.x, s.wrap = s.row(min(args[0], largest)), 0, false
	if len(args) > 1 {
		s.x = min(max(args[1], 1), s.columns) - 1
	}
}

// region sets the scroll region. A region of less than two lines is invalid and changes nothing.
func (s *Screen) region(args []int) {
	top, bottom := max(args[0], 1)-1, s.rows-1
	if len(args) > 1 && args[1] > 0 {
		bottom = min(args[1], s.rows) - 1
	}
	if top < bottom {
		s.top, s.bottom = top, bottom
		s.place([]int{1})
	}
}

// change changes how characters are written, or writes the last one again.
func (s *Screen) change(final byte, args []int, n int) {
	switch final {
	case 'b':
		for range min(n, s.columns) {
			s.putWide(s.last, s.lastWidth)
		}
	case 'g':
		s.clearTabs(args[0])
	case 'h', 'l':
		if slices.Contains(args, 4) {
			s.inserts = final == 'h'
		}
	case 's':
		s.save()
	default:
		s.edit(final, args[0], n)
	}
}

// edit erases or moves content.
func (s *Screen) edit(final byte, arg, n int) {
	switch l := s.lines[s.y]; final {
	case 'J':
		s.erase(arg)
	case 'K':
		from, to := s.x, s.columns
		if arg > 0 {
			from = 0
		}
		if arg == 1 {
			to = s.x + 1
		}
		l.clean(from, to)
	case 'X':
		l.clean(s.x, min(s.x+n, s.columns))
	case 'P':
		if s.x < len(l.cells) {
			l.cells = slices.Delete(l.cells, s.x, min(s.x+n, len(l.cells)))
		}
	case '@':
		l.insert(s.x, n, s.columns)
	case 'L', 'M':
		if s.y < s.top || s.y > s.bottom {
			return
		}
		if final == 'L' {
			n = -n
		}
		s.scroll(s.y, n)
	case 'S':
		s.scroll(s.top, n)
	case 'T':
		s.scroll(s.top, -n)
	}
}

// clearTabs removes the tab stop at the cursor (0), or all (3).
func (s *Screen) clearTabs(which int) {
	switch which {
	case 0:
		s.tabs[s.x] = false
	case 3:
		clear(s.tabs)
	}
}

// insert shifts the cells from x on to the right by n cells. Cells beyond the last column are lost.
func (l *line) insert(x, n, columns int) {
	if x >= len(l.cells) {
		return
	}
	n = min(n, columns-x)
	l.reach(min(len(l.cells)+n, columns))
	copy(l.cells[x+n:], l.cells[x:])
	for i := range n {
		l.cells[x+i] = blank
	}
}

// erase clears the screen from the cursor on (0), up to the cursor (1), or completely (2). Other values clear what is not on the screen.
func (s *Screen) erase(what int) {
	from, to := s.y+1, s.rows
	switch what {
	case 0:
		s.lines[s.y].clean(s.x, s.columns)
	case 1:
		s.lines[s.y].clean(0, s.x+1)
		from, to = 0, s.y
	case 2:
		from = 0
	default:
		return
	}
	empty(s.lines[from:to])
}
