// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// events are the events of a folder that are reported. A file counts as changed when the program that writes it closes it.
const events = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW | unix.IN_EXCL_UNLINK

// gitPatience bounds the call of git that lists ignored folders.
const gitPatience = 10 * time.Second

// Watcher watches folders. It keeps the names of their files, so that it can report deleted files when a folder is gone or the kernel has dropped events. Only its
// goroutine uses the fields below requested.
type Watcher struct {
	file   *os.File // the inotify instance
	done   chan struct{}
	report func(Report)
	// maxFolders and maxFiles are the constants with these names, except in tests.
	maxFolders, maxFiles int

	spec      atomic.Pointer[spec]
	requested atomic.Int64 // the newest result of Sync

	roots   []*root
	folders map[string]*folder // by path
	paths   map[int32][]string // by watch descriptor; several if symbolic links lead to one folder
	files   int                // number of names in all folders
	ignored map[string]bool
	batch   batch
	found   []string
	buffer  []byte

	packages  map[string]*packages // by path
	installed []string             // see Report

	calm      time.Time // all changes before this time are in the batch or were reported
	first     time.Time // when the oldest change in the batch was found; zero: the batch is empty
	checkedAt time.Time // when the roots were last checked
	unseen    string    // see Report
	limited   bool      // a limit was reached since the last retry
	retryAt   time.Time
	reported  Report // the previous report, without Changes and Found
}

// spec is what SetFolders was called with, and when. The language server has read no file of an added folder before the time since.
type spec struct {
	folders []string
	since   time.Time
}

// root is the path of a folder of the workspace. The folder may not exist, and the path may lead to another folder later.
type root struct {
	path string
	// since is a time when the language server had not read the folder yet. A folder that is found later than at the first check has no such time, and all its files
	// are reported.
	since  time.Time
	absent bool // at the previous check
}

// folder is a folder that is watched.
type folder struct {
	descriptor int32
	names      map[string]bool // whether the name is that of a folder; folders that are not watched are missing
}

// Start watches folders and everything in them until Close, except folders that git ignores or that contain installed packages. It returns immediately. Folders
// need not exist. The language server has read no file before the time since. report is called in another goroutine.
func Start(folders []string, since time.Time, report func(Report)) (*Watcher, error) {
	w, err := open(folders, since, report)
	if err == nil {
		go w.run()
	}
	return w, err
}

func open(folders []string, since time.Time, report func(Report)) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch files (inotify; see fs.inotify.max_user_instances): %w", err)
	}
	w := &Watcher{
		file: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), report: report, maxFolders: maxFolders, maxFiles: maxFiles,
		folders: map[string]*folder{}, paths: map[int32][]string{}, ignored: map[string]bool{}, packages: map[string]*packages{}, buffer: make([]byte, 64<<10), calm: since,
	}
	w.spec.Store(&spec{folders, since})
	return w, nil
}

// Close stops the watcher. It does not report after Close has returned.
func (w *Watcher) Close() {
	_ = w.file.Close()
	<-w.done
}

// SetFolders replaces the folders. It does not block.
func (w *Watcher) SetFolders(folders []string) {
	w.spec.Store(&spec{folders, time.Now()})
	w.Sync()
}

// Sync requests a report of everything that has changed until now, and does not block. The report has arrived when Report.Synced is the result of Sync or greater.
func (w *Watcher) Sync() int64 {
	n := w.requested.Add(1)
	_ = w.file.SetReadDeadline(time.Unix(1, 0)) // interrupts wait
	return n
}

func (w *Watcher) run() {
	defer close(w.done)
	w.adopt(*w.spec.Load())
	w.check()
	for {
		events, open := w.wait()
		if !open {
			return
		}
		w.read(events)
		now := time.Now()
		requested := w.requested.Load()
		synced := requested > w.reported.Synced
		if synced {
			w.adopt(*w.spec.Load())
		}
		if synced || now.Sub(w.checkedAt) >= rootPeriod {
			w.check()
			w.drain()
			w.checkPackages()
		}
		if synced || len(events) == 0 || !w.first.IsZero() && now.Sub(w.first) >= patience {
			w.flush(requested)
		}
	}
}

