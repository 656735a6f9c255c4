// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// returnProgram unmaps the pages of the program file that this process has used. Most of them contain code and tables that only the start needs. The next access
// maps a page again, from the page cache of the kernel. An error only means that the pages stay mapped.
func returnProgram() {
	path, err := os.Executable()
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer func() { _ = maps.Close() }()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		// Such as: 00400000-0316e000 r-xp 00000000 08:01 1234 /usr/bin/berth-apiserver
		fields := strings.Fields(lines.Text())
		// Pages that can be written may differ from the file, and would be lost.
		if len(fields) != 6 || fields[5] != path || fields[1] != "r-xp" && fields[1] != "r--p" {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err == nil {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
