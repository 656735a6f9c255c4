// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"unicode/utf16"
	"unicode/utf8"
)

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
