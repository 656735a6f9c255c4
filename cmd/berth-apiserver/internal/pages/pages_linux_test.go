// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReturn_KeepsChangedPages checks that Return unmaps pages that were only read, and keeps pages that were changed before they became read-only.
func TestReturn_KeepsChangedPages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	size := 4 * os.Getpagesize()
	if err := os.WriteFile(file, bytes.Repeat([]byte{'a'}, size), 0o600); err != nil {
		t.Fatal(err)
	}
	read, changed := mapFile(t, file, size), mapFile(t, file, size)
	changed[0] = 'b'
	for _, memory := range [][]byte{read, changed} {
		if err := unix.Mprotect(memory, unix.PROT_READ); err != nil {
			t.Fatal(err)
		}
		touch(memory)
	}
	before := resident(t, file)
	if err := Return(file); err != nil {
		t.Fatal(err)
	}
	if after := resident(t, file); after >= before {
		t.Errorf("%d KiB of the file are resident, not less than the %d KiB before", after, before)
	}
	if changed[0] != 'b' || read[0] != 'a' {
		t.Errorf("the memory contains %q and %q, not b and a", changed[0], read[0])
	}
}

func mapFile(t *testing.T, file string, size int) []byte {
	t.Helper()
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	return memory
}

func touch(memory []byte) { _ = bytes.Count(memory, []byte{'a'}) }

// resident returns how much of a file is in the memory of this process, in KiB.
func resident(t *testing.T, file string) (total int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	of := ""
	for line := range strings.Lines(string(text)) {
		fields, size := strings.Fields(line), 0
		if strings.Contains(fields[0], "-") {
			of = fields[len(fields)-1]
		} else if _, err := fmt.Sscanf(line, "Rss: %d", &size); err == nil && of == file {
			total += size
		}
	}
	return total
}
