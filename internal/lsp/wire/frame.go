// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Replacement replaces the bytes of a body at a span with the bytes of the field With. It does nothing if the span is zero.
type Replacement struct {
	Span
	With []byte
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
	growth := arrange(spans)
	return appendReplaced(appendHeader(dst, len(body)+growth), body, spans)
}

// Replaced returns a copy of a body with the replacements in spans applied, as AppendReplaced does.
func Replaced(body []byte, spans ...Replacement) []byte {
	arrange(spans)
	return appendReplaced(nil, body, spans)
}

// arrange sorts replacements by their position. It returns by how many bytes they make the body longer.
func arrange(spans []Replacement) (growth int) {
	for i := range spans {
		if spans[i].End > 0 {
			growth += len(spans[i].With) - (spans[i].End - spans[i].Start)
		}
		for j := i; j > 0 && spans[j].Start < spans[j-1].Start; j-- {
			spans[j], spans[j-1] = spans[j-1], spans[j]
		}
	}
	return growth
}

func appendReplaced(dst, body []byte, spans []Replacement) []byte {
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

// Error codes of JSON-RPC and the protocol.
const (
	CodeParse            = -32700
	CodeInvalidRequest   = -32600
	CodeMethodNotFound   = -32601
	CodeInvalidParams    = -32602
	CodeNotInitialized   = -32002
	CodeRequestCancelled = -32800
	CodeContentModified  = -32801
	CodeServerCancelled  = -32802
	CodeRequestFailed    = -32803
)

// Null is the JSON value null.
var Null = json.RawMessage("null")

// Encode is json.Marshal without HTML escapes. It has no error result, because all values that are passed to it can be encoded.
func Encode(value any) json.RawMessage {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return Null
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

// RequestBody returns the body of a request. id is raw JSON; params may be empty.
func RequestBody(id []byte, method string, params json.RawMessage) []byte {
	return appendCall(withID(id), method, params)
}

// NotificationBody returns the body of a notification. params may be empty.
func NotificationBody(method string, params json.RawMessage) []byte {
	return appendCall([]byte(`{"jsonrpc":"2.0"`), method, params)
}

// ResultBody returns the body of a response with a result.
func ResultBody(id []byte, result json.RawMessage) []byte {
	body := append(withID(id), `,"result":`...)
	return append(append(body, result...), '}')
}

// ErrorBody returns the body of a response with an error. data may be nil.
func ErrorBody(id []byte, code int, message string, data any) []byte {
	object := struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data,omitempty"`
	}{code, message, data}
	body := append(withID(id), `,"error":`...)
	return append(append(body, Encode(object)...), '}')
}

func withID(id []byte) []byte { return append([]byte(`{"jsonrpc":"2.0","id":`), id...) }

func appendCall(body []byte, method string, params json.RawMessage) []byte {
	body = append(body, `,"method":`...)
	body = append(body, Encode(method)...)
	if len(params) > 0 {
		body = append(body, `,"params":`...)
		body = append(body, params...)
	}
	return append(body, '}')
}
