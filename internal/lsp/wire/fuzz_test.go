// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// FuzzScan compares Scan with encoding/json.
func FuzzScan(f *testing.F) {
	for _, body := range invalidBodies {
		f.Add([]byte(body))
	}
	f.Add(request(300))
	f.Fuzz(func(t *testing.T, body []byte) {
		if !utf8.Valid(body) {
			scrub(body)
		}
		var e Envelope
		if err := Scan(body, &e); err != nil {
			if !errors.Is(err, errMessage) {
				t.Fatal(err)
			}
			if mustAccept(body) {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		var top map[string]json.RawMessage
		if err := json.Unmarshal(body, &top); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		checkSpans(t, body, &e)
		checkEnvelope(t, &e, top)
		checkParams(t, &e, top["params"])
		checkReplacedID(t, &e, body, top)
	})
}

func checkEnvelope(t *testing.T, e *Envelope, top map[string]json.RawMessage) {
	t.Helper()
	_, method := top["method"]
	_, id := top["id"]
	want := Response
	switch {
	case method && id:
		want = Request
	case method:
		want = Notification
	}
	if e.Kind != want || !bytes.Equal(e.ID, top["id"]) || string(e.Method) != stringValue(top["method"]) {
		t.Fatalf("kind %v, id %s, method %s; want %v of %s", e.Kind, e.ID, e.Method, want, top)
	}
	if isError := len(top["error"]) > 0 && string(top["error"]) != "null"; e.IsError != isError {
		t.Fatalf("error: %v", e.IsError)
	}
}

func checkParams(t *testing.T, e *Envelope, raw json.RawMessage) {
	t.Helper()
	var params, document map[string]json.RawMessage
	if json.Unmarshal(raw, &params) != nil {
		params = nil
	}
	if json.Unmarshal(params["textDocument"], &document) != nil {
		document = nil
	}
	for key, got := range map[string][]byte{"id": e.CancelID, "token": e.Token, "workDoneToken": e.WorkDoneToken, "partialResultToken": e.PartialResultToken} {
		if want := scalar(params[key]); want != string(got) {
			t.Fatalf("%s is %s, want %s", key, got, want)
		}
	}
	if string(e.URI) != stringValue(document["uri"]) {
		t.Fatalf("uri %q", e.URI)
	}
}

func stringValue(raw json.RawMessage) (text string) {
	_ = json.Unmarshal(raw, &text)
	return text
}

// scalar returns the raw value if it is a string or an integer.
func scalar(raw json.RawMessage) string {
	if len(raw) == 0 || strings.IndexByte("{[tfn", raw[0]) >= 0 || raw[0] != '"' && bytes.ContainsAny(raw, ".eE") {
		return ""
	}
	return string(raw)
}

// checkReplacedID checks that replacing the ID does not change the rest of a message.
func checkReplacedID(t *testing.T, e *Envelope, body []byte, top map[string]json.RawMessage) {
	t.Helper()
	read, err := NewReader(bytes.NewReader(e.AppendWithID(nil, body, []byte(`"new"`))), Limits{}, nil).Read()
	if err != nil {
		t.Fatal(err)
	}
	var again map[string]json.RawMessage
	if err := json.Unmarshal(read, &again); err != nil {
		t.Fatal(err)
	}
	if len(again) != len(top) {
		t.Fatalf("%d members of %d", len(again), len(top))
	}
	for key, value := range top {
		if key == "id" {
			value = json.RawMessage(`"new"`)
		}
		if !bytes.Equal(again[key], value) {
			t.Fatalf("%s was %s, is %s", key, value, again[key])
		}
	}
}

// mustAccept reports whether Scan must accept the body, because encoding/json and an independent implementation of the rules of Scan accept it.
func mustAccept(body []byte) bool {
	var top map[string]json.RawMessage
	if json.Unmarshal(body, &top) != nil || top == nil {
		return false
	}
	fine := walk(json.NewDecoder(bytes.NewReader(body)), nil)
	for _, raw := range []json.RawMessage{top["id"], member(top["params"], "id"), member(top["params"], "token"),
		member(top["params"], "workDoneToken"), member(top["params"], "partialResultToken")} {
		fine = fine && len(raw) <= maxIDBytes
	}
	id, hasID := top["id"]
	method, hasMethod := top["method"]
	_, hasResult := top["result"]
	_, hasError := top["error"]
	switch {
	case !hasID && !hasMethod, hasMethod && (hasResult || hasError):
		return false
	case hasMethod && method[0] != '"':
		return false
	case hasID && scalar(id) == "" && (hasMethod || string(id) != "null"):
		return false
	}
	return fine
}

func member(raw json.RawMessage, key string) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return nil
	}
	return object[key]
}

