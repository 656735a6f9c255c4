// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pages returns memory of a process that contains parts of its program file.
package pages

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Return unmaps the pages of a file that this process has mapped and not changed. The next access maps a page again, from the page cache of the kernel. Pages that
// can be written or were changed stay: a program that was built with -buildmode=pie has read-only pages that its start has relocated.
func Return(file string) error {
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer func() { _ = maps.Close() }()
	for _, m := range unchanged(maps, file) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("return pages of %s: %w", file, errno)
		}
	}
	return nil
}

type mapping struct{ from, to uintptr }

// unchanged returns the mappings of a file that are read-only and contain no changed page. The kernel calls changed pages of a file anonymous.
func unchanged(smaps io.Reader, file string) []mapping {
	var found []mapping
	var current mapping
	readOnly := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		// Such as: 00400000-0316e000 r-xp 00000000 08:01 1234 /usr/bin/berth-apiserver
		line := lines.Text()
		fields := strings.Fields(line)
		var next mapping
		if _, err := fmt.Sscanf(line, "%x-%x", &next.from, &next.to); err == nil {
			current = next
			readOnly = len(fields) == 6 && fields[5] == file && (fields[1] == "r-xp" || fields[1] == "r--p")
			continue
		}
		if readOnly && len(fields) > 1 && fields[0] == "Anonymous:" && fields[1] == "0" {
			found = append(found, current)
		}
	}
	return found
}
