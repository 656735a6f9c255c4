// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// maxDepth is the maximum nesting of a message. It is limited because the decoders that later parse the message are recursive.
const maxDepth = 512

// scanner scans JSON in one pass. at is the next byte.
type scanner struct {
	body []byte
	at   int
	// changes is true if a skipped value contains the key documentChanges, or a key with escapes, which is not decoded and could be documentChanges.
	changes bool
}

func (s *scanner) fail(what string) error {
	return fmt.Errorf("%w: %s at byte %d of %d", errMessage, what, s.at, len(s.body))
}

// peek skips white space and returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.at < len(s.body) && s.body[s.at] > ' ' {
		return s.body[s.at]
	}
	return s.space()
}

func (s *scanner) space() byte {
	for ; s.at < len(s.body); s.at++ {
		switch c := s.body[s.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// member advances to the value of the next member of an object whose opening brace was consumed. The key is raw, without quotes; escaped reports whether the
// key contains escapes. ok is false after the closing brace.
func (s *scanner) member(first bool) (key []byte, escaped, ok bool, err error) {
	c := s.peek()
	if c == '}' {
		s.at++
		return nil, false, false, nil
	}
	if !first {
		if c != ',' {
			return nil, false, false, s.fail("expected , or }")
		}
		s.at++
		s.peek()
	}
	begin := s.at + 1
	if escaped, err = s.str(); err != nil {
		return nil, false, false, err
	}
	key = s.body[begin : s.at-1]
	return key, escaped, true, s.colon()
}

func (s *scanner) colon() error {
	if s.peek() != ':' {
		return s.fail("expected :")
	}
	s.at++
	return nil
}

// number consumes a number; integer reports whether it has neither fraction nor exponent.
func (s *scanner) number() (integer bool, err error) {
	if s.next() == '-' {
		s.at++
	}
	if s.next() == '0' {
		s.at++
	} else if !s.digits() {
		return false, s.fail("bad number")
	}
	integer = true
	if s.next() == '.' {
		s.at++
		if integer = false; !s.digits() {
			return false, s.fail("bad number")
		}
	}
	if s.next()|0x20 == 'e' {
		s.at++
		if c := s.next(); c == '+' || c == '-' {
			s.at++
		}
		if integer = false; !s.digits() {
			return false, s.fail("bad number")
		}
	}
	return integer, nil
}

func (s *scanner) next() byte {
	if s.at < len(s.body) {
		return s.body[s.at]
	}
	return 0
}

func (s *scanner) digits() bool {
	begin := s.at
	for c := s.next(); '0' <= c && c <= '9'; c = s.next() {
		s.at++
	}
	return s.at > begin
}

func (s *scanner) literal(word string) error {
	if len(s.body)-s.at < len(word) || string(s.body[s.at:s.at+len(word)]) != word {
		return s.fail("expected a value")
	}
	s.at += len(word)
	return nil
}

// scalar consumes a value that is neither object nor array.
func (s *scanner) scalar(c byte) error {
	switch c {
	case '"':
		_, err := s.str()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		_, err := s.number()
		return err
	}
	return s.fail("expected a value")
}

// nesting records for every open level whether it is an object.
type nesting [maxDepth]bool

// skip consumes any value, given the number of objects and arrays around it.
func (s *scanner) skip(outer int) error {
	var open nesting
	depth := outer
	for {
		entered, err := s.enter(&open, &depth)
		if err != nil {
			return err
		}
		if entered {
			continue
		}
		if more, err := s.leave(&open, &depth, outer); err != nil || !more {
			return err
		}
	}
}

// passKey consumes a key and its colon.
func (s *scanner) passKey() error {
	begin := s.at
	escaped, err := s.str()
	if err != nil {
		return err
	}
	if escaped || string(s.body[begin:s.at]) == `"documentChanges"` {
		s.changes = true
	}
	return s.colon()
}

// enter consumes a scalar or an empty object or array; otherwise it advances to the first value of the object or array.
func (s *scanner) enter(open *nesting, depth *int) (entered bool, err error) {
	c := s.peek()
	if c != '{' && c != '[' {
		return false, s.scalar(c)
	}
	if *depth == maxDepth {
		return false, fmt.Errorf("%w: more than %d levels of nesting", errMessage, maxDepth)
	}
	s.at++
	object := c == '{'
	if end := s.peek(); end == c+2 { // in ASCII, } is { + 2 and ] is [ + 2
		s.at++
		return false, nil
	}
	open[*depth] = object
	*depth++
	if !object {
		return true, nil
	}
	return true, s.passKey()
}

// leave advances from the end of a value to the next value, closing all levels that end there.
func (s *scanner) leave(open *nesting, depth *int, outer int) (more bool, err error) {
	for *depth > outer {
		c, object := s.peek(), open[*depth-1]
		s.at++
		switch {
		case c == ',' && object:
			s.peek()
			return true, s.passKey()
		case c == ',':
			return true, nil
		case c == '}' && object, c == ']' && !object:
			*depth--
		default:
			s.at--
			return false, s.fail("expected a comma or the end of an object or array")
		}
	}
	return false, nil
}
