// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// observation is the observed state of a UID.
type observation struct {
	exists     bool // there is an incarnation to report, or processes without a record
	record     shim.Record
	recorded   bool
	identity   shim.Identity
	identified bool
	end        *shim.End
	held       bool // the shim is alive
	orphaned   bool // the shim is gone but the workload is alive
	leaderGone bool
	err        error // why the state cannot be determined
	damage     error // names the damaged or missing file

	incarnation facts.Incarnation
	tree        shim.Tree
}

// started reports whether the recorded start has started a shim. If not, the same incarnation may be started again.
func (f *observation) started() bool {
	return f.recorded && (f.held || f.identified || f.end != nil || f.err != nil)
}

func (f *observation) unknown(err error) *observation {
	f.err, f.exists = err, true
	f.incarnation.Phase, f.incarnation.Message = facts.Unknown, err.Error()
	return f
}

// reset drops the state of a start, and sets the token of the next start.
func (e *entry) reset(token string) {
	if e.leader >= 0 {
		_ = unix.Close(e.leader)
	}
	e.token, e.spawned, e.watched, e.leader, e.orphan, e.distrust = token, false, false, -1, orphan{}, nil
}

// inspect determines the state of a UID. The caller holds the lock of e.
func (h *Host) inspect(e *entry) *observation {
	// If a shim exits between two reads, the results are inconsistent and the reads are repeated.
	for range 3 {
		if f, settled := h.lookOnce(e); settled {
			return f
		}
	}
	f := &observation{incarnation: facts.Incarnation{UID: string(e.uid), Node: h.node}}
	return f.unknown(errors.New("the state of the process changes too often to be read consistently"))
}

func (h *Host) lookOnce(e *entry) (*observation, bool) {
	f := &observation{incarnation: facts.Incarnation{UID: string(e.uid), Node: h.node}}
	// The lock is read first: once it is free, the shim writes nothing more.
	var err error
	if f.held, err = lockHeld(filepath.Join(h.dir(e.uid), shim.LockFile)); err != nil {
		return f.unknown(fmt.Errorf("cannot read the lock of the shim: %w", err)), true
	}
	if err := h.read(e, f); err != nil {
		return f.unknown(fmt.Errorf("cannot read the records of the process: %w", err)), true
	}
	if f.needsMending() && h.mend(e, f) {
		return f, false
	}
	if !f.recorded && !h.rebuild(f) {
		h.withoutRecord(e, f)
		return f, true
	}
	f.exists = true
	if e.token != f.record.Token {
		e.reset(f.record.Token)
	}
	h.describe(f)
	return f, h.derivePhase(e, f)
}

// read reads the files of a UID. It treats files of another start and damaged files as missing; f.damage names a damaged file.
func (h *Host) read(e *entry, f *observation) (err error) {
	path := func(name string) string { return filepath.Join(h.dir(e.uid), name) }
	if f.recorded, err = f.readable(path(shim.RecordFile), &f.record); err != nil {
		return err
	}
	f.recorded = f.valid(path(shim.RecordFile), f.recorded, f.record.UID == string(e.uid) && f.record.Token != "" && f.record.Incarnation > 0)
	present, err := f.readable(path(shim.IdentityFile), &f.identity)
	if err != nil {
		return err
	}
	f.identified = f.valid(path(shim.IdentityFile), present, f.identity.Token != "" && f.identity.Incarnation > 0)
	if f.recorded {
		f.identified = f.identified && f.identity.Token == f.record.Token
	}
	return f.readEnd(path(shim.EndFile))
}

func (f *observation) readEnd(path string) error {
	var end shim.End
	present, err := f.readable(path, &end)
	if present && (end.Exit != nil || end.Failure != nil) && (!f.recorded || end.Token == f.record.Token) {
		f.end = &end
	}
	return err
}

// describe fills in the fields that do not depend on which processes are alive.
func (h *Host) describe(f *observation) {
	i := &f.incarnation
	i.Number, i.Name, i.BootID, i.Containment = f.record.Incarnation, f.record.Name, f.record.BootID, f.record.Containment
	i.Before, i.Origin = f.record.Before, f.record.Origin
	f.tree = shim.Tree{Cgroup: f.record.Cgroup, Mark: shim.Mark(f.record.Token)}
	if f.identified {
		i.PID, i.StartTicks, i.StartedAt = int64(f.identity.Child.PID), int64(f.identity.Child.Ticks), f.identity.StartedAt
		i.LeaderExit = f.identity.LeaderExit
		f.tree.Leader = f.identity.Child
	}
	// RequestFile does not prove that the signal was sent, because it is written before the signal. If the manager crashes in between, the next manager must
	// still send the signal.
	var stopped shim.Request
	sent, _ := statedir.ReadJSON(filepath.Join(h.dir(types.UID(i.UID)), shim.StoppedFile), &stopped)
	i.StopSent = sent && stopped.Incarnation == i.Number
}

