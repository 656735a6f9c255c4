// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pattern compiles regular expressions from specs under limits, so that no spec can exhaust the memory or the CPU time of the manager.
//
// The time that Go takes to match a regular expression is proportional to the size of its program times the length of the text. Compile limits the size.
// MatchEnd, or the caller of Match, limits the product: it shortens the text to MaxText characters. Both limits apply to all patterns of one object together.
package pattern

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

const (
	// maxLength is the maximum length of one pattern, in characters, as in the API.
	maxLength = 256
	// maxSize is the maximum size of all patterns of one object together, in instructions of the compiled programs. A literal character is one instruction, a
	// counted repetition such as x{1,100} counts the instructions of x 100 times, and a class of many ranges such as \pL counts as largeClass.
	maxSize = 2048
	// maxRunes is the maximum number of range bounds in all character classes of one object together. \pL has about 1,300.
	maxRunes = 16 << 10
	// maxSteps is the maximum product of the size of the patterns and the length of the matched text in characters. A step takes between 5 and 15 ns, so that
	// matching takes at most about 50 ms.
	maxSteps = 4 << 20

	// A character class with more than smallClass range bounds counts as largeClass instructions, because package regexp searches such a class, which takes
	// about as long as that many instructions.
	smallClass, largeClass = 8, 3
)

// Pattern is one compiled regular expression.
type Pattern struct {
	compiled *regexp.Regexp
	whole    bool
	size     int
}

// Match reports whether the pattern matches anywhere in the text, or the whole text if the Set was created by CompileWhole. The caller must ensure that the
// text has at most MaxText characters.
func (p *Pattern) Match(text string) bool {
	if !p.whole {
		return p.compiled.MatchString(text)
	}
	found := p.compiled.FindStringIndex(text)
	return found != nil && found[0] == 0 && found[1] == len(text)
}

// Set contains the patterns of one object.
type Set struct {
	// Patterns and Errors have one entry for each compiled text. The entry in Patterns is nil if the text is empty, is invalid or exceeds the limits. The entry
	// in Errors then contains the reason, unless the text is empty.
	Patterns []*Pattern
	Errors   []error

	size, runes int
}

// Compile compiles patterns that match anywhere in a text, in order. The limits bound its time at about half a millisecond, so callers need not keep the
// result. A pattern that exceeds the limits is not used, and neither is any pattern after it. A pattern with a syntax error is not used; the others are.
func Compile(texts []string) *Set { return compile(texts, false) }

// CompileWhole compiles patterns that must match the whole text.
//
// It adds no anchors to a pattern, because a pattern such as `)|.*(?:` could escape them.
func CompileWhole(texts []string) *Set { return compile(texts, true) }

func compile(texts []string, whole bool) *Set {
	s := &Set{Patterns: make([]*Pattern, len(texts)), Errors: make([]error, len(texts))}
	full := false
	for i, text := range texts {
		switch {
		case text == "":
		case full:
			s.Errors[i] = errors.New("not used, because a pattern before it exceeds the limits")
		default:
			s.Patterns[i], s.Errors[i] = s.add(text, whole)
			full = errors.Is(s.Errors[i], errTooLarge)
		}
	}
	return s
}

var errTooLarge = errors.New("too large")

// add compiles one pattern. It measures the pattern first, so that a pattern that exceeds the limits is never compiled.
func (s *Set) add(text string, whole bool) (*Pattern, error) {
	if utf8.RuneCountInString(text) > maxLength {
		return nil, fmt.Errorf("%s is %w: it has more than %d characters", short(text), errTooLarge, maxLength)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, syntaxError(text, err)
	}
	size, runes := measure(parsed)
	size += 2 // each program has one instruction that fails and one that matches
	if left := maxSize - s.size; size > left {
		return nil, fmt.Errorf("%s is %w: it compiles to about %d instructions, and all patterns of an object together may have at most %d; "+
			"use * or + instead of large counts such as {1,900}", short(text), errTooLarge, size, maxSize)
	}
	if runes > maxRunes-s.runes {
		return nil, fmt.Errorf("%s is %w: the character classes of all patterns of an object together may have at most %d ranges; "+
			"use [a-z] instead of classes such as \\pL", short(text), errTooLarge, maxRunes/2)
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, syntaxError(text, err)
	}
	if whole {
		compiled.Longest()
	}
	s.size += size
	s.runes += runes
	return &Pattern{compiled: compiled, whole: whole, size: size}, nil
}

// Err returns the errors of all patterns as one error, each with its index after the name of the list. It returns nil if there is none.
func (s *Set) Err(list string) error {
	var wrong []string
	for i, err := range s.Errors {
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s[%d]: %v", list, i, err))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}

// MaxText returns the maximum length, in characters, of a text that may be matched with the patterns: at least maxSteps/maxSize - 1, which is 2,047, and more
// if the patterns are smaller than maxSize together.
func (s *Set) MaxText() int { return maxSteps/max(s.size, 1) - 1 }

// MatchEnd returns the index of the first pattern that matches anywhere in the last part of the text, or -1. The function end selects that part, which has
// at most MaxText characters.
func (s *Set) MatchEnd(text string) int {
	text = end(text, s.MaxText())
	for i, p := range s.Patterns {
		if p != nil && p.Match(text) {
			return i
		}
	}
	return -1
}

// end returns as many whole lines from the end of a text as fit into n characters, so that ^ still matches only at the beginning of a line. If the last
// line alone is longer, end returns the last n characters.
func end(text string, n int) string {
	at := len(text)
	for ; n > 0 && at > 0; n-- {
		_, width := utf8.DecodeLastRuneInString(text[:at])
		at -= width
	}
	if at == 0 || text[at-1] == '\n' {
		return text[at:]
	}
	if _, lines, cut := strings.Cut(text[at:], "\n"); cut {
		return lines
	}
	return text[at:]
}

// measure returns an upper bound for the number of instructions that a parsed pattern compiles to, and the number of range bounds in its character classes.
// The parser has already limited the product of nested counts and the depth of the tree.
func measure(re *syntax.Regexp) (size, runes int) {
	for _, sub := range re.Sub {
		n, r := measure(sub)
		size, runes = size+n, runes+r
	}
	switch re.Op {
	case syntax.OpLiteral:
		size = len(re.Rune)
	case syntax.OpCharClass:
		size, runes = 1, len(re.Rune)
		if runes > smallClass {
			size = largeClass
		}
	case syntax.OpAlternate:
		size += len(re.Sub) - 1
	case syntax.OpCapture, syntax.OpStar:
		size += 2
	case syntax.OpPlus, syntax.OpQuest:
		size++
	case syntax.OpRepeat: // x{2,5} compiles to xx(x(x(x)?)?)?, and x{2,} to xx+
		if re.Max < 0 {
			size = size*max(re.Min, 1) + 2
		} else {
			size = size*re.Max + re.Max - re.Min
		}
	}
	return max(size, 1), runes
}

func syntaxError(text string, err error) error {
	var at *syntax.Error
	if errors.As(err, &at) {
		return fmt.Errorf("%s is not a regular expression (RE2): %s", short(text), at.Code)
	}
	return fmt.Errorf("%s is not a regular expression (RE2): %w", short(text), err)
}

// short quotes a pattern and truncates it to 40 characters.
func short(text string) string {
	const most = 40
	if utf8.RuneCountInString(text) <= most {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%.*q...", most, text)
}
