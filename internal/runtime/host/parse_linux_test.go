// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzParseSockets parses the kernel's socket tables. Programs cannot write text to these tables, but a truncated table must not cause a panic.
func FuzzParseSockets(f *testing.F) {
	f.Add("   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0 100 0 0 10 0")
	f.Add("   0: 00000000000000000000000001000000:1F90 0:0 0A 0 0 0 1000 0 12345")
	f.Add("\x14\x00\x00\x00\x03\x00")
	f.Fuzz(func(t *testing.T, text string) {
		if s, ok := parseProc(strings.Fields(text)); ok && !s.address.IsValid() {
			t.Errorf("%q is a socket without an address", text)
		}
		var all []socket
		_, _ = parse([]byte(text), unix.AF_INET, &all)
		_, _ = parse([]byte(text), unix.AF_INET6, &all)
	})
}
