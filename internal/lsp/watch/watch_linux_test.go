// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// recorder receives the deliveries of a watcher.
type recorder struct {
	mu    sync.Mutex
	all   map[string]Kind
	calls int
}

func (r *recorder) deliver(changes []Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	for _, change := range changes {
		r.all[change.Path] = change.Kind
	}
}

func (r *recorder) kind(path string) Kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[path]
}

func start(t *testing.T, folder string) (*WithT, *recorder) {
	t.Helper()
	g, r, before := NewWithT(t), &recorder{all: map[string]Kind{}}, goleak.IgnoreCurrent()
	w, err := Start([]string{folder}, r.deliver, func(line string) { t.Log(line) })
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		w.Close()
		g.Expect(goleak.Find(before)).To(Succeed())
	})
	// The folders are watched when a new file is noticed.
	g.Eventually(func(g Gomega) {
		probe := filepath.Join(folder, "probe")
		g.Expect(os.WriteFile(probe, nil, 0o600)).To(Succeed())
		g.Expect(r.kind(probe)).NotTo(BeZero())
	}).WithPolling(2 * quiet).Should(Succeed())
	return g, r
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
	g, r := start(t, folder)
	g.Expect(os.WriteFile(path("changed"), []byte("x"), 0o600)).To(Succeed())
	g.Expect(os.Remove(path("gone"))).To(Succeed())
	g.Expect(os.Rename(path("renamed"), path("sub/renamed"))).To(Succeed())
	g.Expect(os.MkdirAll(path("new/deep"), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(path("new/deep/file"), nil, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(path("node_modules/file"), nil, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(path("last"), nil, 0o600)).To(Succeed())
	for name, want := range map[string]Kind{
		"changed": Changed, "gone": Deleted, "renamed": Deleted, "sub/renamed": Created, "new/deep/file": Created, "last": Created,
	} {
		g.Eventually(func() Kind { return r.kind(path(name)) }).Should(Equal(want), name)
	}
	g.Expect(r.kind(path("node_modules/file"))).To(BeZero())

	outside := filepath.Join(t.TempDir(), "old")
	g.Expect(os.Rename(path("old"), outside)).To(Succeed())
	g.Eventually(func() Kind { return r.kind(path("old")) }).Should(Equal(Deleted))
	g.Expect(os.WriteFile(filepath.Join(outside, "file"), []byte("x"), 0o600)).To(Succeed())

	g.Expect(os.WriteFile(path("new/deep/file"), []byte("x"), 0o600)).To(Succeed())
	g.Eventually(func() Kind { return r.kind(path("new/deep/file")) }).Should(Equal(Changed), "new folders are watched")
	g.Expect(r.kind(path("old/file"))).To(BeZero(), "the folder is not watched any more")
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
	_, r := start(t, folder)
	g.Expect(os.WriteFile(filepath.Join(folder, "build", "new"), nil, 0o600)).To(Succeed())
	last := filepath.Join(folder, "last")
	g.Expect(os.WriteFile(last, nil, 0o600)).To(Succeed())
	g.Eventually(func() Kind { return r.kind(last) }).Should(Equal(Created))
	g.Expect(r.kind(filepath.Join(folder, "build", "new"))).To(BeZero())
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
	_, r := start(t, folder)
	last := filepath.Join(folder, "last")
	g.Expect(os.WriteFile(last, nil, 0o600)).To(Succeed())
	g.Eventually(func() Kind { return r.kind(last) }).Should(Equal(Created), "the folder is watched nevertheless")
	g.Expect(trap).NotTo(BeAnExistingFile(), "a program from the configuration of the repository ran")
	_ = exec.Command("git", "-C", folder, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory").Run() // fails
	g.Expect(trap).To(BeAnExistingFile(), "git alone runs the program")
}

func TestWatcher_DeliversManyChangesAtOnce(t *testing.T) {
	folder := t.TempDir()
	g, r := start(t, folder)
	before := r.calls
	const files = 10000
	for i := range files {
		g.Expect(os.WriteFile(filepath.Join(folder, fmt.Sprint(i)), nil, 0o600)).To(Succeed())
	}
	g.Eventually(func() Kind { return r.kind(filepath.Join(folder, fmt.Sprint(files-1))) }).WithTimeout(patience * 30).Should(Equal(Created))
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := 0
	for i := range files {
		if r.all[filepath.Join(folder, fmt.Sprint(i))] == 0 {
			missing++
		}
	}
	g.Expect(missing).To(BeZero())
	g.Expect(r.calls - before).To(BeNumerically("<=", 20))
}

func TestWatcher_FindsChangesThatKernelDropped(t *testing.T) {
	folder := t.TempDir()
	g, r := start(t, folder)
	w := &Watcher{roots: []string{folder}, folders: map[int32]string{}, ignored: map[string]bool{}, deliver: r.deliver, log: func(string) {}, full: true}
	path := filepath.Join(folder, "file")
	g.Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
	w.calm = time.Now()
	w.handle(0, unix.IN_Q_OVERFLOW, "")
	g.Expect(w.batch.take()).To(ContainElement(Change{Path: path, Kind: Changed}))
	w.calm = time.Now().Add(time.Minute)
	w.handle(0, unix.IN_Q_OVERFLOW, "")
	g.Expect(w.batch.take()).To(BeEmpty(), "changed long before")
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
		w, err := Start([]string{folder}, func([]Change) {}, func(string) {})
		g.Expect(err).NotTo(HaveOccurred())
		w.Close()
		g.Expect(w.ignored).To(HaveKey(filepath.Join(folder, "build")))
	}
}
