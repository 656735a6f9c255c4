// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

const (
	// tendEvery is the interval of poll.
	tendEvery = 100 * time.Millisecond
	// reapGrace is how long an exited program may stay unreaped before its exit code is reported as unknown.
	reapGrace = 10 * time.Second
)

// orphan is the state of an incarnation whose shim was killed. The manager takes over the tasks of the shim.
type orphan struct {
	puncher    *shim.Puncher
	punchAfter time.Time
	endedAt    time.Time
	exit       *facts.Exit
	leftovers  shim.Leftovers
	members    []procstat.Process // found after the program exited, and not known to have exited
}

// judgeOrphan handles an incarnation whose shim was killed before it recorded the exit.
func (h *Host) judgeOrphan(e *entry, f *observation) {
	h.openLeader(e, f)
	if f.err != nil {
		f.unknown(f.err)
		return
	}
	leaderLives := false
	if e.leader >= 0 {
		leaderLives = !e.orphan.finished(e.leader, f.identity.Child)
	}
	empty := false
	if !leaderLives {
		var err error
		if empty, err = e.orphan.empty(f.tree); err != nil {
			f.unknown(err)
			return
		}
	}
	switch {
	case leaderLives, !empty, e.leader >= 0 && e.orphan.exit == nil:
		f.incarnation.Phase, f.orphaned, f.leaderGone = facts.Running, true, !leaderLives
		if f.leaderGone {
			f.incarnation.LeaderExit = e.orphan.lastWord()
		}
		f.incarnation.Message = "the shim of the process was killed; the manager monitors the process directly"
		h.poll(e.uid)
	default:
		h.punch(e) // the log may exceed its limit if neither the shim nor a manager was running
		h.settle(e, f, shim.End{Exit: e.orphan.lastWord()})
	}
}

// empty reports whether no process of the tree is left. Without a cgroup, a process is found by its environment, which the kernel releases before the sockets
// and locks of an exiting process. So a process that was found once is left until it has exited.
func (o *orphan) empty(tree shim.Tree) (bool, error) {
	if tree.Cgroup != "" {
		return tree.Empty()
	}
	members, err := tree.Members()
	if err != nil {
		return false, err
	}
	for _, p := range o.members {
		alive, err := procstat.Alive(p)
		if err != nil {
			return false, err
		}
		if alive && !slices.Contains(members, p) {
			members = append(members, p)
		}
	}
	o.members = members
	return len(members) == 0, nil
}

// finished reports whether the program has exited, and stores its exit status if it is available.
func (o *orphan) finished(leader int, program procstat.Process) bool {
	ended, reaped := procstat.Ended(leader)
	if !ended {
		return false
	}
	if o.endedAt.IsZero() {
		o.endedAt = time.Now()
	}
	if o.exit != nil {
		return true
	}
	status, ok := procstat.ExitStatus(leader)
	if !ok {
		status, ok = procstat.ZombieStatus(program)
	}
	if ok {
		o.exit = shim.ExitOf(status, o.endedAt)
	} else if reaped || time.Since(o.endedAt) > reapGrace {
		o.exit = o.lastWord()
	}
	return true
}

func (o *orphan) lastWord() *facts.Exit {
	if o.exit != nil {
		return o.exit
	}
	at := o.endedAt
	if at.IsZero() {
		at = time.Now()
	}
	return &facts.Exit{FinishedAt: at.UTC().Round(0), Message: "its shim was killed, so its exit status is unknown"}
}

// poll inspects a UID again after tendEvery, because no event reports its changes.
func (h *Host) poll(uid types.UID) { h.polled.AddAfter(uid, tendEvery) }

// tend inspects the UIDs of poll until the Host is closed.
func (h *Host) tend() {
	for {
		uid, shutdown := h.polled.Get()
		if shutdown {
			return
		}
		h.tendOne(uid)
		h.polled.Done(uid)
	}
}

func (h *Host) tendOne(uid types.UID) {
	e, err := h.acquire(uid)
	if err != nil {
		return
	}
	f := h.inspect(e)
	if f.orphaned {
		h.nurse(e, f)
	}
	changed := e.seen != f.summary()
	e.seen = f.summary()
	h.release(e, f.exists)
	if changed {
		h.events.Add(uid)
	}
}

// nurse performs the tasks of the killed shim: it bounds the log and terminates the processes that the program leaves behind.
func (h *Host) nurse(e *entry, f *observation) {
	o := &e.orphan
	if now := time.Now(); o.puncher == nil || now.After(o.punchAfter) {
		o.punchAfter = now.Add(h.punch(e))
	}
	if !f.leaderGone {
		return
	}
	var request shim.Request
	found, _ := statedir.ReadJSON(filepath.Join(h.dir(e.uid), shim.RequestFile), &request)
	requested := found && request.Incarnation == f.record.Incarnation
	var err error
	if requested && request.Kill {
		err = f.tree.Kill()
	} else {
		err = o.leftovers.End(f.tree, requested)
	}
	if err != nil {
		h.log.Error(err, "Cannot terminate the processes that a program left behind", "uid", e.uid)
	}
}

// punch bounds the log of an orphan. It opens the file for each call instead of keeping a descriptor, because orphans are rare.
func (h *Host) punch(e *entry) time.Duration {
	file, err := os.OpenFile(filepath.Join(h.dir(e.uid), shim.LogFile), os.O_RDWR, 0)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			h.log.Error(err, "Cannot truncate a log", "uid", e.uid)
		}
		return time.Second
	}
	defer func() { _ = file.Close() }()
	if e.orphan.puncher == nil {
		e.orphan.puncher = &shim.Puncher{Limit: h.options.LogLimit}
	}
	e.orphan.puncher.File = file
	return e.orphan.puncher.Check(time.Now())
}
