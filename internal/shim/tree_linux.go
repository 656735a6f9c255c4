// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/procstat"
)

// Tree identifies the processes of one incarnation. With a cgroup, membership is certain. Without one, the members are the descendants of the subreaper. If the
// subreaper has exited, they are the leader, the other processes of its session, the processes that carry the mark, and the descendants of all these.
type Tree struct {
	Cgroup   string           // directory of the workload's cgroup
	Ancestor int              // PID of the live shim, which is not a member; the caller verifies its identity
	Leader   procstat.Process // the program
	Mark     string           // value of MarkVariable
	// Carried lists parts of an environment. A process whose environment contains all of them is a member. Each entry of the environment is preceded and
	// followed by a NUL byte, so "\x00NAME=value\x00" matches a whole entry.
	Carried []string
}

// Members returns the live processes.
func (t Tree) Members() ([]procstat.Process, error) {
	stats, err := t.stats()
	members := make([]procstat.Process, len(stats))
	for i, s := range stats {
		members[i] = s.Process
	}
	return members, err
}

// stats returns the members, each with its state at the time of the read. Without a cgroup, parents usually come before their children.
func (t Tree) stats() ([]procstat.Stat, error) {
	var members []procstat.Stat
	if t.Cgroup != "" {
		var err error
		if members, err = identified(t.Cgroup); err != nil || t.Ancestor == 0 {
			return members, err
		}
	}
	found, ok := t.walk()
	if !ok {
		var err error
		if found, err = t.scan(); err != nil {
			return nil, err
		}
	}
	return append(members, found...), nil
}

// identified returns the members of a cgroup with their identities. It lists the cgroup before and after it reads the identities, and returns only PIDs that
// are in both lists. The identity of such a PID can be that of a process outside the cgroup only if that process had the PID in between. That process has then
// exited, and Open rejects its identity.
func identified(cgroup string) ([]procstat.Stat, error) {
	pids, err := cgroupMembers(cgroup)
	if err != nil || len(pids) == 0 {
		return nil, err
	}
	found := map[int]procstat.Stat{}
	for _, pid := range pids {
		if s, err := procstat.Read(pid); err == nil && !s.Dead() {
			found[pid] = s
		}
	}
	if pids, err = cgroupMembers(cgroup); err != nil {
		return nil, err
	}
	var members []procstat.Stat
	for _, pid := range pids {
		if s, ok := found[pid]; ok {
			members = append(members, s)
		}
	}
	return members, nil
}

// Empty reports whether no process of the tree is alive.
func (t Tree) Empty() (bool, error) {
	if t.Cgroup != "" && t.Ancestor == 0 {
		populated, err := Populated(t.Cgroup)
		return !populated, err
	}
	members, err := t.stats()
	return len(members) == 0, err
}

// walk follows the lists of children down from the subreaper; its cost is proportional to the size of the tree. It returns false if this kernel has no such
// lists. A walk may miss a process that appears or moves during the walk; callers that need all processes repeat the walk until it finds no new one.
func (t Tree) walk() (members []procstat.Stat, ok bool) {
	if t.Ancestor == 0 {
		return nil, false
	}
	seen := map[int]bool{t.Ancestor: true}
	for queue := []int{t.Ancestor}; len(queue) > 0; queue = queue[1:] {
		below, ok := children(queue[0])
		if !ok {
			return nil, false
		}
		for _, pid := range below {
			s, err := procstat.Read(pid)
			if err != nil || seen[pid] || s.Parent != queue[0] {
				continue
			}
			seen[pid] = true
			queue = append(queue, pid)
			if !s.Dead() {
				members = append(members, s)
			}
		}
	}
	return members, true
}

// children returns the children of all threads of a process, or none if it does not exist. It returns false if the kernel has no lists of children.
func children(pid int) (pids []int, ok bool) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task/"
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return nil, errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(tasks + entry.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			if _, err := os.Stat(tasks + entry.Name()); err == nil {
				return nil, false // the thread exists, but the kernel has no list
			}
		}
		for field := range bytes.FieldsSeq(data) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids, true
}

// scan searches the process table.
func (t Tree) scan() ([]procstat.Stat, error) {
	all, err := procstat.All()
	if err != nil {
		return nil, err
	}
	member := map[int]bool{}
	if t.Ancestor != 0 {
		member[t.Ancestor] = true
	} else {
		t.seed(all, member)
	}
	// Parents may come after their children in the table, so the loop repeats until nothing is added.
	for grown := true; grown; {
		grown = false
		for _, s := range all {
			if !member[s.PID] && member[s.Parent] {
				member[s.PID], grown = true, true
			}
		}
	}
	var members []procstat.Stat
	for _, s := range all {
		if member[s.PID] && s.PID != t.Ancestor && !s.Dead() {
			members = append(members, s)
		}
	}
	return members, nil
}

