// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// Start implements runtime.Runtime.
func (h *Host) Start(ctx context.Context, p runtime.Process) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Incarnation <= 0 {
		return fmt.Errorf("start %s: the incarnation must be greater than 0", p.Name)
	}
	e, err := h.acquire(p.UID)
	if err != nil {
		return err
	}
	f := h.inspect(e)
	started, err := mayStart(f, p)
	if err == nil && !started {
		err = h.hint(h.spawn(e, p, before(f, p)))
	}
	h.release(e, true)
	if err != nil {
		return fmt.Errorf("start incarnation %d of %s: %w", p.Incarnation, p.Name, err)
	}
	return nil
}

// CheckProgram implements runtime.Inspection.
func (h *Host) CheckProgram(p runtime.Process) (failure *facts.StartError, known bool) {
	launch := h.launch(p, shim.Record{Terminal: p.Terminal != nil})
	_, failed := launch.Resolve()
	return failed, true
}

// mayStart returns an error if p must not be started. It returns true if p was already started, so that nothing is left to do.
func mayStart(f *observation, p runtime.Process) (started bool, err error) {
	switch {
	case f.recorded && f.record.Incarnation > p.Incarnation:
		return false, fmt.Errorf("%w: %d", runtime.ErrStale, f.record.Incarnation)
	case f.recorded && f.record.Incarnation == p.Incarnation && f.started():
		return true, nil
	case f.exists && f.incarnation.Alive():
		return false, fmt.Errorf("%w: incarnation %d is %s; stop it first", runtime.ErrOldAlive, f.incarnation.Number, f.incarnation.Phase)
	}
	return false, nil
}