// derivePhase determines the phase. It returns false if the observations are inconsistent.
func (h *Host) derivePhase(e *entry, f *observation) bool {
	sameBoot := f.record.BootID == h.boot
	switch {
	case f.end != nil && (!f.held || !sameBoot):
		f.finish()
	case !sameBoot:
		h.settle(e, f, shim.End{Exit: &facts.Exit{FinishedAt: time.Now(), Message: "the machine was restarted while the process was running"}})
	case f.held:
		return h.judgeHeld(e, f)
	case f.identified, f.leavesProcesses():
		h.judgeOrphan(e, f)
	case e.spawned:
		h.settle(e, f, shim.End{Failure: &facts.StartError{Reason: shim.ReasonStartFailed, Message: fmt.Sprintf(
			"berth-shim exited before it started the program; see its output in %s", filepath.Join(h.dir(e.uid), shim.DiagnosticsFile))}})
	default:
		f.nothing() // the start had no effect; it can be repeated
	}
	return true
}

// judgeHeld handles an incarnation whose shim is alive and will report its exit.
func (h *Host) judgeHeld(e *entry, f *observation) bool {
	f.incarnation.Phase = facts.Running
	if !f.identified || (f.identity.Child.PID == 0 && f.end == nil) {
		f.incarnation.Phase = facts.Starting
	}
	if e.distrust != nil {
		h.poll(e.uid)
		f.unknown(e.distrust)
		return true
	}
	if !f.identified {
		if !e.watched {
			h.poll(e.uid) // an earlier manager started this shim, and the shim has not written its identity yet
		}
		if f.needsMending() {
			f.endable()
		}
		return true
	}
	if !e.watched {
		fd, err := procstat.Open(f.identity.Shim)
		if errors.Is(err, procstat.ErrGone) {
			if held, _ := lockHeld(filepath.Join(h.dir(e.uid), shim.LockFile)); !held {
				return false
			}
			err = errors.New("the lock is held by a process other than the recorded shim")
		}
		if err == nil {
			_, err = h.watcher.watch(fd, e.uid, f.identity.Shim.PID)
		}
		if err != nil {
			h.poll(e.uid) // the error may be temporary, and no event reports that it is resolved
			f.unknown(fmt.Errorf("cannot verify the shim of the process: %w", err))
			return true
		}
		e.watched = true
	}
	if f.tree.Cgroup == "" {
		f.tree.Ancestor = f.identity.Shim.PID
	}
	h.openLeader(e, f)
	if f.end != nil {
		f.incarnation.LeaderExit = f.end.Exit // only the shim is left, and it is about to exit
	}
	return true
}

// openLeader keeps a pidfd of the program. If the shim is killed, only a pidfd opened while the program was alive can return its exit code.
func (h *Host) openLeader(e *entry, f *observation) {
	if e.leader >= 0 || f.identity.Child.PID == 0 {
		return
	}
	fd, err := procstat.Open(f.identity.Child)
	switch {
	case err == nil:
		e.leader = fd
	case errors.Is(err, procstat.ErrGone):
		f.leaderGone = true
	default:
		f.err = err
	}
}

// finish copies the End to the incarnation.
func (f *observation) finish() {
	i := &f.incarnation
	i.LeaderExit = nil
	i.Phase, i.Exit, i.StartError = facts.Exited, f.end.Exit, f.end.Failure
	if i.StartError != nil {
		i.Phase = facts.Failed
	}
}

// settle writes the End for a shim that can no longer write it, so that later reads return the same result.
func (h *Host) settle(e *entry, f *observation, end shim.End) {
	end.Version, end.Incarnation, end.Token = shim.Version, f.record.Incarnation, f.record.Token
	if end.Exit != nil {
		end.Exit.FinishedAt = end.Exit.FinishedAt.UTC().Round(0) // the same value that a later read of the file returns
	}
	if err := statedir.WriteJSON(filepath.Join(h.dir(e.uid), shim.EndFile), &end, true); err != nil {
		h.log.Error(err, "Cannot record the exit of a process", "uid", e.uid)
	}
	f.end = &end
	f.finish()
}

// leftover finds processes in the cgroup of a UID that has no record.
func (h *Host) leftover(f *observation) {
	if h.cgroup == "" {
		return
	}
	group := h.group(types.UID(f.incarnation.UID))
	populated, err := shim.Populated(group)
	if err != nil {
		f.unknown(fmt.Errorf("cannot read the cgroup of the process: %w", err))
		return
	}
	if populated {
		f.exists, f.tree = true, shim.Tree{Cgroup: group}
		f.incarnation.Phase, f.incarnation.Containment = facts.Running, shim.Cgroup
		f.incarnation.Message = "processes are running in the cgroup " + group + ", but the record of their start is missing; they can only be killed"
	}
}

// seen is a summary of the state, used to detect changes that are not reported as events.
type seen struct {
	phase  facts.Phase
	number int64
	leader bool
}

func (f *observation) summary() seen {
	return seen{phase: f.incarnation.Phase, number: f.incarnation.Number, leader: f.incarnation.LeaderExit != nil}
}

func (f *observation) list() []facts.Incarnation {
	if !f.exists {
		return nil
	}
	return []facts.Incarnation{f.incarnation}
}