// wait waits for events. It returns none after Sync, when the changes in the batch are to be reported, and when the roots are to be checked.
func (w *Watcher) wait() (events []byte, open bool) {
	deadline := w.checkedAt.Add(rootPeriod)
	if !w.first.IsZero() {
		deadline = earliest(deadline, w.first.Add(patience), time.Now().Add(quiet))
	}
	_ = w.file.SetReadDeadline(deadline)
	if w.requested.Load() > w.reported.Synced {
		return nil, true // this may have replaced the deadline of Sync
	}
	n, err := w.file.Read(w.buffer)
	return w.buffer[:max(n, 0)], err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

func earliest(times ...time.Time) time.Time { return slices.MinFunc(times, time.Time.Compare) }

// drain reads the events that the kernel has queued until now.
func (w *Watcher) drain() {
	now := time.Now()
	pending := 0
	_ = w.control(func(fd int) { pending, _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
	for pending > 0 {
		n := 0
		_ = w.control(func(fd int) { n, _ = unix.Read(fd, w.buffer) })
		if n <= 0 {
			return
		}
		w.read(w.buffer[:n])
		pending -= n
	}
	w.calm = now
}

// flush reports the changes in the batch.
func (w *Watcher) flush(synced int64) {
	next := Report{Absent: w.absent(), Unseen: w.unseen, Synced: synced}
	changes, found, installed := w.batch.take(), w.found, w.installed
	if len(changes)+len(found)+len(installed) > 0 || !slices.Equal(next.Absent, w.reported.Absent) || next.Unseen != w.reported.Unseen || next.Synced != w.reported.Synced {
		w.reported, w.found, w.installed = next, nil, nil
		next.Changes, next.Found, next.Installed = changes, found, installed
		w.report(next)
	}
	w.first = time.Time{}
}

// absent returns the roots that do not exist, sorted.
func (w *Watcher) absent() (paths []string) {
	for _, r := range w.roots {
		if r.absent {
			paths = append(paths, r.path)
		}
	}
	slices.Sort(paths)
	return paths
}

// change records a change. A full batch is reported at once.
func (w *Watcher) change(path string, kind Kind) {
	w.batch.add(path, kind)
	if w.first.IsZero() {
		w.first = time.Now()
	}
	if len(w.batch.changes) >= maxChanges {
		w.flush(w.reported.Synced)
	}
}

// adopt takes over the folders of SetFolders.
func (w *Watcher) adopt(next spec) {
	wanted := map[string]bool{}
	for _, path := range next.folders {
		wanted[filepath.Clean(path)] = true
	}
	w.roots = slices.DeleteFunc(w.roots, func(r *root) bool {
		if wanted[r.path] {
			delete(wanted, r.path)
			return false
		}
		if !slices.ContainsFunc(next.folders, func(other string) bool { return within(r.path, other) }) {
			w.forget(r.path, false)
			maps.DeleteFunc(w.packages, func(path string, _ *packages) bool { return within(path, r.path) })
		}
		return true
	})
	for _, path := range slices.Sorted(maps.Keys(wanted)) {
		w.roots = append(w.roots, &root{path: path, since: next.since.Add(-timestamps)})
		w.retryAt = time.Time{}
	}
}

// within reports whether a path is in a folder.
func within(path, folder string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// check reads the roots whose paths lead to another folder than before. If changes may have been missed, it periodically reads all roots.
func (w *Watcher) check() {
	w.checkedAt = time.Now()
	retry := w.unseen != "" && !w.checkedAt.Before(w.retryAt)
	w.limited = w.limited && !retry
	for _, r := range w.roots {
		w.checkRoot(r, retry)
	}
	if retry && !w.limited {
		w.unseen = ""
	}
}

func (w *Watcher) checkRoot(r *root, retry bool) {
	f := w.folders[r.path]
	descriptor, err := w.inotify(r.path + "/")
	known := f != nil && err == nil && f.descriptor == descriptor
	switch {
	case known && !retry, f == nil && (absent(err) || w.unseen != "" && !retry):
	case known:
		w.scan(r.path, pass{never, always})
	default:
		w.forget(r.path, true)
		if err == nil {
			w.ignore(r.path)
		}
		w.scan(r.path, pass{never, r.since})
	}
	if r.absent && err == nil {
		w.found = append(w.found, r.path)
	}
	r.since, r.absent = always, absent(err)
}

// read handles the events in a buffer.
func (w *Watcher) read(buffer []byte) {
	for len(buffer) >= unix.SizeofInotifyEvent {
		descriptor := int32(binary.NativeEndian.Uint32(buffer[0:4])) //nolint:gosec // the kernel's type
		mask := binary.NativeEndian.Uint32(buffer[4:8])
		length := int(binary.NativeEndian.Uint32(buffer[12:16]))
		rest := buffer[unix.SizeofInotifyEvent:]
		if length > len(rest) {
			return
		}
		w.handle(descriptor, mask, string(bytes.TrimRight(rest[:length], "\x00")))
		buffer = rest[length:]
	}
}

func (w *Watcher) handle(descriptor int32, mask uint32, name string) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		for _, r := range w.roots {
			w.scan(r.path, pass{w.calm.Add(-timestamps), always}) // the kernel has dropped events, because too many files changed at once
		}
		return
	}
	for _, path := range slices.Clone(w.paths[descriptor]) {
		f := w.folders[path]
		switch {
		case f == nil: // the previous path contains this one
		case mask&unix.IN_IGNORED != 0:
			w.forget(path, true) // the folder does not exist any more, or its file system was unmounted
		case name != "":
			w.handleName(f, path, name, mask)
		}
	}
}

// handleName handles an event about a name in a folder.
func (w *Watcher) handleName(f *folder, folder, name string, mask uint32) {
	path := filepath.Join(folder, name)
	directory := mask&unix.IN_ISDIR != 0
	_, known := f.names[name]
	switch {
	case directory && w.skips(path):
		if mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
			w.addPackages(path, true)
		}
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		w.remove(f, name)
		if directory {
			w.forget(path, true)
		}
		w.change(path, Deleted)
	case directory:
		w.remember(f, name, true)
		w.change(path, Created)
		w.scan(path, pass{never, always})
	case known:
		w.change(path, Changed)
	default:
		w.remember(f, name, false)
		w.change(path, Created)
	}
}

// skips reports whether a folder in a root is not watched.
func (w *Watcher) skips(path string) bool { return skipped[filepath.Base(path)] || w.ignored[path] }

// remember keeps a name in a folder. It returns false if there are too many names.
func (w *Watcher) remember(f *folder, name string, directory bool) bool {
	if _, known := f.names[name]; !known {
		if w.files >= w.maxFiles {
			w.limit(fmt.Sprintf("the workspace has more than %d files: let git ignore folders that contain no sources, or serve fewer folders", w.maxFiles))
			return false
		}
		w.files++
	}
	f.names[name] = directory
	return true
}

func (w *Watcher) remove(f *folder, name string) {
	if _, known := f.names[name]; known {
		delete(f.names, name)
		w.files--
	}
}

// forget stops watching a folder and the folders in it, which are gone or have other paths now. If report is true, their files are reported as deleted.
func (w *Watcher) forget(path string, report bool) {
	f := w.folders[path]
	if f == nil {
		return
	}
	delete(w.folders, path)
	w.files -= len(f.names)
	for name, directory := range f.names {
		if directory {
			w.forget(filepath.Join(path, name), report)
		}
		if report {
			w.change(filepath.Join(path, name), Deleted)
		}
	}
	others := slices.DeleteFunc(w.paths[f.descriptor], func(other string) bool { return other == path })
	if len(others) > 0 {
		w.paths[f.descriptor] = others
		return
	}
	delete(w.paths, f.descriptor)
	_ = w.control(func(fd int) { _, _ = unix.InotifyRmWatch(fd, uint32(f.descriptor)) }) //nolint:gosec // the kernel's type
}

// timestamps is how much older than its change the time of a file may be, because file systems and the kernel round it.
const timestamps = 2 * time.Second

// pass is which files scan reports: known files that were changed at the time known or later, and files in a folder that was not watched that were changed at the
// time fresh or later. A new file in a folder that was watched is always reported, and so is a file that is gone.
type pass struct{ known, fresh time.Time }

// Times for a pass.
var always, never = time.Time{}, time.Unix(1<<40, 0)

// scan watches a folder and the folders in it, and reports how their files differ from what is known.
func (w *Watcher) scan(path string, p pass) {
	f, watched := w.watch(path)
	if f == nil {
		return
	}
	entries, err := os.ReadDir(path) // after the folder is watched, so that no change between the two is missed
	if err != nil {
		return // removed, which the kernel reports, or unreadable, also for the language server
	}
	gone := maps.Clone(f.names)
	for _, entry := range entries {
		child := filepath.Join(path, entry.Name())
		if !entry.IsDir() || !w.skips(child) {
			delete(gone, entry.Name())
			w.scanEntry(f, watched, child, entry, p)
		} else {
			w.addPackages(child, watched || p.fresh.Equal(always))
		}
	}
	for name := range gone {
		w.remove(f, name)
		w.forget(filepath.Join(path, name), true)
		w.change(filepath.Join(path, name), Deleted)
	}
}

// scanEntry scans a file or folder in a folder. watched reports whether the folder was watched before.
func (w *Watcher) scanEntry(f *folder, watched bool, path string, entry fs.DirEntry, p pass) {
	wasDirectory, known := f.names[entry.Name()]
	if wasDirectory && !entry.IsDir() {
		w.forget(path, true)
	}
	remembered := w.remember(f, entry.Name(), entry.IsDir())
	switch {
	case !known && remembered && (watched || changed(entry, p.fresh)):
		w.change(path, Created)
	case (known || !remembered) && !entry.IsDir() && changed(entry, p.known):
		w.change(path, Changed)
	}
	if entry.IsDir() {
		w.scan(path, p)
	}
}

// changed reports whether a file, its name or its metadata were changed at a time or later. Programs can set the time of the last write, but not this one.
func changed(entry fs.DirEntry, since time.Time) bool {
	if since.Equal(always) || since.Equal(never) {
		return since.Equal(always)
	}
	info, err := entry.Info()
	if err != nil {
		return true // removed meanwhile
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || !time.Unix(stat.Ctim.Unix()).Before(since)
}

// watch watches one folder. It returns nil if the folder does not exist, or if no more folders can be watched. watched reports whether the folder was watched already.
func (w *Watcher) watch(path string) (f *folder, watched bool) {
	at := path
	if slices.ContainsFunc(w.roots, func(r *root) bool { return r.path == path }) {
		at += "/" // a root may be a symbolic link
	}
	before := w.folders[path]
	if before == nil && len(w.folders) >= w.maxFolders {
		w.limit(fmt.Sprintf("the workspace has more than %d folders: let git ignore folders that contain no sources, or serve fewer folders", w.maxFolders))
		return nil, false
	}
	descriptor, err := w.inotify(at)
	if before != nil && (err != nil || before.descriptor != descriptor) {
		w.forget(path, true)
	}
	switch {
	case absent(err):
		return nil, false
	case errors.Is(err, unix.ENOSPC):
		w.limit("no more folders can be watched on this machine: raise fs.inotify.max_user_watches")
		return nil, false
	case err != nil:
		w.limit(fmt.Sprintf("cannot watch a folder: %v", err))
		return nil, false
	case before != nil && before.descriptor == descriptor:
		return before, true
	}
	f = &folder{descriptor: descriptor, names: map[string]bool{}}
	w.folders[path] = f
	w.paths[descriptor] = append(w.paths[descriptor], path)
	return f, false
}

// absent reports whether there is no folder that the language server can read.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// limit records why changes may be missed. The watcher tries again after retryPeriod.
func (w *Watcher) limit(why string) {
	if w.unseen == "" || !w.limited {
		w.unseen, w.retryAt = why, time.Now().Add(retryPeriod)
	}
	w.limited = true
}

func (w *Watcher) inotify(path string) (descriptor int32, err error) {
	added := 0
	failed := w.control(func(fd int) { added, err = unix.InotifyAddWatch(fd, path, events) })
	return int32(added), errors.Join(failed, err) //nolint:gosec // the kernel's type
}

// control calls a function with the inotify instance, unless the watcher is closed.
func (w *Watcher) control(call func(fd int)) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { call(int(fd)) })
}