// spawn starts a shim. It takes the lock and passes it to the shim, so that no other start is possible from then on.
func (h *Host) spawn(e *entry, p runtime.Process, before *facts.Ended) error {
	dir := h.dir(p.UID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := takeLock(filepath.Join(dir, shim.LockFile))
	if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	if lock == nil {
		return fmt.Errorf("%w: its shim is still running", runtime.ErrOldAlive)
	}
	defer func() { _ = lock.Close() }()

	record := h.record(p)
	record.Before = before
	if err := h.preparePlace(p); err != nil {
		return err
	}
	if err := h.prepareCgroup(p.UID); err != nil {
		return err
	}
	launch, err := launchMemory(h.launch(p, record))
	if err != nil {
		return err
	}
	defer func() { _ = launch.Close() }()
	if err := statedir.WriteJSON(filepath.Join(dir, shim.RecordFile), &record, false); err != nil {
		return fmt.Errorf("record the start: %w", err)
	}
	e.reset(record.Token)
	if e.watched, err = h.hold(p, record.Token, lock, launch); err != nil {
		return fmt.Errorf("start berth-shim: %w", err)
	}
	e.spawned = true
	if !e.watched {
		h.poll(p.UID) // the shim runs, but no event reports its exit
	}
	return nil
}

func (h *Host) record(p runtime.Process) shim.Record {
	record := shim.Record{
		Version: shim.Version, UID: string(p.UID), Name: p.Name, Incarnation: p.Incarnation, Token: shim.NewToken(), BootID: h.boot,
		Containment: h.Containment(), StopSignal: p.StopSignal, Terminal: p.Terminal != nil, CreatedAt: time.Now(), Origin: p.Origin,
	}
	if h.cgroup != "" {
		record.Cgroup = filepath.Join(h.group(p.UID), "run")
	}
	return record
}

func (h *Host) launch(p runtime.Process, record shim.Record) shim.Launch {
	launch := shim.Launch{
		Record: record, Command: p.Command, Dir: p.Dir, Env: p.Env, LogLimit: h.options.LogLimit,
	}
	if !p.AsManager {
		launch.RunAs = h.options.RunAs
	}
	launch.Inherited = launch.RunAs.Inherited(os.Environ())
	if p.Terminal != nil {
		launch.Columns, launch.Rows = p.Terminal.Columns, p.Terminal.Rows
	}
	return launch
}

// prepareCgroup creates the cgroup of the workload of a UID. The shim runs in another cgroup, because it must survive when the workload's cgroup is killed.
// prepareCgroup recreates the cgroup for every incarnation: once a cgroup has been killed, Linux 6.14 and later also kills every process that is cloned into
// this cgroup.
func (h *Host) prepareCgroup(uid types.UID) error {
	if h.cgroup == "" {
		return nil
	}
	run := filepath.Join(h.group(uid), "run")
	populated, err := shim.Populated(run)
	if err != nil {
		return fmt.Errorf("read the cgroup: %w", err)
	}
	if populated {
		return fmt.Errorf("%w: processes are running in its cgroup %s", runtime.ErrOldAlive, run)
	}
	if err := shim.RemoveCgroup(run); err != nil {
		return fmt.Errorf("remove the cgroup of the previous incarnation: %w", err)
	}
	if err := os.MkdirAll(run, 0o755); err != nil {
		return fmt.Errorf("create a cgroup: %w", err)
	}
	return nil
}

// launchMemory writes the Launch to an in-memory file that only the shim receives: the environment may hold secrets, which must not be written to disk.
func launchMemory(launch shim.Launch) (*os.File, error) {
	data, err := json.Marshal(launch)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("berth-launch", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a memory file for the shim: %w", err)
	}
	file := os.NewFile(uintptr(fd), "berth-launch")
	_, err = file.Write(data)
	if err == nil {
		_, err = file.Seek(0, 0)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("create a memory file for the shim: %w", err)
	}
	return file, nil
}

// hold passes the start to a warm shim, or starts a shim for it, and reports whether the exit of the shim will be observed.
func (h *Host) hold(p runtime.Process, token string, lock, launch *os.File) (watched bool, err error) {
	dir, err := os.Open(h.dir(p.UID))
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }()
	said, err := os.OpenFile(filepath.Join(h.dir(p.UID), shim.DiagnosticsFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	defer func() { _ = said.Close() }()
	handover := &shim.Handover{Dir: int(dir.Fd()), Diagnostics: int(said.Fd()), Lock: int(lock.Fd()), Launch: int(launch.Fd())}
	if h.giveToWarmShim(p.UID, p.Name, handover) {
		return true, nil
	}
	pid, pidfd, err := h.fork(p, token, said, lock, launch)
	if err != nil {
		return false, err
	}
	_, unwatched := h.watcher.watch(pidfd, p.UID, pid)
	return unwatched == nil, nil
}

// fork starts a shim in a cgroup of its UID.
func (h *Host) fork(p runtime.Process, token string, said, lock, launch *os.File) (pid, pidfd int, err error) {
	group := ""
	if h.cgroup != "" {
		group = h.shimDir(p.UID)
		_ = shim.RemoveCgroup(group) // may fail while the previous shim exits; reuse is safe, because only a kill of processes without a record kills this cgroup
		if err := os.MkdirAll(group, 0o755); err != nil {
			return 0, -1, fmt.Errorf("create a cgroup: %w", err)
		}
	}
	return h.execShim([]string{"berth-shim", p.Name}, token, group, h.dir(p.UID), said, lock, launch)
}

// execShim starts berth-shim in a new session, and returns its PID and pidfd. If group is not empty, the shim is started in that cgroup. If token is not empty,
// the shim and its child between fork and exec carry the mark of that token. Without said, the shim has no stderr. It receives the other files as descriptors 3 and up.
func (h *Host) execShim(argv []string, token, group, dir string, said *os.File, files ...*os.File) (pid, pidfd int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, -1, err
	}
	defer func() { _ = null.Close() }()
	pidfd = -1
	attributes := &syscall.ProcAttr{
		// The environment of the manager is only for the workload; see Launch.Inherited.
		Env: []string{"GOMAXPROCS=1", "GOGC=40", "GOTRACEBACK=single"},
		Dir: dir, Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	}
	if token != "" {
		attributes.Env = append(attributes.Env, shim.MarkVariable+"="+shim.Mark(token))
	}
	if said == nil {
		said = null
	}
	for _, file := range append([]*os.File{null, null, said}, files...) {
		attributes.Files = append(attributes.Files, file.Fd())
	}
	if group != "" {
		fd, err := unix.Open(group, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, -1, err
		}
		defer func() { _ = unix.Close(fd) }()
		attributes.Sys.UseCgroupFD, attributes.Sys.CgroupFD = true, fd
	}
	if pid, err = syscall.ForkExec(h.options.ShimPath, argv, attributes); err != nil {
		return 0, -1, &os.PathError{Op: "execute", Path: h.options.ShimPath, Err: err}
	}
	if pidfd < 0 {
		// The shim is an unreaped child, so its PID cannot have been reused.
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	return pid, pidfd, err
}

// Forget implements runtime.Runtime.
func (h *Host) Forget(_ context.Context, uid types.UID) error {
	e, err := h.acquire(uid)
	if err != nil {
		return err
	}
	f := h.inspect(e)
	if f.exists && f.incarnation.Alive() {
		h.release(e, true)
		return fmt.Errorf("forget %s: incarnation %d is still %s", uid, f.incarnation.Number, f.incarnation.Phase)
	}
	h.cancelCommands(e)
	if err = h.commandsLeft(e); err == nil {
		err = h.remove(uid, f)
	}
	h.release(e, err != nil)
	if err != nil {
		return fmt.Errorf("forget %s: %w", uid, err)
	}
	return nil
}

// remove deletes all traces of a UID. The record is deleted last, so that an interrupted call can be repeated.
func (h *Host) remove(uid types.UID, f *observation) error {
	groups := []string{}
	if f.record.Cgroup != "" {
		groups = append(groups, filepath.Dir(f.record.Cgroup))
	}
	if h.cgroup != "" {
		groups = append(groups, h.group(uid))
	}
	for _, group := range groups {
		if err := shim.RemoveCgroup(group); err != nil {
			return fmt.Errorf("remove the cgroup: %w", err)
		}
	}
	if err := h.removeShared(uid); err != nil {
		return err
	}
	entries, err := os.ReadDir(h.dir(uid))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() != shim.RecordFile {
			if err := removeAll(filepath.Join(h.dir(uid), entry.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(h.dir(uid))
}
