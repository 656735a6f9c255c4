// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/need"
)

// recorder is a watcher and its reports.
type recorder struct {
	*WithT
	*Watcher

	busy atomic.Int64 // reports that wait for the lock

	mu      sync.Mutex
	all     batch // the result does not depend on how many reports there are
	reports []Report
}

func (r *recorder) receive(report Report) {
	r.busy.Add(1)
	defer r.busy.Add(-1)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, change := range report.Changes {
		r.all.add(change.Path, change.Kind)
	}
	r.reports = append(r.reports, report)
}

func (r *recorder) last() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.reports) == 0 {
		return Report{}
	}
	return r.reports[len(r.reports)-1]
}

// sync returns the changes that were reported since the previous call, when everything was reported that has changed until now.
func (r *recorder) sync() map[string]Kind {
	n := r.Sync()
	r.Eventually(func() int64 { return r.last().Synced }).WithTimeout(time.Minute).Should(BeNumerically(">=", n))
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]Kind{}
	for _, change := range r.all.take() {
		all[change.Path] = change.Kind
	}
	return all
}

func (r *recorder) write(path string) { r.Expect(os.WriteFile(path, []byte("x"), 0o600)).To(Succeed()) }

// start starts a watcher. prepare, if not nil, is called before.
func start(t *testing.T, prepare func(*recorder), folders ...string) *recorder {
	t.Helper()
	r, before := &recorder{WithT: NewWithT(t)}, goleak.IgnoreCurrent()
	var err error
	r.Watcher, err = open(folders, time.Now(), r.receive)
	r.Expect(err).NotTo(HaveOccurred())
	if prepare != nil {
		prepare(r)
	}
	go r.run()
	t.Cleanup(func() {
		r.Close()
		r.Expect(goleak.Find(before)).To(Succeed())
	})
	r.sync()
	return r
}

