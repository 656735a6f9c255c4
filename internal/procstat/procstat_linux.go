// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package procstat

import (
	"bytes"
	"cmp"
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
	Foreground             int // process group in the foreground of the controlling terminal; -1 without a terminal
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
		State:   fields[0][0], Parent: number(1), Group: number(2), Session: number(3), Foreground: number(5), Threads: number(17),
		Memory: int64(number(21)) * int64(os.Getpagesize()), CPU: time.Duration(used) * time.Second / TicksPerSecond,
	}
	if len(fields) > 49 {
		s.status = number(49)
	}
	return s, nil
}

// Users returns the real, the effective and the saved UID of a process. It returns ErrGone if the process no longer exists.
func Users(p Process) ([]uint32, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	// Read the identity afterwards: the UIDs are those of p only if p has existed until now.
	if now, err := Read(p.PID); err != nil || now.Process != p {
		return nil, cmp.Or(err, ErrGone)
	}
	return parseUsers(p.PID, data)
}

// parseUsers parses the line Uid of /proc/PID/status. A process cannot write a line of its own there, because the kernel escapes line feeds in its name.
func parseUsers(pid int, data []byte) ([]uint32, error) {
	for line := range bytes.Lines(data) {
		text, found := bytes.CutPrefix(line, []byte("Uid:"))
		fields := bytes.Fields(text)
		if !found || len(fields) < 3 {
			continue
		}
		users := make([]uint32, 3)
		for i := range users {
			uid, err := strconv.ParseUint(string(fields[i]), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("/proc/%d/status has the invalid UID %q", pid, fields[i])
			}
			users[i] = uint32(uid)
		}
		return users, nil
	}
	return nil, fmt.Errorf("/proc/%d/status has no UIDs", pid)
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
