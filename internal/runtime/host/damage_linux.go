// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

const (
	// mendEvery is the interval between queries of a shim for lost records. If the shim does not answer, each query blocks the calls for its UID for helloTimeout.
	mendEvery = 30 * time.Second
	// identityAfter is how long a shim may take to write its first identity.
	identityAfter = 2 * time.Second
)

// readable reads a file and treats a damaged one as missing; f.damage then holds the error.
func (f *observation) readable(path string, value any) (bool, error) {
	present, err := statedir.ReadJSON(path, value)
	if errors.Is(err, statedir.ErrDamaged) {
		f.damage = err
		return false, nil
	}
	return present, err
}

// valid reports whether a file exists and is complete, and sets f.damage otherwise.
func (f *observation) valid(path string, present, complete bool) bool {
	switch {
	case present && !complete:
		f.damage = fmt.Errorf("%w: %s has no token, or the token of another object", statedir.ErrDamaged, path)
	case !present && f.damage == nil:
		f.damage = fmt.Errorf("%s does not exist", path)
	}
	return present && complete
}

// needsMending reports whether a live shim has to be queried for the contents of its files.
func (f *observation) needsMending() bool {
	return f.held && f.end == nil && (!f.recorded || !f.identified && time.Since(f.record.CreatedAt) > identityAfter)
}

// mend queries the shim and rewrites the lost records. The answer can be trusted: only this user can access the directory of the socket, and askShim verifies
// that the shim process named in the answer is alive.
func (h *Host) mend(e *entry, f *observation) bool {
	if time.Since(e.mended) < mendEvery {
		return false
	}
	e.mended = time.Now()
	if err := h.askShim(e, f); err != nil {
		h.log.Error(err, "Cannot restore the records of a process from its shim", "uid", e.uid, "damage", f.whatIsWrong().Error())
		return false
	}
	h.log.Info("Restored the records of a process from its shim", "uid", e.uid, "damage", f.whatIsWrong().Error())
	return true
}

func (h *Host) askShim(e *entry, f *observation) error {
	client, err := h.dial(e.uid, f.record.Token)
	if err != nil {
		return err
	}
	defer func() { _ = client.Conn.Close() }()
	identity, record, err := client.Records()
	switch {
	case err != nil:
		return err
	case identity == nil || identity.Token == "" || identity.Incarnation <= 0:
		return errors.New("the shim has no record of its process")
	}
	if alive, err := procstat.Alive(identity.Shim); err != nil || !alive {
		return errors.Join(fmt.Errorf("process %d, which the shim reports as its own, is not running", identity.Shim.PID), err)
	}
	if !f.recorded {
		if record == nil { // an older shim does not send its record
			record = h.recordOf(f, identity)
		}
		if record.UID != string(e.uid) || record.Token != identity.Token || record.BootID != h.boot {
			return fmt.Errorf("the shim belongs to object %q, not to this object", record.UID)
		}
		if err := statedir.WriteJSON(filepath.Join(h.dir(e.uid), shim.RecordFile), record, false); err != nil {
			return err
		}
	}
	return statedir.WriteJSON(filepath.Join(h.dir(e.uid), shim.IdentityFile), identity, false)
}

// rebuild derives the record from the identity. It returns false if there is no identity either.
func (h *Host) rebuild(f *observation) bool {
	if !f.identified || f.damage == nil {
		return false
	}
	f.record, f.recorded = *h.recordOf(f, &f.identity), true
	if f.end != nil && f.end.Token != f.record.Token {
		f.end = nil
	}
	return true
}

// recordOf returns the part of a record that follows from the identity. The name, the stop signal, the terminal flag, the origin and the previous exit are
// lost.
func (h *Host) recordOf(f *observation, identity *shim.Identity) *shim.Record {
	record := h.record(runtime.Process{UID: types.UID(f.incarnation.UID), Incarnation: identity.Incarnation})
	record.Token, record.CreatedAt = identity.Token, identity.StartedAt
	if populated, err := shim.Populated(record.Cgroup); err == nil && !populated { // the process was started without cgroups, or has exited
		record.Cgroup, record.Containment = "", shim.Subreaper
	}
	return &record
}

// withoutRecord handles a UID of which neither the record nor the identity can be read.
func (h *Host) withoutRecord(e *entry, f *observation) {
	switch {
	case f.held:
		f.endable()
		h.poll(e.uid) // no event reports the exit of this shim
	case f.end != nil && f.end.Incarnation > 0:
		f.exists, f.incarnation.Number = true, f.end.Incarnation
		f.finish()
	default:
		h.leftover(f)
		if !f.exists && h.cgroup == "" && errors.Is(f.damage, statedir.ErrDamaged) {
			f.endable() // without a cgroup, the host cannot determine whether a process is alive
			h.poll(e.uid)
		}
	}
}

func (f *observation) whatIsWrong() error {
	if f.damage == nil {
		return fmt.Errorf("%s belongs to an earlier start", shim.IdentityFile)
	}
	return f.damage
}

// endable reports the incarnation as Unknown but killable.
func (f *observation) endable() {
	f.unknown(fmt.Errorf("%w; the shim does not respond", f.whatIsWrong()))
	f.incarnation.Killable = true
}

// leavesProcesses reports whether an incarnation without an identity nevertheless has live processes.
func (f *observation) leavesProcesses() bool {
	if f.identified {
		return false
	}
	empty, err := f.tree.Empty()
	return err != nil || !empty
}

// endDamaged stops or kills an incarnation that is known only by its directory and cgroup. Its shim, if alive, then records the exit and exits as usual.
func (h *Host) endDamaged(e *entry, f *observation, kill bool) error {
	holders := h.shimsIn(h.dir(e.uid))
	if !f.held && kill && len(holders) == 0 {
		// The shim has exited, so remove the files, which would block the UID forever. A free lock alone does not prove the exit, because the program may
		// have removed the lock file; but /proc lists no shim of this UID either.
		return errors.Join(remove(filepath.Join(h.dir(e.uid), shim.IdentityFile)), remove(filepath.Join(h.dir(e.uid), shim.RecordFile)))
	}
	tree := shim.Tree{}
	if h.cgroup != "" {
		tree.Cgroup = filepath.Join(h.group(e.uid), "run")
	}
	var trees []shim.Tree
	for _, holder := range holders { // a program that poses as a shim is a descendant of the real shim, so it belongs to the same tree
		_ = procstat.Signal(holder, unix.SIGCONT)
		tree.Ancestor = holder.PID
		trees = append(trees, tree)
	}
	if len(trees) == 0 {
		trees = append(trees, tree)
	}
	var failed error
	for _, tree := range trees {
		if kill {
			failed = errors.Join(failed, tree.Kill())
		} else {
			failed = errors.Join(failed, tree.Signal(unix.SIGTERM))
		}
	}
	return failed
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// shimsIn returns the processes that run the shim binary with dir as their working directory.
func (h *Host) shimsIn(dir string) []procstat.Process {
	var found []procstat.Process
	entries, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, entry := range entries {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(entry)))
		p, err := procstat.Identify(pid)
		if err != nil {
			continue
		}
		cwd, err := os.Readlink(entry)
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(entry), "comm"))
		if err == nil && cwd == dir && string(command) == filepath.Base(h.options.ShimPath)+"\n" {
			found = append(found, p)
		}
	}
	return found
}