func TestWatcher_ReportsChanges(t *testing.T) {
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	for _, dir := range []string{"sub", "node_modules", "old"} {
		if err := os.Mkdir(path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"changed", "gone", "renamed", "old/file"} {
		if err := os.WriteFile(path(file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, nil, folder)
	g := r.WithT
	g.Expect(os.WriteFile(path("changed"), []byte("x"), 0o600)).To(Succeed())
	g.Expect(os.Remove(path("gone"))).To(Succeed())
	g.Expect(os.Rename(path("renamed"), path("sub/renamed"))).To(Succeed())
	g.Expect(os.MkdirAll(path("new/deep"), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(path("new/deep/file"), nil, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(path("node_modules/file"), nil, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(path("last"), nil, 0o600)).To(Succeed())
	g.Expect(r.sync()).To(Equal(map[string]Kind{
		path("changed"): Changed, path("gone"): Deleted, path("renamed"): Deleted, path("sub/renamed"): Created, path("new"): Created, path("new/deep"): Created,
		path("new/deep/file"): Created, path("last"): Created,
	}))

	outside := filepath.Join(t.TempDir(), "old")
	g.Expect(os.Rename(path("old"), outside)).To(Succeed())
	g.Expect(r.sync()).To(Equal(map[string]Kind{path("old"): Deleted, path("old/file"): Deleted}))
	g.Expect(os.WriteFile(filepath.Join(outside, "file"), []byte("x"), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(path("new/deep/file"), []byte("x"), 0o600)).To(Succeed())
	g.Expect(r.sync()).To(Equal(map[string]Kind{path("new/deep/file"): Changed}), "new folders are watched, and the folder that was moved away is not")
}

// Without Sync, changes are reported when they have ended, or after patience.
func TestWatcher_ReportsWithoutSync(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	r := start(t, nil, folder)
	r.Expect(r.last().Absent).To(ConsistOf(folder))
	r.Expect(os.Mkdir(folder, 0o700)).To(Succeed())
	r.Eventually(r.last).WithTimeout(30 * time.Second).Should(And(HaveField("Found", ConsistOf(folder)), HaveField("Absent", BeEmpty())))
	r.write(filepath.Join(folder, "file"))
	r.Eventually(r.last).WithTimeout(30 * time.Second).Should(HaveField("Changes", ConsistOf(Change{filepath.Join(folder, "file"), Created})))
	r.Expect(r.last().Found).To(BeEmpty())
	r.write(filepath.Join(folder, "file"))
	r.Eventually(r.last).WithTimeout(30 * time.Second).Should(HaveField("Changes", ConsistOf(Change{filepath.Join(folder, "file"), Changed})))
	r.Expect(os.RemoveAll(folder)).To(Succeed())
	r.Eventually(r.last).WithTimeout(30 * time.Second).Should(HaveField("Absent", ConsistOf(folder)))
}

func TestWatcher_SkipsWhatGitIgnores(t *testing.T) {
	folder := t.TempDir()
	g := NewWithT(t)
	g.Expect(exec.Command("git", "-C", folder, "init", "-q").Run()).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(folder, ".gitignore"), []byte("/build/\n"), 0o600)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Join(folder, "build"), 0o700)).To(Succeed())
	trap := filepath.Join(t.TempDir(), "ran")
	g.Expect(exec.Command("git", "-C", folder, "config", "core.fsmonitor", "touch "+trap+"; false").Run()).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(folder, "build", "old"), nil, 0o600)).To(Succeed())
	r := start(t, nil, folder)
	g.Expect(os.WriteFile(filepath.Join(folder, "build", "new"), nil, 0o600)).To(Succeed())
	last := filepath.Join(folder, "last")
	g.Expect(os.WriteFile(last, nil, 0o600)).To(Succeed())
	g.Expect(r.sync()).To(Equal(map[string]Kind{last: Created}))
	g.Expect(trap).NotTo(BeAnExistingFile(), "a program from the configuration of the repository ran")
}

// git fetches a missing object of a partial clone with a program that the configuration of the repository names.
func TestWatcher_RunsNoProgramOfAPartialClone(t *testing.T) {
	folder := t.TempDir()
	g := NewWithT(t)
	trap := filepath.Join(t.TempDir(), "ran")
	git := func(args ...string) string {
		output, err := exec.Command("git", append([]string{"-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...).CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(output))
		return strings.TrimSpace(string(output))
	}
	git("init", "-q")
	g.Expect(os.WriteFile(filepath.Join(folder, ".gitignore"), []byte("/build/\n"), 0o600)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Join(folder, "build"), 0o700)).To(Succeed())
	git("add", "-A")
	git("commit", "-q", "-m", "first")
	blob := git("rev-parse", "HEAD:.gitignore")
	git("update-index", "--skip-worktree", ".gitignore")
	g.Expect(os.Remove(filepath.Join(folder, ".gitignore"))).To(Succeed())
	g.Expect(os.Remove(filepath.Join(folder, ".git", "objects", blob[:2], blob[2:]))).To(Succeed())
	for key, value := range map[string]string{
		"core.repositoryFormatVersion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true", "remote.origin.url": folder,
		"remote.origin.uploadpack": "touch " + trap + "; false",
	} {
		git("config", key, value)
	}
	r := start(t, nil, folder)
	last := filepath.Join(folder, "last")
	g.Expect(os.WriteFile(last, nil, 0o600)).To(Succeed())
	g.Expect(r.sync()).To(HaveKeyWithValue(last, Created), "the folder is watched nevertheless")
	g.Expect(trap).NotTo(BeAnExistingFile(), "a program from the configuration of the repository ran")
	_ = exec.Command("git", "-C", folder, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory").Run() // fails
	g.Expect(trap).To(BeAnExistingFile(), "git alone runs the program")
}

func TestWatcher_ReportsManyChangesAtOnce(t *testing.T) {
	folder := t.TempDir()
	r := start(t, nil, folder)
	before := len(r.reports)
	const files = 10000
	for i := range files {
		r.Expect(os.WriteFile(filepath.Join(folder, fmt.Sprint(i)), nil, 0o600)).To(Succeed())
	}
	r.Expect(r.sync()).To(HaveLen(files))
	r.Expect(len(r.reports) - before).To(BeNumerically("<=", 20))
}

// The path of a folder of the workspace leads to another folder than before.
func TestWatcher_FollowsRoots(t *testing.T) {
	for name, test := range map[string]struct {
		prepare, change func(w *world)
		want            map[string]Kind
	}{
		"removed": {(*world).standard, func(w *world) { w.remove("a/b/folder") }, map[string]Kind{"same": Deleted, "old": Deleted, "sub/file": Deleted, "sub": Deleted}},
		"removed and made again": {(*world).standard, func(w *world) {
			w.remove("a/b/folder")
			w.make("a/b/folder/same", "a/b/folder/new")
		}, map[string]Kind{"same": Changed, "new": Created, "old": Deleted, "sub": Deleted, "sub/file": Deleted}},
		"replaced by another folder": {(*world).standard, func(w *world) {
			w.make("other/same", "other/new")
			w.rename("a/b/folder", "before")
			w.rename("other", "a/b/folder")
		}, map[string]Kind{"same": Changed, "new": Created, "old": Deleted, "sub": Deleted, "sub/file": Deleted}},
		"a parent removed and made again": {(*world).standard, func(w *world) {
			w.remove("a")
			w.make("a/b/folder/same", "a/b/folder/new")
		}, map[string]Kind{"same": Changed, "new": Created, "old": Deleted, "sub": Deleted, "sub/file": Deleted}},
		"a parent replaced": {(*world).standard, func(w *world) {
			w.make("other/b/folder/same", "other/b/folder/sub/file")
			w.rename("a", "before")
			w.rename("other", "a")
		}, map[string]Kind{"same": Changed, "old": Deleted, "sub": Changed, "sub/file": Changed}},
		"replaced by a file": {(*world).standard, func(w *world) {
			w.rename("a/b/folder", "before")
			w.make("a/b/folder")
		}, map[string]Kind{"same": Deleted, "old": Deleted, "sub": Deleted, "sub/file": Deleted}},
		"a symbolic link": {func(w *world) {
			w.make("one/same", "one/old", "a/b/file")
			w.link("one", "a/b/folder")
		}, func(w *world) {
			w.make("one/new")
		}, map[string]Kind{"new": Created}},
		"a symbolic link that is switched": {func(w *world) {
			w.make("one/same", "one/old", "two/same", "two/new", "a/b/file")
			w.link("one", "a/b/folder")
		}, func(w *world) {
			w.link("two", "next")
			w.rename("next", "a/b/folder")
		}, map[string]Kind{"same": Changed, "new": Created, "old": Deleted}},
		"a symbolic link in the parents that is switched": {func(w *world) {
			w.make("one/folder/same", "one/folder/old", "two/folder/same", "two/folder/new", "a/file")
			w.link("one", "a/b")
		}, func(w *world) {
			w.link("two", "next")
			w.rename("next", "a/b")
		}, map[string]Kind{"same": Changed, "new": Created, "old": Deleted}},
		"a symbolic link whose target is made later": {func(w *world) {
			w.make("a/b/file")
			w.link("one", "a/b/folder")
		}, func(w *world) { w.make("one/new") }, map[string]Kind{"new": Created}},
		"made later, with its parents": {func(*world) {}, func(w *world) { w.make("a/b/folder/sub/new") }, map[string]Kind{"sub": Created, "sub/new": Created}},
		"moved away and back": {(*world).standard, func(w *world) {
			w.rename("a/b/folder", "before")
			w.make("before/new")
			w.rename("before", "a/b/folder")
		}, map[string]Kind{"new": Created}},
		"sub-folder removed and made again": {(*world).standard, func(w *world) {
			w.remove("a/b/folder/sub")
			w.make("a/b/folder/sub/new")
		}, map[string]Kind{"sub": Changed, "sub/new": Created, "sub/file": Deleted}},
		"a file replaced by a folder": {(*world).standard, func(w *world) {
			w.make("other/new")
			w.remove("a/b/folder/old")
			w.rename("other", "a/b/folder/old")
		}, map[string]Kind{"old": Changed, "old/new": Created}},
		"a sub-folder replaced by a file": {(*world).standard, func(w *world) {
			w.remove("a/b/folder/sub")
			w.make("a/b/folder/sub")
		}, map[string]Kind{"sub": Changed, "sub/file": Deleted}},
		"sub-folder replaced": {(*world).standard, func(w *world) {
			w.make("other/file")
			w.rename("a/b/folder/sub", "before")
			w.rename("other", "a/b/folder/sub")
		}, map[string]Kind{"sub": Changed, "sub/file": Changed}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{WithT: NewWithT(t), folder: t.TempDir()}
			test.prepare(w)
			r := start(t, nil, w.path("a/b/folder"))
			for range 3 { // also the last folder is watched
				test.change(w)
				found := r.sync()
				for name, kind := range test.want {
					r.Expect(found).To(HaveKeyWithValue(w.path("a/b/folder/"+name), kind))
					delete(found, w.path("a/b/folder/"+name))
				}
				r.Expect(found).To(Or(BeEmpty(), HaveEach(Changed)), "a file counts as changed if the watcher checks the folder while it is absent")
				w.remove("a", "before", "other", "one", "two")
				r.sync()
				w.make("a/b/folder/probe")
				r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("a/b/folder/probe"): Created}))
				w.remove("a")
				r.sync()
				test.prepare(w)
				r.sync()
			}
		})
	}
}

// world is a folder in which a test makes and removes files.
type world struct {
	*WithT
	folder string
}

func (w *world) path(name string) string { return filepath.Join(w.folder, name) }
func (w *world) standard()               { w.make("a/b/folder/same", "a/b/folder/old", "a/b/folder/sub/file") }
func (w *world) rename(from, to string)  { w.Expect(os.Rename(w.path(from), w.path(to))).To(Succeed()) }
func (w *world) link(target, name string) {
	w.Expect(os.Symlink(w.path(target), w.path(name))).To(Succeed())
}

func (w *world) remove(names ...string) {
	for _, name := range names {
		w.Expect(os.RemoveAll(w.path(name))).To(Succeed())
	}
}

// make makes files and their parents. The files seem to be old.
func (w *world) make(names ...string) {
	for _, name := range names {
		w.Expect(os.MkdirAll(filepath.Dir(w.path(name)), 0o700)).To(Succeed())
		w.Expect(os.WriteFile(w.path(name), nil, 0o600)).To(Succeed())
		w.Expect(os.Chtimes(w.path(name), time.Unix(1, 0), time.Unix(1, 0))).To(Succeed())
	}
}

// Folders with installed packages are too large to watch, but the watcher notices that a package was installed, updated or removed.
func TestWatcher_NoticesInstalledPackages(t *testing.T) {
	w := &world{WithT: NewWithT(t), folder: t.TempDir()}
	node, python := w.path("node_modules"), w.path(".venv")
	w.make("node_modules/old/index.js", "node_modules/@types/node/index.d.ts", ".venv/lib/python3.11/site-packages/old/__init__.py", "sub/file")
	r := start(t, nil, w.folder)
	installed := func() (all []string) {
		r.mu.Lock()
		before := len(r.reports)
		r.mu.Unlock()
		r.sync()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, report := range r.reports[before:] {
			all = append(all, report.Installed...)
		}
		return all
	}
	r.Expect(installed()).To(BeEmpty())
	for name, test := range map[string]struct {
		change func()
		want   string
	}{
		"installed":                   {func() { w.make("node_modules/new/index.js") }, node},
		"installed in a scope":        {func() { w.make("node_modules/@types/new/index.d.ts") }, node},
		"installed in a new scope":    {func() { w.make("node_modules/@new/new/index.d.ts") }, node},
		"updated":                     {func() { w.remove("node_modules/old"); w.make("node_modules/old/index.js") }, node},
		"removed":                     {func() { w.remove("node_modules/@types/node") }, node},
		"for Python":                  {func() { w.make(".venv/lib/python3.11/site-packages/new.py") }, python},
		"removed with everything":     {func() { w.remove(".venv") }, python},
		"in a new folder":             {func() { w.make("sub/node_modules/new/index.js") }, w.path("sub/node_modules")},
		"in a new folder of packages": {func() { w.make("more/deep/venv/lib/python3.12/site-packages/new.py") }, w.path("more/deep/venv")},
	} {
		test.change()
		w.Expect(installed()).To(Equal([]string{test.want}), name)
	}
	w.make("node_modules/.vite/deps/react.js", "node_modules/.cache/file", "file")
	w.Expect(installed()).To(BeEmpty(), "caches")
}

func TestWatcher_NoticesMounts(t *testing.T) {
	need.Root(t, "mount a folder")
	w := &world{WithT: NewWithT(t), folder: t.TempDir()}
	w.make("root/same", "root/old", "other/same", "other/new")
	r := start(t, nil, w.path("root"))
	if err := unix.Mount(w.path("other"), w.path("root"), "", unix.MS_BIND, ""); err != nil {
		need.Machine(t, fmt.Errorf("a folder cannot be mounted here: %w", err))
	}
	mounted := true
	defer func() {
		if mounted {
			_ = unix.Unmount(w.path("root"), unix.MNT_DETACH)
		}
	}()
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("root/same"): Changed, w.path("root/new"): Created, w.path("root/old"): Deleted}))
	w.make("other/newest")
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("root/newest"): Created}))
	r.Expect(unix.Unmount(w.path("root"), 0)).To(Succeed())
	mounted = false
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("root/same"): Changed, w.path("root/new"): Deleted, w.path("root/newest"): Deleted, w.path("root/old"): Created}))
	w.make("root/last")
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("root/last"): Created}))
}

