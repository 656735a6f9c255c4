// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/bits"
)

// plain are the bytes that stand for themselves within a string.
var plain = func() (table [256]bool) {
	for c := ' '; c < 256; c++ {
		table[c] = c != '"' && c != '\\'
	}
	return table
}()

// special marks the highest bit of every byte of eight that does not stand for itself: one below a space, a quote or a backslash. The lowest
// mark is certain, those above it may be wrong.
func special(eight uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	// Exchanging bit 1 puts the quote right above what is below a space, so that one comparison finds both.
	low, backslash := (eight^2*ones)-0x21*ones, (eight^'\\'*ones)-ones
	return (low | backslash) &^ eight & highs
}

// ordinary says how many bytes stand for themselves, from the first on.
func ordinary(data []byte) int {
	rest := data
	// Texts are gone through in long strides. Most strings are names, though, and too short for that.
	if len(rest) >= 16 && special(word(rest, 0))|special(word(rest, 8)) == 0 {
		rest = rest[16:]
		for len(rest) >= 32 && special(word(rest, 0))|special(word(rest, 8))|special(word(rest, 16))|special(word(rest, 24)) == 0 {
			rest = rest[32:]
		}
	}
	for ; len(rest) >= 8; rest = rest[8:] {
		if marks := special(word(rest, 0)); marks != 0 {
			return len(data) - len(rest) + bits.TrailingZeros64(marks)/8
		}
	}
	for len(rest) > 0 && plain[rest[0]] {
		rest = rest[1:]
	}
	return len(data) - len(rest)
}

func word(data []byte, at int) uint64 { return binary.LittleEndian.Uint64(data[at:]) }

// str consumes a string.
func (s *scanner) str() (escaped bool, err error) {
	if s.at >= len(s.body) || s.body[s.at] != '"' {
		return false, s.fail("expected a string")
	}
	s.at++
	for {
		s.at += ordinary(s.body[s.at:])
		if s.at == len(s.body) {
			return false, s.fail("string without an end")
		}
		switch s.body[s.at] {
		case '"':
			s.at++
			return escaped, nil
		case '\\':
			n := escape(s.body[s.at:])
			if n == 0 {
				return false, s.fail("bad escape")
			}
			escaped = true
			s.at += n
		default:
			return false, s.fail("control character in a string")
		}
	}
}
