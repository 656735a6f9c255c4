// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package procstat reads the memory and the CPU time of a process from /proc.
package procstat

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// ticksPerSecond is USER_HZ, which is 100 on every Linux architecture that Go supports.
const ticksPerSecond = 100

// Usage returns the resident memory in bytes and the CPU time of one process, including its children that have exited. It returns zeros if the process has exited.
func Usage(pid int) (memory int64, cpu time.Duration) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	return parse(data)
}

// parse reads the content of /proc/PID/stat. It returns zero for an incomplete line.
func parse(data []byte) (memory int64, cpu time.Duration) {
	// Counted from 0 after the name, fields 11 to 14 are utime, stime, cutime and cstime, and field 21 is the number of resident pages.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 22 {
		return 0, 0
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(string(fields[i]), 10, 64); return n }
	ticks := number(11) + number(12) + number(13) + number(14)
	return number(21) * int64(os.Getpagesize()), time.Duration(ticks) * time.Second / ticksPerSecond
}