func TestWatcher_RootsMayOverlap(t *testing.T) {
	w := &world{WithT: NewWithT(t), folder: t.TempDir()}
	w.make("one/sub/file", "other/file")
	w.link("one", "link")
	r := start(t, nil, w.path("one"), w.path("one/sub"), w.path("link"))
	w.make("one/sub/new")
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("one/sub/new"): Created, w.path("link/sub/new"): Created}))
	w.remove("link")
	r.Expect(r.sync()).To(HaveKeyWithValue(w.path("link/sub/new"), Deleted))
	w.make("one/sub/newest")
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("one/sub/newest"): Created}))
	w.remove("one")
	w.make("one/sub/newest")
	r.Expect(r.sync()).To(And(HaveKeyWithValue(w.path("one/sub/newest"), Changed), HaveKeyWithValue(w.path("one/sub/file"), Deleted)))
	w.remove("one/sub/newest")
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("one/sub/newest"): Deleted}))
}

func TestWatcher_SetFolders(t *testing.T) {
	w := &world{WithT: NewWithT(t), folder: t.TempDir()}
	w.make("one/sub/file", "two/file")
	r := start(t, nil, w.path("one"))
	r.SetFolders([]string{w.path("two") + "/", w.path("one")})
	r.sync()
	w.make("one/new", "two/new")
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("one/new"): Created, w.path("two/new"): Created}))
	r.SetFolders([]string{w.path("two")})
	r.Expect(r.sync()).To(BeEmpty(), "the files still exist")
	w.make("one/newest", "one/sub/newest")
	r.Expect(r.sync()).To(BeEmpty())
	r.SetFolders([]string{w.path("one"), w.path("one/sub")})
	r.sync()
	r.SetFolders([]string{w.path("one")})
	r.sync()
	w.make("one/sub/last")
	r.Expect(r.sync()).To(Equal(map[string]Kind{w.path("one/sub/last"): Created}))
}

