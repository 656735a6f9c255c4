// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import "strconv"

// Replacement replaces the bytes from Start to End of a body with the bytes of the field With. It does nothing if Start and End are zero.
type Replacement struct {
	Start, End int
	With       []byte
}

// AppendFrame appends the header and the body, so that a message can be sent in one write.
func AppendFrame(dst, body []byte) []byte {
	return append(appendHeader(dst, len(body)), body...)
}

// AppendWithID appends a frame whose body is the one that was scanned into e, with id in place of its ID. id is raw JSON. If the message has no ID, the body
// is not changed.
func (e *Envelope) AppendWithID(dst, body, id []byte) []byte {
	if e.IDSpan == (Span{}) {
		return AppendFrame(dst, body)
	}
	dst = appendHeader(dst, len(body)-(e.IDSpan.End-e.IDSpan.Start)+len(id))
	dst = append(dst, body[:e.IDSpan.Start]...)
	dst = append(dst, id...)
	return append(dst, body[e.IDSpan.End:]...)
}

// AppendReplaced appends a frame whose body is the given one with the replacements in spans applied. The replacements may be in any order and are sorted in
// place. They must not overlap.
func AppendReplaced(dst, body []byte, spans []Replacement) []byte {
	length := len(body)
	for i := range spans {
		if spans[i].End > 0 {
			length += len(spans[i].With) - (spans[i].End - spans[i].Start)
		}
		for j := i; j > 0 && spans[j].Start < spans[j-1].Start; j-- {
			spans[j], spans[j-1] = spans[j-1], spans[j]
		}
	}
	dst = appendHeader(dst, length)
	at := 0
	for _, span := range spans {
		if span.End == 0 {
			continue
		}
		dst = append(dst, body[at:span.Start]...)
		dst = append(dst, span.With...)
		at = span.End
	}
	return append(dst, body[at:]...)
}

func appendHeader(dst []byte, length int) []byte {
	dst = append(dst, "Content-Length: "...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	return append(dst, "\r\n\r\n"...)
}
