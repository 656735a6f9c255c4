// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// maxNames is the maximum number of process names in the result of names; the rest become "…".
const maxNames = 5

// names describes the live processes of the tree, such as "nginx (3), sh": the name of each program and how many processes have it. It is empty if there are
// none.
func (t Tree) names() string {
	members, err := t.Members()
	if err != nil {
		return ""
	}
	counts, seen := map[string]int{}, map[int]bool{}
	for _, member := range members {
		if seen[member.PID] {
			continue // Members lists a descendant in the cgroup twice.
		}
		seen[member.PID] = true
		comm, err := os.ReadFile("/proc/" + strconv.Itoa(member.PID) + "/comm")
		if name := plainName(comm); err == nil && name != "" {
			counts[name]++
		}
	}
	var words []string
	for i, name := range slices.Sorted(maps.Keys(counts)) {
		if i == maxNames {
			words = append(words, "…")
			break
		}
		if counts[name] > 1 {
			name = fmt.Sprintf("%s (%d)", name, counts[name])
		}
		words = append(words, name)
	}
	return strings.Join(words, ", ")
}

// plainName removes invalid and non-printable characters from a process name, which the process itself can set.
func plainName(comm []byte) string {
	return strings.Map(func(char rune) rune {
		if !unicode.IsPrint(char) {
			return -1
		}
		return char
	}, string(bytes.ToValidUTF8(bytes.TrimSpace(comm), nil)))
}
