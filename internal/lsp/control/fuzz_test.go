// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"testing"

	"github.com/berth-dev/berth/internal/lsp"
)

// FuzzReadLine checks that a line from the socket is one JSON value or an error, and that the next read starts at the next line.
func FuzzReadLine(f *testing.F) {
	f.Add([]byte("{\"report\":{\"protocol\":1}}\n{\"answer\":{\"id\":3}}\n"))
	f.Add([]byte("{\"report\":\n"))
	f.Add([]byte("\n\n"))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		reader := bufio.NewReaderSize(bytes.NewReader(text), 16)
		var got, want lsp.Message
		err := readLine(reader, &got)
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		wantErr := json.Unmarshal(line, &want)
		if (err == nil) != (whole && wantErr == nil) {
			t.Fatalf("line %q: error %v", line, err)
		}
		if err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("line %q: got %+v, want %+v", line, got, want)
		}
		if left, _ := io.ReadAll(reader); whole && !bytes.Equal(left, rest) {
			t.Errorf("after line %q: %q remains, want %q", line, left, rest)
		}
	})
}
