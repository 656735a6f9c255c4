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
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

const (
	// maxNames is the maximum number of process names that Tree.names returns; "…" replaces the others.
	maxNames = 5
	// reactionTime is how long processes that have received the stop signal may react to it before they are sent SIGTERM. Without this time, a job of a shell
	// would often be terminated before it has handled the SIGHUP that the shell forwards.
	reactionTime = 500 * time.Millisecond
	// leftoverGrace is the time between SIGTERM and SIGKILL.
	leftoverGrace = 2 * time.Second
)

// Leftovers ends the processes that remain after a program has exited. The zero value is ready to use.
type Leftovers struct {
	since      time.Time // when processes were first found to remain
	terminated time.Time // when they were sent SIGTERM
}

// End sends the tree the signal that is due, if any. stopped states whether the processes have received the stop signal.
func (l *Leftovers) End(tree Tree, stopped bool) error {
	switch l.Due(time.Now(), stopped) {
	case unix.SIGTERM:
		return tree.Signal(unix.SIGTERM)
	case unix.SIGKILL:
		return tree.Kill()
	}
	return nil
}

// Due returns the signal that the caller must send now, or 0. It returns SIGTERM once, and SIGKILL on every call after leftoverGrace.
func (l *Leftovers) Due(now time.Time, stopped bool) unix.Signal {
	if l.since.IsZero() {
		l.since = now
	}
	switch {
	case l.terminated.IsZero() && stopped && now.Sub(l.since) < reactionTime:
		return 0
	case l.terminated.IsZero():
		l.terminated = now
		return unix.SIGTERM
	case now.Sub(l.terminated) > leftoverGrace:
		return unix.SIGKILL
	}
	return 0
}

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
