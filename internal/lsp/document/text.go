// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// maxWork is the maximum number of bytes that the changes of one notification may move in memory. Each change may move the whole text.
const maxWork = 16 << 30

// position is a position as the protocol defines it: line, and UTF-16 code units within the line, both from 0.
type position struct {
	Line      int `json:"line"`
	Character int `json:"character"`
}

type span struct {
	Start position `json:"start"`
	End   position `json:"end"`
}

// event is one change: of a span, or of the whole text.
type event struct {
	Range *span  `json:"range,omitempty"`
	Text  string `json:"text"`
}

// apply applies changes in order. The returned events produce the same text at the server; they are nil if a change has a part that servers interpret
// differently, such as a position that does not exist.
func apply(text string, changes []json.RawMessage) (string, []event, error) {
	if len(changes) > 1 && len(changes) > maxWork/(len(text)+1) {
		return "", nil, fmt.Errorf("%w: one notification has %d changes to a text of %d bytes; send the whole text instead", errLimit, len(changes), len(text))
	}
	data := []byte(text)
	events := make([]event, 0, len(changes))
	exact := true
	for _, raw := range changes {
		var change struct {
			Range *span   `json:"range"`
			Text  *string `json:"text"`
		}
		if err := json.Unmarshal(raw, &change); err != nil {
			return "", nil, fmt.Errorf("%w: %w", errChange, err)
		}
		if change.Text == nil {
			return "", nil, fmt.Errorf("%w: the change has no text", errChange)
		}
		if change.Range == nil {
			data = append(data[:0], *change.Text...)
		} else {
			start, end, sure, err := change.Range.in(data)
			if err != nil {
				return "", nil, err
			}
			exact = exact && sure
			data = splice(data, start, end, *change.Text)
		}
		events = append(events, event{change.Range, *change.Text})
	}
	if !exact {
		events = nil
	}
	return string(data), events, nil
}

// splice replaces data[start:end].
func splice(data []byte, start, end int, text string) []byte {
	size, tail := len(data), len(data)-end
	if grown := size - (end - start) + len(text); grown > size {
		data = append(data, make([]byte, grown-size)...)
	}
	copy(data[start+len(text):], data[end:end+tail])
	copy(data[start:], text)
	return data[:start+len(text)+tail]
}

// in returns the offsets of the span. exact reports whether all servers find the same offsets: both positions exist, in this order, and no line ends with \r
// alone.
func (s *span) in(data []byte) (start, end int, exact bool, err error) {
	for _, p := range [...]position{s.Start, s.End} {
		if p.Line < 0 || p.Character < 0 {
			return 0, 0, false, fmt.Errorf("%w: position %d:%d is negative", errChange, p.Line, p.Character)
		}
	}
	start, exact = s.Start.in(data)
	end, sure := s.End.in(data)
	if start > end {
		return end, start, false, nil
	}
	return start, end, exact && sure && !loneReturn(data), nil
}

// loneReturn reports whether a line ends with \r alone, which some servers do not treat as a line ending.
func loneReturn(data []byte) bool {
	return bytes.IndexByte(data, '\r') >= 0 && bytes.Count(data, []byte("\r")) != bytes.Count(data, []byte("\r\n"))
}

// Offset returns the offset in a text of a position. line and character count from 0, character in UTF-16 code units. A position that does not exist is moved
// back: to the end of the text, the end of the line, or the beginning of the character.
func Offset(text []byte, line, character int) int {
	at, _ := position{Line: line, Character: character}.in(text)
	return at
}

// in returns the offset of the position. A position that does not exist is moved back: to the end of the text, the end of the line, or the beginning of the
// character.
func (p position) in(data []byte) (at int, exact bool) {
	at, ok := lineStart(data, p.Line)
	if !ok {
		return len(data), false
	}
	units := 0
	for units < p.Character {
		if at == len(data) || data[at] == '\n' || data[at] == '\r' {
			return at, false
		}
		size, wide := 1, 1
		if data[at] >= utf8.RuneSelf {
			if _, size = utf8.DecodeRune(data[at:]); size == 4 {
				wide = 2
			}
		}
		if units += wide; units > p.Character {
			return at, false
		}
		at += size
	}
	return at, true
}

// lineStart returns the offset of the beginning of a line. Lines end with \n, \r\n or \r.
func lineStart(data []byte, line int) (at int, ok bool) {
	ends := "\n"
	if bytes.IndexByte(data, '\r') >= 0 {
		ends = "\r\n"
	}
	for ; line > 0; line-- {
		var next int
		if len(ends) == 1 {
			next = bytes.IndexByte(data[at:], '\n')
		} else {
			next = bytes.IndexAny(data[at:], ends)
		}
		if next < 0 {
			return 0, false
		}
		at += next + 1
		if data[at-1] == '\r' && at < len(data) && data[at] == '\n' {
			at++
		}
	}
	return at, true
}
