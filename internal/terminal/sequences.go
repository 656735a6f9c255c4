// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/clipperhouse/displaywidth"
)

// sequence interprets a sequence that begins with ESC and returns its length in bytes; 0 if it is incomplete.
func (s *Screen) sequence(data []byte) int {
	if len(data) < 2 {
		return 0
	}
	switch data[1] {
	case '[':
		return s.csi(data)
	case ']', 'P', 'X', '^', '_': // a string for the terminal, which is not displayed
		return text(data)
	case '(', ')', '*', '+', '#', '%', ' ': // a character set
		if len(data) < 3 {
			return 0
		}
		return 3
	case '7':
		s.save()
	case '8':
		s.restore()
	case 'D':
		s.feed()
	case 'E':
		s.x = 0
		s.feed()
	case 'M':
		if s.y == s.top {
			s.scroll(s.top, -1)
		} else {
			s.y = max(s.y-1, 0)
		}
	case 'c':
		s.reset()
	}
	return 2
}

// Cursor returns the position of the cursor, counted from 0.
func (s *Screen) Cursor() (column, row int) { return s.x, s.y }

func (s *Screen) save()    { s.savedX, s.savedY = s.x, s.y }
func (s *Screen) restore() { s.x, s.y, s.wrap = s.savedX, s.savedY, false }

// text returns the length in bytes of a sequence that contains a string and ends with BEL or ESC \; 0 if it is incomplete.
func text(data []byte) int {
	end := bytes.IndexAny(data[2:], "\a\x1b")
	switch {
	case end < 0:
		return 0
	case data[2+end] == '\a':
		return 2 + end + 1
	case 2+end+1 >= len(data):
		return 0
	case data[2+end+1] == '\\':
		return 2 + end + 2
	}
	return 2 + end // interrupted by another sequence
}

// csi interprets a control sequence with numeric parameters.
func (s *Screen) csi(data []byte) int {
	at := 2
	for at < len(data) && data[at] >= 0x20 && data[at] <= 0x3f {
		at++
	}
	if at == len(data) {
		return 0
	}
	final, inner := data[at], string(data[2:at])
	if final < 0x40 || final > 0x7e {
		return at // interrupted by a control character
	}
	if mode, private := strings.CutPrefix(inner, "?"); private {
		if final == 'h' || final == 'l' {
			s.mode(numbers(mode), final == 'h')
		}
		if final != 'J' && final != 'K' {
			return at + 1
		}
		inner = mode
	}
	if strings.Trim(inner, "0123456789;:") == "" {
		s.command(final, numbers(inner))
	}
	return at + 1
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

// mode switches between the main and the alternate screen, and shows or hides the cursor.
func (s *Screen) mode(modes []int, on bool) {
	for _, mode := range modes {
		if mode == 25 {
			s.hidden = !on
		}
		if mode != 47 && mode != 1047 && mode != 1049 || s.alternate == on {
			continue
		}
		if on && mode == 1049 {
			s.save()
		}
		s.lines, s.other, s.alternate = s.other, s.lines, on
		if on {
			empty(s.lines)
		} else if mode == 1049 {
			s.restore()
		}
	}
}

// command executes a drawing command.
func (s *Screen) command(final byte, args []int) {
	n := min(max(args[0], 1), largest)
	pending := s.wrap
	s.wrap = false
	switch final {
	case 'A', 'F':
		s.y = max(s.y-n, 0)
	case 'B', 'E', 'e':
		s.y = min(s.y+n, s.rows-1)
	case 'C', 'a':
		s.x = min(s.x+n, s.columns-1)
	case 'D':
		s.x = max(s.x-n, 0)
	case 'G', '`':
		s.x = min(n, s.columns) - 1
	case 'd':
		s.y = min(n, s.rows) - 1
	case 'H', 'f':
		s.place(args)
	case 'r':
		s.region(args)
	case 's':
		s.save()
	case 'u':
		s.restore()
	case 'b':
		for range min(n, s.columns) {
			s.putWide(s.last, s.lastWidth)
		}
	default:
		s.wrap = pending
		s.edit(final, args[0], n)
	}
	if final == 'E' || final == 'F' {
		s.x = 0
	}
}

func (s *Screen) place(args []int) {
	s.y, s.x = min(max(args[0], 1), s.rows)-1, 0
	if len(args) > 1 {
		s.x = min(max(args[1], 1), s.columns) - 1
	}
}

func (s *Screen) region(args []int) {
	s.top, s.bottom = min(max(args[0], 1), s.rows)-1, s.rows-1
	if len(args) > 1 && args[1] > 0 {
		s.bottom = min(args[1], s.rows) - 1
	}
	if s.top >= s.bottom {
		s.top, s.bottom = 0, s.rows-1
	}
	s.x, s.y = 0, 0
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

// erase clears the screen from the cursor on (0), up to the cursor (1), or completely (other values).
func (s *Screen) erase(what int) {
	from, to := s.y+1, s.rows
	switch what {
	case 0:
		s.lines[s.y].clean(s.x, s.columns)
	case 1:
		s.lines[s.y].clean(0, s.x+1)
		from, to = 0, s.y
	default:
		from = 0
	}
	empty(s.lines[from:to])
}

// width returns how many cells a character takes: 0 for one that joins the character before it, 2 for East Asian characters and emoji.
func width(r rune) int { return displaywidth.Rune(r) }
