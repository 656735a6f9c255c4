// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"testing"
)

func FuzzReadFrame(f *testing.F) {
	var frame bytes.Buffer
	_ = writeFrame(&frame, callFrame{Version: 1, Verb: verbHello})
	f.Add(frame.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'})
	f.Fuzz(func(_ *testing.T, text []byte) {
		var call callFrame
		_ = readFrame(bytes.NewReader(text), &call)
		_, _, _ = readInput(bytes.NewReader(text), nil)
	})
}