// The language server has started before the watcher, and may have read a file before it changed.
func TestWatcher_ReportsChangesSinceTheServerStarted(t *testing.T) {
	folder := t.TempDir()
	r := &recorder{WithT: NewWithT(t)}
	r.write(filepath.Join(folder, "file"))
	var err error
	r.Watcher, err = Start([]string{folder}, time.Now().Add(-time.Second), r.receive)
	r.Expect(err).NotTo(HaveOccurred())
	defer r.Close()
	r.Expect(r.sync()).To(HaveKey(filepath.Join(folder, "file")))
	later := &recorder{WithT: r.WithT}
	later.Watcher, err = Start([]string{folder}, time.Now().Add(time.Minute), later.receive)
	r.Expect(err).NotTo(HaveOccurred())
	defer later.Close()
	r.Expect(later.sync()).To(BeEmpty(), "the server has read it")
}

// The kernel drops events if too many files change while the watcher is busy.
func TestWatcher_FindsChangesThatKernelDropped(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	w := &world{WithT: NewWithT(t), folder: t.TempDir()}
	w.Expect(err).NotTo(HaveOccurred())
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	w.Expect(err).NotTo(HaveOccurred())
	w.make("noise/file", "changed", "gone", "sub/gone", "sub/replaced", "moved/file", "other/replaced")
	r := start(t, nil, w.folder)
	r.mu.Lock() // blocks the watcher in its next report
	w.make("noise/first")
	r.Eventually(r.busy.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", 0))
	for i := range limit/2 + 1 { // two events each
		name := w.path("noise/" + strconv.Itoa(i%2))
		w.Expect(os.WriteFile(name, nil, 0o600)).To(Succeed())
		w.Expect(os.Remove(name)).To(Succeed())
	}
	w.make("changed", "new/deep/file")
	w.remove("gone", "sub")
	w.rename("other", "sub")
	w.rename("moved", "renamed")
	r.mu.Unlock()
	all := r.sync()
	for name, kind := range map[string]Kind{
		"changed": Changed, "new/deep/file": Created, "gone": Deleted, "sub/gone": Deleted, "sub/replaced": Changed, "other/replaced": Deleted, "moved/file": Deleted,
		"renamed/file": Created,
	} {
		w.Expect(all).To(HaveKeyWithValue(w.path(name), kind))
	}
	w.make("new/deep/last", "sub/last")
	w.Expect(r.sync()).To(Equal(map[string]Kind{w.path("new/deep/last"): Created, w.path("sub/last"): Created}))
}

func TestWatcher_SaysWhenItMayMissChanges(t *testing.T) {
	for name, test := range map[string]struct {
		set  func(*Watcher)
		want string
	}{
		"folders": {func(w *Watcher) { w.maxFolders = 3 }, "more than 3 folders"},
		"files":   {func(w *Watcher) { w.maxFiles = 4 }, "more than 4 files"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{WithT: NewWithT(t), folder: t.TempDir()}
			w.make("root/one/file", "root/two/file", "root/zero/file")
			r := start(t, func(r *recorder) { test.set(r.Watcher) }, w.path("root"))
			r.Expect(r.last().Unseen).NotTo(BeEmpty())
			w.make("root/one/more", "root/three/file")
			r.sync()
			r.Expect(r.last().Unseen).To(ContainSubstring(test.want))
			w.remove("root/two", "root/three", "root/one/more")
			r.sync()
			r.Expect(r.last().Unseen).NotTo(BeEmpty(), "not everything was read again")
			r.SetFolders([]string{w.path("root"), w.path("other")}) // like retryPeriod
			r.sync()
			r.Expect(r.last().Unseen).To(BeEmpty())
			w.make("root/one/last")
			r.Expect(r.sync()).To(HaveKey(w.path("root/one/last")))
		})
	}
}

