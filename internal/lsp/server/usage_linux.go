// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// ticksPerSecond is USER_HZ, which is 100 on every architecture of Linux that Go knows.
const ticksPerSecond = 100

// Usage gives what the tree holds in memory, and the CPU time that it has used so far: that never falls, though what ended unseen is not in it.
func (p *Process) Usage() (memoryBytes int64, cpu time.Duration, err error) {
	members, err := p.tree.Members()
	if err != nil {
		return 0, 0, err
	}
	for _, member := range members {
		memory, used := usage(member.PID)
		memoryBytes, cpu = memoryBytes+memory, cpu+used
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most = max(p.most, cpu)
	return memoryBytes, p.most, nil
}

// usage is zero for a process that has ended meanwhile.
func usage(pid int) (memory int64, cpu time.Duration) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	return parseUsage(data)
}

// parseUsage reads the content of /proc/PID/stat. It returns zero for an incomplete line.
func parseUsage(data []byte) (memory int64, cpu time.Duration) {
	// After the name: utime, stime and those of collected children are fields 11 to 14, the resident pages field 21.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 22 {
		return 0, 0
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(string(fields[i]), 10, 64); return n }
	ticks := number(11) + number(12) + number(13) + number(14)
	return number(21) * int64(os.Getpagesize()), time.Duration(ticks) * time.Second / ticksPerSecond
}
