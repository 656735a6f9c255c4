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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// events are the events of a folder that are reported. A file counts as changed when the program that writes it closes it.
const events = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW | unix.IN_EXCL_UNLINK

// gitPatience bounds the call of git that lists ignored folders.
const gitPatience = 10 * time.Second

// Watcher watches folders. Only its goroutine uses the fields below done.
type Watcher struct {
	file    *os.File // the inotify instance
	done    chan struct{}
	deliver func([]Change)
	log     func(string)

	roots   []string
	folders map[int32]string // by watch descriptor
	ignored map[string]bool
	calm    time.Time // no change was pending at this time
	full    bool      // maxFolders or the limit of the kernel was reached
	batch   batch
}

// Start watches folders and everything in them until Close, except folders that git ignores or that contain installed packages. It returns immediately; changes
// during the first seconds of a large folder may be missed. deliver receives the changes and log messages for the operator, both in another goroutine.
func Start(folders []string, deliver func([]Change), log func(string)) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	w := &Watcher{
		file: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), deliver: deliver, log: log,
		roots: folders, calm: time.Now(), folders: map[int32]string{}, ignored: map[string]bool{},
	}
	go w.run()
	return w, nil
}

// Close stops the watcher. No change is delivered after Close has returned.
func (w *Watcher) Close() {
	_ = w.file.Close()
	<-w.done
}

func (w *Watcher) run() {
	defer close(w.done)
	for _, root := range w.roots {
		w.ignore(root)
		w.add(root+"/", never) // with the slash also if it is a symbolic link
	}
	buffer := make([]byte, 64<<10)
	var first time.Time // the time of the oldest change that is not delivered yet; zero: none
	for {
		deadline := time.Time{}
		if !first.IsZero() {
			deadline = time.Now().Add(quiet)
			if latest := first.Add(patience); latest.Before(deadline) {
				deadline = latest
			}
		}
		_ = w.file.SetReadDeadline(deadline)
		n, err := w.file.Read(buffer)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			first = time.Time{}
			w.flush()
		case err != nil:
			return // closed
		default:
			w.read(buffer[:n])
			if first.IsZero() && len(w.batch.changes) > 0 {
				first = time.Now()
			}
		}
	}
}

func (w *Watcher) flush() {
	if w.batch.lost > 0 {
		w.log(fmt.Sprintf("%d changes of files were not reported to the language server, because more than %d files changed at once", w.batch.lost, maxChanges))
	}
	if changes := w.batch.take(); len(changes) > 0 {
		w.deliver(changes)
	}
	w.calm = time.Now()
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
	folder, known := w.folders[descriptor]
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		// The kernel has dropped events, because too many files changed at once.
		for _, root := range w.roots {
			w.add(root+"/", w.calm.Add(-timestamps))
		}
		return
	case mask&unix.IN_IGNORED != 0:
		delete(w.folders, descriptor) // the folder does not exist any more
		return
	case !known || name == "":
		return
	}
	path := filepath.Join(folder, name)
	directory := mask&unix.IN_ISDIR != 0
	switch {
	case directory && (skipped[name] || w.ignored[path]):
	case directory && mask&unix.IN_MOVED_FROM != 0:
		w.forget(path)
		w.batch.move(path)
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		w.batch.add(path, Deleted)
	case directory:
		w.batch.add(path, Created)
		w.add(path, always)
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		w.batch.add(path, Created)
	default:
		w.batch.add(path, Changed)
	}
}

// forget stops watching a folder and the folders in it, which were moved away. The kernel would report their changes with their old paths.
func (w *Watcher) forget(root string) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	for descriptor, path := range w.folders {
		if path != root && !strings.HasPrefix(path, root+"/") {
			continue
		}
		delete(w.folders, descriptor)
		_ = raw.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(descriptor)) }) //nolint:gosec // the kernel's type
	}
}

// timestamps is how much older than its change the time of a file may be, because file systems and the kernel round it.
const timestamps = 2 * time.Second

// Times for add.
var always, never = time.Time{}, time.Unix(1<<40, 0)

// add watches a folder and the folders in it, and reports the files that were changed at a time or later: events from before a folder is watched are missing.
func (w *Watcher) add(root string, since time.Time) {
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // removed or unreadable: there is nothing to watch
		case !entry.IsDir():
			w.addFile(path, entry, since)
			return nil
		case path != root && (skipped[entry.Name()] || w.ignored[path]):
			return fs.SkipDir
		}
		w.watch(path)
		if w.full && since.Equal(never) {
			return fs.SkipAll
		}
		return nil
	})
}

func (w *Watcher) addFile(path string, entry fs.DirEntry, since time.Time) {
	if since.Equal(never) {
		return
	}
	if since.Equal(always) {
		w.batch.add(path, Created)
	} else if info, err := entry.Info(); err == nil && !info.ModTime().Before(since) {
		w.batch.add(path, Changed)
	}
}

// watch watches one folder, unless no more folders can be watched.
func (w *Watcher) watch(path string) {
	if w.full {
		return
	}
	descriptor, err := w.inotify(path)
	if errors.Is(err, unix.ENOSPC) || len(w.folders) >= maxFolders {
		w.full = true
		w.log(fmt.Sprintf("the language server is not told about changes on disk in all folders: %d are watched, which is the limit (of Berth, or fs.inotify.max_user_watches)", len(w.folders)))
		return
	}
	if err == nil {
		w.folders[int32(descriptor)] = path //nolint:gosec // the kernel's type
	}
}

func (w *Watcher) inotify(path string) (descriptor int, err error) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { descriptor, err = unix.InotifyAddWatch(int(fd), path, events) })
	return descriptor, errors.Join(failed, err)
}

// ignore reads from git which folders in a work tree are ignored. It does nothing without git or a work tree.
func (w *Watcher) ignore(root string) {
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
