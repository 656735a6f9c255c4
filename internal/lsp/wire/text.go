// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// plain contains the bytes that need no escape within a string.
var plain = func() (table [256]bool) {
	for c := ' '; c < 256; c++ {
		table[c] = c != '"' && c != '\\'
	}
	return table
}()

// special finds the bytes of the word eight that are a quote, a backslash or less than a space. In the result, the highest bit of a byte is set if the byte at
// the same position is such a byte. All other bits are 0. Only the lowest bit that is set is reliable; higher bits may be set wrongly.
func special(eight uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	// Flipping bit 1 changes the quote to 0x20, the value after the control characters, so that one comparison detects both.
	low, backslash := (eight^2*ones)-0x21*ones, (eight^'\\'*ones)-ones
	return (low | backslash) &^ eight & highs
}

// ordinary returns the number of leading bytes that need no escape.
func ordinary(data []byte) int {
	rest := data
	// Long texts are scanned in large steps. Most strings are names, which are too short for that.
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
			return false, s.fail("unterminated string")
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

// escape returns the length of the escape at the beginning of data, or 0 if the escape is invalid.
func escape(data []byte) int {
	if len(data) < 2 {
		return 0
	}
	switch data[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(data); ok {
			return 6
		}
	}
	return 0
}

// hex4 parses \uXXXX.
func hex4(data []byte) (rune, bool) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	var value rune
	for _, c := range data[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		value = value<<4 | rune(c)
	}
	return value, true
}

// unescape appends the decoded contents of a string that was scanned, without its quotes.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		switch c := raw[i+1]; c {
		case 'u':
			char, _ := hex4(raw[i:])
			i += 6
			if utf16.IsSurrogate(char) {
				low, _ := hex4(raw[i:])
				if char = utf16.DecodeRune(char, low); char != utf8.RuneError {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, char)
			continue
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}
