// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package procstat

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// TicksPerSecond is USER_HZ, the unit of times in /proc. It is 100 on every Linux architecture that Go supports.
const TicksPerSecond = 100

// Stat is the content of /proc/PID/stat.
type Stat struct {
	Process
	State                  byte
	Parent, Group, Session int // PIDs
	Threads                int
	Memory                 int64         // resident memory in bytes
	CPU                    time.Duration // including children that have exited
	status                 int           // wait status of a zombie; the kernel shows 0 without permission
}

// Dead reports whether only the entry in the process table is left.
func (s Stat) Dead() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// Read returns the state of the process that has this PID now. It returns ErrGone if there is none.
func Read(pid int) (Stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return Stat{}, ErrGone
	}
	if err != nil {
		return Stat{}, err
	}
	return parse(pid, data)
}

// parse parses the content of /proc/PID/stat. Older kernels do not show the last fields.
func parse(pid int, data []byte) (Stat, error) {
	// The second field is the name in parentheses, which may itself contain parentheses and spaces. Fields are counted from 0 after the name.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 22 {
		return Stat{}, fmt.Errorf("/proc/%d/stat is shorter than expected", pid)
	}
	number := func(i int) int { n, _ := strconv.Atoi(string(fields[i])); return n }
	ticks, _ := strconv.ParseUint(string(fields[19]), 10, 64)
	used := number(11) + number(12) + number(13) + number(14) // utime, stime, cutime and cstime
	s := Stat{
		Process: Process{PID: pid, Ticks: ticks},
		State:   fields[0][0], Parent: number(1), Group: number(2), Session: number(3), Threads: number(17),
		Memory: int64(number(21)) * int64(os.Getpagesize()), CPU: time.Duration(used) * time.Second / TicksPerSecond,
	}
	if len(fields) > 49 {
		s.status = number(49)
	}
	return s, nil
}

// All returns the states of all processes.
func All() ([]Stat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil {
		return nil, err
	}
	all := make([]Stat, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := Read(pid); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// Ancestors returns the PIDs of the ancestors of a process, the nearest first.
func Ancestors(pid int) []int {
	var all []int
	for range 1000 { // bounded, because the chain may change while it is read
		s, err := Read(pid)
		if err != nil || s.Parent == 0 {
			break
		}
		pid = s.Parent
		all = append(all, pid)
	}
	return all
}
