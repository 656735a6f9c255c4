// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import "strconv"

// Replacement replaces a span of a body by With. It does nothing if its span is zero.
type Replacement struct {
	Start, End int
	With       []byte
}

// AppendFrame appends the header and the body, so that a message can be sent in one write.
func AppendFrame(dst, body []byte) []byte {
	return append(appendHeader(dst, len(body)), body...)
}

// AppendWithID appends the frame of the body that was scanned into e, with another ID, which is raw JSON. A message without an ID is unchanged.
func (e *Envelope) AppendWithID(dst, body, id []byte) []byte {
	if e.IDSpan == (Span{}) {
		return AppendFrame(dst, body)
	}
	dst = appendHeader(dst, len(body)-(e.IDSpan.End-e.IDSpan.Start)+len(id))
	dst = append(dst, body[:e.IDSpan.Start]...)
	dst = append(dst, id...)
	return append(dst, body[e.IDSpan.End:]...)
}

// AppendReplaced appends the frame of the body with spans of it replaced. The spans may be in any order and are sorted in place; they must not overlap.
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