// ignore reads from git which folders in a work tree are ignored. It does nothing without git or a work tree.
func (w *Watcher) ignore(root string) {
	maps.DeleteFunc(w.ignored, func(path string, _ bool) bool { return within(path, root) })
	ctx, cancel := context.WithTimeout(context.Background(), gitPatience)
	defer cancel()
	// The configuration of a repository can name programs, which must not run here: in core.fsmonitor, and in the remote of a partial clone, from which git fetches
	// missing objects. git refuses the repository of another user, but with SUDO_UID it would accept that of the user who called sudo.
	git := exec.CommandContext(ctx, "git", "-c", "core.fsmonitor=false", "-C", root, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
	git.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "SUDO_UID=") })
	git.Env = append(git.Env, "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none") // git before 2.45 may know only the second one
	var output bounded
	git.Stdout = &output
	// The multiplexer reaps all of its children to notice the exit of the language server, so the exit status of git may be lost. Its output is complete
	// nevertheless, and empty after a failure.
	if err := git.Run(); err != nil && !errors.Is(err, unix.ECHILD) || ctx.Err() != nil {
		return
	}
	for path := range bytes.SplitSeq(output.text, []byte{0}) {
		if folder, ok := bytes.CutSuffix(path, []byte("/")); ok && len(w.ignored) < maxFolders {
			w.ignored[filepath.Join(root, string(folder))] = true
		}
	}
}

// bounded keeps the first bytes that are written to it.
type bounded struct{ text []byte }

const maxIgnored = 16 << 20

func (b *bounded) Write(p []byte) (int, error) {
	b.text = append(b.text, p[:min(len(p), maxIgnored-len(b.text))]...)
	return len(p), nil
}
