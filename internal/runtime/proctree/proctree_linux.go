// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proctree lists the processes of a process tree with their names, memory and CPU time.
package proctree

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
)

// Describe returns the PIDs, names and resources of processes, the program itself first, the others by PID. It omits processes that have exited.
func Describe(processes []procstat.Process, program int) []runtime.Member {
	var members []runtime.Member
	for _, p := range processes {
		stat, err := procstat.Read(p.PID)
		if err != nil {
			continue
		}
		if name, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/comm"); err == nil {
			members = append(members, runtime.Member{PID: int64(p.PID), Name: strings.TrimSpace(string(name)), Memory: stat.Memory, CPU: stat.CPU})
		}
	}
	slices.SortFunc(members, func(a, b runtime.Member) int { return cmp.Compare(a.PID, b.PID) })
	if at := slices.IndexFunc(members, func(m runtime.Member) bool { return m.PID == int64(program) }); at > 0 {
		first := members[at]
		members = slices.Insert(slices.Delete(members, at, at+1), 0, first)
	}
	return members
}
