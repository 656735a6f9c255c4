// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
)

// joiner joins the character after it to the character before it, as in emoji of several persons.
const joiner = '\u200d'

// width returns how many cells a character takes: 0 for one that joins the character before it, 2 for East Asian characters and emoji.
func width(r rune) int {
	switch {
	case r == '\u00ad', r >= '\U0001f1e6' && r <= '\U0001f1ff': // a soft hyphen, which terminals show; a half of a flag
		return 1
	}
	return displaywidth.Rune(r)
}

// widthAfter returns how many cells a character takes after another one. A part of an emoji that is joined to the part before it takes none.
func widthAfter(previous, r rune) int {
	if cells := width(r); cells < 2 || previous != joiner {
		return cells
	}
	return 0
}

// drawing are the characters of the character set for lines and boxes, beginning with that of the grave accent.
var drawing = []rune("◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")

// mapped returns the character that a byte selects in the current character set.
func (s *Screen) mapped(b byte) rune {
	if at := int(b) - '`'; s.sets[s.shifted] == '0' && at >= 0 && at < len(drawing) {
		return drawing[at]
	}
	return rune(b)
}

// Limits of characters that consist of several code points: how many different ones a screen contains, and their length in bytes. Beyond them, marks are lost.
const (
	maxClusters    = 4096
	longestCluster = 48
)

// clusters are the characters of a screen that consist of several code points. A cell contains unicode.MaxRune + 1 + the index of its cluster.
type clusters struct {
	texts []string
	index map[string]rune
}

// text returns the text of a cell.
func (c *clusters) text(cell rune) string {
	if cell > unicode.MaxRune {
		return c.texts[cell-unicode.MaxRune-1]
	}
	return string(cell)
}

// write writes the text of a cell.
func (c *clusters) write(to *strings.Builder, cell rune) {
	switch {
	case cell > unicode.MaxRune:
		to.WriteString(c.text(cell))
	case cell != wide:
		to.WriteRune(cell)
	}
}

// end returns the last code point of a cell.
func (c *clusters) end(cell *rune) rune {
	switch {
	case cell == nil:
		return 0
	case *cell > unicode.MaxRune:
		last, _ := utf8.DecodeLastRuneInString(c.text(*cell))
		return last
	}
	return *cell
}

// add returns the cell that contains a code point in addition.
func (c *clusters) add(cell, r rune) rune {
	text := c.text(cell) + string(r)
	if known, found := c.index[text]; found {
		return known
	}
	if len(c.texts) == maxClusters || len(text) > longestCluster {
		return cell
	}
	if c.index == nil {
		c.index = map[string]rune{}
	}
	added := unicode.MaxRune + 1 + rune(len(c.texts))
	c.texts, c.index[text] = append(c.texts, text), added
	return added
}

// before returns the cell of the character before the cursor; nil if there is none.
func (s *Screen) before() *rune {
	x := s.x - 1
	if s.wrap {
		x = s.x
	}
	cells := s.lines[s.y].cells
	if x > 0 && x < len(cells) && cells[x] == wide {
		x--
	}
	if x < 0 || x >= len(cells) {
		return nil
	}
	return &cells[x]
}

// join adds a mark, a joiner, or what is joined, to the character before the cursor. Other code points without a width, such as marks of the direction, are not kept.
func (s *Screen) join(r rune) {
	selector := r >= '\U000e0100' && r <= '\U000e01ef' // a variant of an ideograph, which could carry hidden text
	if width(r) == 0 && r != joiner && !unicode.Is(unicode.M, r) || selector {
		return
	}
	if cell := s.before(); cell != nil && *cell != wide {
		*cell = s.clusters.add(*cell, r)
	}
}

// visible removes format characters, such as joiners: they are not shown, and Berth prints none.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf && unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, text)
}