// walk reports whether the depth of a value is within the limit and whether the keys that Scan evaluates are valid. Such a key must occur at most once, and two
// spellings that differ only in letter case are the same key. It must be spelled as in the protocol, except for id, token and uri within params.
func walk(decoder *json.Decoder, path []string) bool {
	token, err := decoder.Token()
	if err != nil {
		return false
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return true
	}
	if len(path) >= maxDepth {
		return false
	}
	tracked := map[string][]string{
		"":                     {"id", "method", "params", "result", "error"},
		"/params":              {"id", "token", "workDoneToken", "partialResultToken", "textDocument", "uri"},
		"/params/textDocument": {"uri"},
	}[strings.Join(path, "/")]
	lax := []string{"id", "token", "uri"}
	fine := true
	count := map[string]int{}
	for decoder.More() {
		name := "[]"
		if delim == '{' {
			key, err := decoder.Token()
			if err != nil {
				return false
			}
			name, _ = key.(string)
			for _, known := range tracked {
				if strings.EqualFold(name, known) {
					count[known]++
					fine = fine && count[known] == 1 && (name == known || len(path) > 0 && slices.Contains(lax, known))
				}
			}
		}
		at := path
		if len(at) == 0 {
			at = []string{""}
		}
		if !walk(decoder, append(slices.Clone(at), name)) {
			return false
		}
	}
	_, err = decoder.Token()
	return fine && err == nil
}

// FuzzReader reads the same stream as a whole, in halves and byte by byte. It checks that the messages and the kind of error are the same, that messages are
// parts of the stream, and that messages can be read again after they were written.
func FuzzReader(f *testing.F) {
	f.Add([]byte("Content-Length: 2\r\n\r\n{}Content-Length: 2\r\n\r\n{}"), false)
	f.Add([]byte("hello\nContent-Length: 2\r\nContent-Type: x; charset=utf-8\r\n\r\n{}x"), true)
	f.Add([]byte("content-length:3\n\n{}"), false)
	f.Add([]byte("Content-Length: -1\r\n\r\n{}"), false)
	f.Add([]byte("Content-Length: 99999999999999999999\r\n\r\n{}"), false)
	f.Add(append([]byte("Content-Length: 40000\r\n\r\n"), message(40_000)...), false)
	f.Fuzz(func(t *testing.T, stream []byte, skip bool) {
		limits := Limits{HeaderBytes: 200, MessageBytes: 50_000}
		if skip {
			limits.Skip = 100
		}
		budget := NewBudget(1 << 20)
		bodies, want := readAll(t, bytes.NewReader(stream), limits, budget)
		for _, source := range []io.Reader{iotest.OneByteReader(bytes.NewReader(stream)), iotest.HalfReader(bytes.NewReader(stream))} {
			again, err := readAll(t, source, limits, budget)
			if !errors.Is(err, errorKind(want)) || !slices.EqualFunc(bodies, again, bytes.Equal) {
				t.Fatalf("%d messages and %v, in pieces %d and %v", len(bodies), want, len(again), err)
			}
		}
		if used := budget.used.Load(); used != 0 {
			t.Fatalf("%d bytes of the budget are lost", used)
		}
		var frames []byte
		for _, body := range bodies {
			if len(body) == 0 || len(body) > limits.MessageBytes || utf8.Valid(stream) && !bytes.Contains(stream, body) && !bytes.Contains(body, []byte("?")) { // a message may end in the middle of a character
				t.Fatalf("body %q", body)
			}
			frames = AppendFrame(frames, body)
		}
		if again, err := readAll(t, bytes.NewReader(frames), limits, nil); !errors.Is(err, io.EOF) || !slices.EqualFunc(bodies, again, bytes.Equal) {
			t.Fatalf("written again: %v", err)
		}
	})
}

func readAll(t *testing.T, source io.Reader, limits Limits, budget *Budget) (bodies [][]byte, _ error) {
	t.Helper()
	reader := NewReader(source, limits, budget)
	for {
		body, err := reader.Read()
		if err != nil {
			return bodies, err
		}
		if !utf8.Valid(body) {
			t.Fatalf("no UTF-8: %q", body)
		}
		bodies = append(bodies, bytes.Clone(body))
	}
}

func errorKind(err error) error {
	for _, known := range []error{errTooLarge, errHeader, errTruncated, errSlow} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}