// limitedBy is the environment variable of a test process with few watches.
const limitedBy = "BERTH_TEST_INOTIFY_WATCHES"

// TestWatcher_SaysWhenTheKernelWatchesNoMoreFolders runs itself in a user namespace, whose limit of watches a test can set.
func TestWatcher_SaysWhenTheKernelWatchesNoMoreFolders(t *testing.T) {
	g := NewWithT(t)
	limit := func(n string) {
		g.Expect(os.WriteFile("/proc/sys/user/max_inotify_watches", []byte(n), 0o600)).To(Succeed())
	}
	if os.Getenv(limitedBy) == "" {
		command := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		command.Env = append(os.Environ(), limitedBy+"=3")
		command.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		output, err := command.CombinedOutput()
		if len(output) == 0 && err != nil {
			need.Machine(t, fmt.Errorf("user namespaces are not permitted here: %w", err))
		}
		g.Expect(err).NotTo(HaveOccurred(), string(output))
		g.Expect(string(output)).To(ContainSubstring("--- PASS: " + t.Name()))
		return
	}
	limit(os.Getenv(limitedBy))
	w := &world{WithT: g, folder: t.TempDir()}
	w.make("root/one/file", "root/two/file", "root/three/file")
	r := start(t, nil, w.path("root"))
	g.Expect(r.last().Unseen).To(ContainSubstring("fs.inotify.max_user_watches"))
	limit("100")
	r.SetFolders([]string{w.path("root"), w.path("other")}) // like retryPeriod
	r.sync()
	g.Expect(r.last().Unseen).To(BeEmpty())
	for _, folder := range []string{"one", "two", "three"} {
		w.make("root/" + folder + "/new")
		g.Expect(r.sync()).To(HaveKey(w.path("root/" + folder + "/new")))
	}
}

