// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"testing"
)

// FuzzQuiet checks that the replay loses only escape sequences, that later output passes unchanged, and that the sizes of the writes do not change the
// result.
func FuzzQuiet(f *testing.F) {
	f.Add([]byte("a\x1b[6nb\x1b]11;?\x07c"), []byte("\x1b[6n"), uint8(3))
	f.Add([]byte("\x1b]52;c;aGk=\x07\x05\x1b_G"), []byte("\x1b\\"), uint8(1))
	f.Add([]byte("\x1b["), []byte("6n"), uint8(1))
	f.Add([]byte("\x1bP\x1b\x1b[c"), []byte{}, uint8(2))
	f.Fuzz(func(t *testing.T, replay, after []byte, size uint8) {
		write := func(size int) []byte {
			var out bytes.Buffer
			q := Quiet(&out, len(replay))
			for text := append(bytes.Clone(replay), after...); len(text) > 0; text = text[min(size, len(text)):] {
				if n, err := q.Write(text[:min(size, len(text))]); err != nil || n != min(size, len(text)) {
					t.Fatalf("wrote %d bytes: %v", n, err)
				}
			}
			return out.Bytes()
		}
		whole := write(len(replay) + len(after) + 1)
		kept, is := bytes.CutSuffix(whole, after)
		if !is || len(kept) > len(replay) {
			t.Fatalf("replay %q, then %q: got %q", replay, after, whole)
		}
		if !bytes.ContainsAny(replay, "\x05\x07\x1b") && !bytes.Equal(kept, replay) {
			t.Errorf("text %q became %q", replay, kept)
		}
		// Longer replays are excluded: the writer holds back at most longestQuery bytes, so with a longer sequence the size of the writes changes the result.
		if pieces := write(int(size) + 1); len(replay) < longestQuery && !bytes.Equal(pieces, whole) {
			t.Errorf("replay %q in writes of %d bytes: got %q, want %q", replay, int(size)+1, pieces, whole)
		}
	})
}
