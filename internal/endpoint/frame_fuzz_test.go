// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"io"
	"testing"

	"github.com/berth-dev/berth/internal/runtime"
)

// FuzzReceive checks that Receive writes no more bytes than arrived, and resizes a terminal only within the bounds of an attach query.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("d\x00\x00\x00\x02hir\x00\x00\x00\x04\x00\x50\x00\x18e\x00\x00\x00\x00"))
	f.Add([]byte("r\x00\x00\x00\x04\xff\xff\x00\x00"))
	f.Add([]byte("a\x00\x00\x00\x09\x03\x00\x00\x00\x00\x00\x00\x00\x07f\x00\x00\x00\x00"))
	f.Add([]byte("e\x00\x00\x00\x04gone"))
	f.Add([]byte("x\x00\x00\x00\x01xd\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var written bytes.Buffer
		err := newConn(nil, bytes.NewReader(text)).Receive(&written, func(size runtime.Terminal) {
			if size.Columns < 1 || size.Columns > 1000 || size.Rows < 1 || size.Rows > 1000 {
				t.Errorf("a terminal of %d columns and %d rows", size.Columns, size.Rows)
			}
		})
		if err == nil && !bytes.Contains(text, []byte{frameEnd, 0, 0, 0, 0}) {
			t.Error("the process ended without an end frame")
		}
		if written.Len() > len(text) {
			t.Errorf("wrote %d bytes of %d", written.Len(), len(text))
		}
		_ = newConn(nil, bytes.NewReader(text)).Receive(io.Discard, nil)
	})
}