func TestBatch_KeepsResultOfSeveralChanges(t *testing.T) {
	for name, test := range map[string]struct {
		kinds []Kind
		want  Kind
	}{
		"created and written":   {[]Kind{Created, Changed}, Created},
		"replaced":              {[]Kind{Deleted, Created, Changed}, Changed},
		"created and deleted":   {[]Kind{Created, Deleted}, Deleted},
		"written several times": {[]Kind{Changed, Changed}, Changed},
	} {
		var b batch
		for _, kind := range test.kinds {
			b.add("/a", kind)
		}
		NewWithT(t).Expect(b.take()).To(Equal([]Change{{Path: "/a", Kind: test.want}}), name)
		NewWithT(t).Expect(b.take()).To(BeEmpty())
	}
}

// TestIgnore_WhenTheExitOfGitIsReapedElsewhere reaps all children of this process, as the multiplexer does to notice the exit of a language server.
func TestIgnore_WhenTheExitOfGitIsReapedElsewhere(t *testing.T) {
	g := NewWithT(t)
	folder := t.TempDir()
	g.Expect(exec.Command("git", "-C", folder, "init", "-q").Run()).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(folder, ".gitignore"), []byte("/build/\n"), 0o600)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Join(folder, "build"), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(folder, "build", "made"), nil, 0o600)).To(Succeed())
	done := make(chan struct{})
	var reaper sync.WaitGroup
	reaper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if _, err := unix.Wait4(-1, nil, 0, nil); err != nil { // there is no child
					runtime.Gosched()
				}
			}
		}
	})
	defer reaper.Wait()
	defer close(done)
	for range 20 {
		reports := make(chan Report, 10)
		w, err := Start([]string{folder}, time.Now(), func(report Report) { reports <- report })
		g.Expect(err).NotTo(HaveOccurred())
		w.Sync()
		g.Eventually(reports).Should(Receive())
		w.Close()
		g.Expect(w.ignored).To(HaveKey(filepath.Join(folder, "build")))
	}
}
