// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package procstat

import (
	"os"
	"testing"
	"time"
)

// FuzzParse checks that the name of a process does not change the parsed usage.
func FuzzParse(f *testing.F) {
	const tail = ") S 41 42 42 34816 42 4194560 100 0 0 0 3 4 1 2 20 0 7 0 123456 1000 200 184467 1 1\n"
	for _, name := range []string{"gopls", "a) R 1 1 1", "(((", ")))", ""} {
		f.Add([]byte(name))
		f.Add([]byte("7 (" + name + tail))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = parse(text) // must not panic on damaged input
		memory, cpu := parse([]byte("7 (" + string(text) + tail))
		if memory != 200*int64(os.Getpagesize()) || cpu != 100*time.Millisecond {
			t.Errorf("process named %q: %d bytes, %s", text, memory, cpu)
		}
	})
}
