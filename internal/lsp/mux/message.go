// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// Error codes of JSON-RPC and the protocol.
const (
	codeParse            = -32700
	codeInvalidRequest   = -32600
	codeMethodNotFound   = -32601
	codeInvalidParams    = -32602
	codeNotInitialized   = -32002
	codeRequestCancelled = -32800
	codeContentModified  = -32801
	codeServerCancelled  = -32802
	codeRequestFailed    = -32803
)

// detail is the data of an error that the multiplexer creates.
type detail struct {
	Reason       string `json:"reason"`
	Incarnation  int64  `json:"incarnation"`
	Retriable    bool   `json:"retriable"`
	RetryAfterMs int64  `json:"retryAfterMs,omitempty"`
	// Outcome is "unknown" for a request that may have taken effect.
	Outcome string `json:"outcome,omitempty"`
}

var null = json.RawMessage("null")

// encode is json.Marshal without HTML escapes. It has no error result, because all values that are passed to it can be encoded.
func encode(value any) json.RawMessage {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return null
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'})
}

func requestBody(id []byte, method string, params json.RawMessage) []byte {
	body := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	return appendCall(body, method, params)
}

func notificationBody(method string, params json.RawMessage) []byte {
	body := []byte(`{"jsonrpc":"2.0"`)
	return appendCall(body, method, params)
}

func appendCall(body []byte, method string, params json.RawMessage) []byte {
	body = append(body, `,"method":`...)
	body = append(body, encode(method)...)
	if len(params) > 0 {
		body = append(body, `,"params":`...)
		body = append(body, params...)
	}
	return append(body, '}')
}

func resultBody(id []byte, result json.RawMessage) []byte {
	body := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	body = append(body, `,"result":`...)
	body = append(body, result...)
	return append(body, '}')
}

func errorBody(id []byte, code int, message string, data *detail) []byte {
	object := struct {
		Code    int     `json:"code"`
		Message string  `json:"message"`
		Data    *detail `json:"data,omitempty"`
	}{code, message, data}
	body := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	body = append(body, `,"error":`...)
	body = append(body, encode(object)...)
	return append(body, '}')
}

func frame(body []byte) []byte { return wire.AppendFrame(nil, body) }

// tokenPrefix is the beginning of the tokens that replace the progress tokens of clients, because two clients may use the same token.
const tokenPrefix = `"berth/`

func appendToken(dst []byte, number int64) []byte {
	dst = append(dst, tokenPrefix...)
	dst = strconv.AppendInt(dst, number, 10)
	return append(dst, '"')
}

// tokenNumber returns the number in a token made by appendToken.
func tokenNumber(token []byte) (int64, bool) {
	rest, ok := bytes.CutPrefix(token, []byte(tokenPrefix))
	if !ok {
		return 0, false
	}
	return decimal(bytes.TrimSuffix(rest, []byte{'"'}))
}

// decimal parses an ID of the multiplexer without allocation.
func decimal(text []byte) (int64, bool) {
	if len(text) == 0 || len(text) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}
