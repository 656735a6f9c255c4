// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proctree describes the processes of a tree.
package proctree

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// Describe returns the PIDs, names and resources of processes, the program itself first, the others by PID. It omits processes that have exited.
func Describe(processes []shim.Process, program int) []runtime.Member {
	var members []runtime.Member
	for _, p := range processes {
		if text, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/comm"); err == nil {
			memory, cpu := procstat.Usage(p.PID)
			members = append(members, runtime.Member{PID: int64(p.PID), Name: strings.TrimSpace(string(text)), Memory: memory, CPU: cpu})
		}
	}
	slices.SortFunc(members, func(a, b runtime.Member) int {
		switch {
		case a.PID == b.PID:
			return 0
		case a.PID == int64(program), b.PID != int64(program) && a.PID < b.PID:
			return -1
		default:
			return 1
		}
	})
	return members
}