// seed finds members after the shim has exited: the leader, the other processes of its session, and processes that the environment identifies (see Mark and
// Carried). It does not mark the descendants of these processes; scan adds them.
func (t Tree) seed(all []procstat.Stat, member map[int]bool) {
	leader := false
	for _, s := range all {
		if s.Process == t.Leader {
			member[s.PID], leader = true, true
		}
	}
	mark := []string{"\x00" + MarkVariable + "=" + t.Mark + "\x00"}
	for _, s := range all {
		// The number of a session is the PID of its first process. While the leader exists, no other process can create a session with that number.
		if leader && s.Session == t.Leader.PID {
			member[s.PID] = true
			continue
		}
		if t.Mark == "" && len(t.Carried) == 0 || s.Dead() || s.PID == os.Getpid() {
			continue
		}
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(s.PID) + "/environ")
		if err != nil {
			continue // belongs to another user, or exited
		}
		if t.Mark != "" && carries(environ, mark) || carries(environ, t.Carried) {
			member[s.PID] = true
		}
	}
}

func carries(environ []byte, pieces []string) bool {
	environ = append([]byte{0}, environ...)
	for _, piece := range pieces {
		if !bytes.Contains(environ, []byte(piece)) {
			return false
		}
	}
	return len(pieces) > 0
}

const (
	// rounds bounds how often Signal searches for new members. A tree that forks faster than Signal searches can still be killed with Kill.
	rounds = 10
	// stopRounds bounds how often stop searches for new members. If a round finds no new member, but some member still runs, stop waits for stopPause.
	stopRounds = 50
	stopPause  = time.Millisecond
	// settledRounds is how many consecutive rounds have to find only stopped processes. The kernel may omit a child from a list that changes during the read. A
	// process whose parent exits moves to another list, which may have been read already. Neither happens twice among stopped processes.
	settledRounds = 2
)

// Signal sends a signal to every member once, including members that appear during the call, and resumes stopped members so that they can act on the signal.
func (t Tree) Signal(signal unix.Signal) error {
	done := map[procstat.Process]bool{}
	var failed error
	for range rounds {
		members, err := t.Members()
		if err != nil {
			return err
		}
		if signal == unix.SIGKILL {
			slices.Reverse(members) // children first: the exit of a parent can orphan the process group of a stopped child, which the kernel then continues
		}
		fresh := false
		for _, p := range members {
			if done[p] {
				continue
			}
			done[p], fresh = true, true
			if err := send(p, signal); err != nil {
				failed = err
			}
		}
		if !fresh {
			break
		}
	}
	return failed
}

// send sends a signal to a process, and resumes the process so that it can act on the signal.
func send(p procstat.Process, signal unix.Signal) error {
	err := procstat.Signal(p, signal)
	if err == nil && signal != unix.SIGKILL && signal != unix.SIGSTOP && signal != unix.SIGCONT {
		err = procstat.Signal(p, unix.SIGCONT)
	}
	return err
}

// stop suspends every member with SIGSTOP. A fork bomb can outrun SIGKILL but not SIGSTOP: a stopped process does not fork, and still counts toward the
// process limit of its user, so no new process can take its place. stop ignores errors, because the SIGKILL that follows reports them.
func (t Tree) stop() {
	sent := map[procstat.Process]bool{} // false if the signal was refused
	for round, settled := 0, 0; round < stopRounds && settled < settledRounds; round++ {
		members, err := t.stats()
		if err != nil {
			return
		}
		fresh, active := false, false
		for _, s := range members {
			stopping, known := sent[s.Process]
			if !known {
				sent[s.Process], fresh = send(s.Process, unix.SIGSTOP) == nil, true
			}
			// A process in uninterruptible sleep (D) is not active, because it stops before it runs again. A parent that waits in vfork is in this state.
			active = active || stopping && (s.State == 'R' || s.State == 'S')
		}
		switch {
		case fresh:
			settled = 0
		case active:
			settled = 0
			time.Sleep(stopPause)
		default:
			settled++
		}
	}
}

// Kill sends SIGKILL to every member. It does not wait for their exit.
func (t Tree) Kill() error {
	if t.Cgroup != "" {
		err := killCgroup(t.Cgroup)
		if err == nil && t.Ancestor == 0 {
			return nil
		}
	}
	t.stop()
	return t.Signal(unix.SIGKILL)
}
