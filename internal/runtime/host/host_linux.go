// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/background"
	"github.com/berth-dev/berth/internal/runtime/eventqueue"
	"github.com/berth-dev/berth/internal/runtime/logfile"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

var _ runtime.Runtime = (*Host)(nil)

// Host runs incarnations as processes of this machine. Create one with New.
type Host struct {
	runtime.Local
	runtime.NoTerminals
	runtime.NoInspection
	*logfile.Logs

	options Options
	log     logr.Logger
	node    string
	boot    string
	cgroup  string // root of this install's cgroups; empty in the tier Subreaper
	// cgroupLock is the open directory of the subtree, locked against its removal by other managers; nil in the tier Subreaper.
	cgroupLock *os.File

	single  *flock.Flock
	events  *eventqueue.Queue
	watcher *watcher
	socket  *net.UnixConn
	polled  workqueue.TypedDelayingInterface[types.UID] // see poll
	warm    warmShims
	closed  chan struct{}
	once    sync.Once
	loops   sync.WaitGroup
	// writeRequest is statedir.WriteJSON; a test replaces it to simulate a full disk.
	writeRequest func(path string, value any, sync bool) error
	entries      *background.Entries[*entry]
}

// entry is the in-memory state of a UID.
type entry struct {
	background.Entry
	uid types.UID
	// commands run beside the process. They may outlive the incarnation until they are killed.
	commands map[*command]struct{}

	// The fields from token to distrust, except mended, belong to the start with this token. reset clears them.
	token   string
	spawned bool // started by this manager
	watched bool // the exit of the shim will be reported
	leader  int  // pidfd of the program, or -1
	orphan  orphan
	// mended is when the host last queried the shim for lost records.
	mended time.Time
	// distrust is why the process that holds the lock is not accepted as the shim.
	distrust error

	// seen is the last reported state. Observe and List must not update it, because tend would then not report the change.
	seen seen
}

// Capabilities implements runtime.Runtime. The record of a start stores its origin and the previous exit.
func (h *Host) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Logs: h, Terminals: h, Inspection: h, Results: h, KeepsOrigin: true, KeepsPreviousExit: true}
}

// New locks the state directory, adopts the existing incarnations, and emits an event for each of them. It returns an error if another manager holds the lock;
// with Options.Standby it waits for the lock instead.
func New(options Options) (*Host, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	h := &Host{
		options: options, log: options.Logger, events: eventqueue.New(), closed: make(chan struct{}),
		entries: background.NewEntries(func(uid types.UID) *entry { return &entry{uid: uid, leader: -1} }),
		warm:    warmShims{wanted: make(chan struct{}, 1)}, writeRequest: statedir.WriteJSON,
		polled: workqueue.NewTypedDelayingQueue[types.UID](), single: flock.New(filepath.Join(options.StateDir, lockName), flock.SetPermissions(0o600)),
	}
	h.watcher = newWatcher(h.ended)
	err := h.lockStateDir()
	if err == nil {
		err = h.open()
	}
	if err != nil {
		_ = h.Close()
		return nil, err
	}
	h.adopt()
	return h, nil
}

func (h *Host) open() error {
	var err error
	if h.boot, err = procstat.BootID(); err != nil {
		return fmt.Errorf("read the boot ID: %w", err)
	}
	h.node, _ = os.Hostname()
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("the host runtime needs pidfds to identify processes (Linux 5.3 or later, not blocked by a sandbox): %w", err)
	}
	_ = unix.Close(pidfd)
	if err := os.MkdirAll(h.runDir(), 0o700); err != nil {
		return fmt.Errorf("create the state directory: %w", err)
	}
	if h.cgroupLock, err = contain(h.options); err != nil {
		return err
	}
	if h.cgroupLock != nil {
		h.cgroup = h.cgroupLock.Name()
		removeEmptyCgroups(h.cgroup)
	}
	if err := h.enterBoot(); err != nil {
		return err
	}
	// From here on, every change by a shim is reported as an event. The method adopt finds earlier changes.
	if h.socket, err = listenEvents(h.options.StateDir); err != nil {
		return err
	}
	logPath := func(uid types.UID) string { return filepath.Join(h.dir(uid), shim.LogFile) }
	if h.Logs, err = logfile.NewLogs(logPath, h.events.Add); err != nil {
		h.log.Info("Cannot watch output files; polling them instead", "cause", err.Error())
	}
	h.loops.Go(func() { h.events.Run(h.closed) })
	h.loops.Go(h.receive)
	h.loops.Go(h.tend)
	h.loops.Go(h.keepWarmShim)
	return nil
}

// Close releases all resources and leaves the workloads running.
func (h *Host) Close() error {
	var err error
	h.once.Do(func() {
		close(h.closed)
		h.polled.ShutDown()
		if h.socket != nil {
			err = h.socket.Close()
			_ = os.Remove(filepath.Join(h.options.StateDir, eventsName))
		}
		err = errors.Join(err, h.StopWatching())
		h.loops.Wait()
		h.watcher.close()
		for _, uid := range h.entries.UIDs() {
			e := h.entries.Acquire(uid)
			h.cancelCommands(e)
			h.release(e, false)
		}
		if h.cgroup != "" {
			h.removeCgroup()
			err = errors.Join(err, h.cgroupLock.Close())
		}
		err = errors.Join(err, h.single.Close())
	})
	return err
}

// removeCgroup removes the cgroup of this install if it is empty. It retries for 20 ms, because a shim that has exited remains in the cgroup for a moment.
func (h *Host) removeCgroup() {
	for range 20 {
		if err := os.Remove(h.cgroup); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Containment returns the tier for new incarnations, Cgroup or Subreaper.
func (h *Host) Containment() string {
	if h.cgroup != "" {
		return shim.Cgroup
	}
	return shim.Subreaper
}

// Events implements runtime.Runtime.
func (h *Host) Events() <-chan types.UID { return h.events.C() }

// Announce sends a UID on Events, for a backend that runs its processes here.
func (h *Host) Announce(uid types.UID) { h.events.Add(uid) }

func (h *Host) runDir() string           { return filepath.Join(h.options.StateDir, "run") }
func (h *Host) dir(uid types.UID) string { return filepath.Join(h.runDir(), string(uid)) }

// Directory returns the directory that contains the files and the socket of the shim of a UID.
func (h *Host) Directory(uid types.UID) string { return h.dir(uid) }

func (h *Host) group(uid types.UID) string   { return filepath.Join(h.cgroup, string(uid)) }
func (h *Host) shimDir(uid types.UID) string { return filepath.Join(h.group(uid), "shim") }

// acquire returns the locked entry of a UID. It returns an error if the UID is invalid or the Host is closed.
func (h *Host) acquire(uid types.UID) (*entry, error) {
	if !runtime.ValidUID(uid) {
		return nil, fmt.Errorf("invalid UID %q of a process: use letters, digits, dots, dashes and underscores only", uid)
	}
	e := h.entries.Acquire(uid)
	select {
	case <-h.closed:
		h.release(e, true) // Close empties the entry, or it is new and thus empty
		return nil, errors.New("the host runtime is closed")
	default:
		return e, nil
	}
}

// release unlocks an entry. If keep is false, release also removes the entry.
func (h *Host) release(e *entry, keep bool) {
	if !keep {
		h.entries.Forget(e.uid, e)
		e.reset("")
	}
	e.Unlock()
}
