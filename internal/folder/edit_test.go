// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/need"
)

// contents returns the contents of all files of a folder, so that a temporary file that was left behind shows.
func contents(g Gomega, dir string) map[string]string {
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	g.Expect(err).NotTo(HaveOccurred())
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		g.Expect(err).NotTo(HaveOccurred())
		all[entry.Name()] = string(text)
	}
	return all
}

// three returns a folder with the files a, b and c, and a change of each.
func three(t *testing.T) (dir string, changes []Change) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		NewWithT(t).Expect(os.WriteFile(filepath.Join(dir, name), []byte("old "+name), 0o640)).To(Succeed())
		changes = append(changes, Change{dir, name, []byte("old " + name), []byte("the new text of " + name)})
	}
	return dir, changes
}

var unchanged = map[string]string{"a": "old a", "b": "old b", "c": "old c"}

func TestReplaceAll_ReplacesAllFilesAndKeepsTheirAttributes(t *testing.T) {
	g := NewWithT(t)
	dir, changes := three(t)
	linked := filepath.Join(t.TempDir(), "linked")
	g.Expect(os.Link(filepath.Join(dir, "b"), linked)).To(Succeed())
	if os.Geteuid() == 0 {
		g.Expect(os.Chown(filepath.Join(dir, "c"), 1234, 5678)).To(Succeed())
	}
	owner, err := os.Stat(filepath.Join(dir, "c"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ReplaceAll(t.Context(), changes)).To(Succeed())
	g.Expect(contents(g, dir)).To(Equal(map[string]string{"a": "the new text of a", "b": "the new text of b", "c": "the new text of c"}))
	g.Expect(os.ReadFile(linked)).To(BeEquivalentTo("the new text of b"), "hard links remain")
	for _, name := range []string{"a", "b", "c"} {
		info, err := os.Stat(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o640))
	}
	now, err := os.Stat(filepath.Join(dir, "c"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now.Sys().(*syscall.Stat_t).Uid).To(Equal(owner.Sys().(*syscall.Stat_t).Uid))
	g.Expect(now.Sys().(*syscall.Stat_t).Gid).To(Equal(owner.Sys().(*syscall.Stat_t).Gid))
}

func TestReplaceAll_ChangesNothingIfOneFileCannotBeChanged(t *testing.T) {
	for name, obstruct := range map[string]func(g Gomega, path string){
		"changed": func(g Gomega, path string) { g.Expect(os.WriteFile(path, []byte("other"), 0o600)).To(Succeed()) },
		"deleted": func(g Gomega, path string) { g.Expect(os.Remove(path)).To(Succeed()) },
		"a link": func(g Gomega, path string) {
			g.Expect(os.Rename(path, path+".real")).To(Succeed())
			g.Expect(os.Symlink(path+".real", path)).To(Succeed())
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir, changes := three(t)
			obstruct(g, filepath.Join(dir, "c"))
			before := contents(g, dir)
			g.Expect(ReplaceAll(t.Context(), changes)).NotTo(Succeed())
			g.Expect(contents(g, dir)).To(Equal(before))
		})
	}
}

// A file can change between the checks and the moment in which it is replaced, for example because an editor saves it.
func TestReplaceAll_UndoesEarlierFilesIfALaterOneChanges(t *testing.T) {
	for name, save := range map[string]func(g Gomega, path string){
		"written": func(g Gomega, path string) { g.Expect(os.WriteFile(path, []byte("saved"), 0o600)).To(Succeed()) },
		"renamed": func(g Gomega, path string) {
			g.Expect(os.WriteFile(path+".saved", []byte("saved"), 0o600)).To(Succeed())
			g.Expect(os.Rename(path+".saved", path)).To(Succeed())
		},
		"linked": func(g Gomega, path string) {
			g.Expect(os.WriteFile(path, []byte("saved"), 0o600)).To(Succeed())
			g.Expect(os.Link(path, filepath.Join(filepath.Dir(filepath.Dir(path)), "link"))).To(Succeed())
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir, changes := three(t)
			g.Expect(os.Link(filepath.Join(dir, "a"), filepath.Join(t.TempDir(), "a"))).To(Succeed(), "a is written in place")
			e := &edit{roots: map[string]*os.Root{}}
			g.Expect(e.prepare(t.Context(), changes)).To(Succeed())
			save(g, filepath.Join(dir, "c"))
			g.Expect(e.commit()).To(MatchError(ErrChanged))
			g.Expect(e.end()).To(Succeed())
			g.Expect(contents(g, dir)).To(Equal(map[string]string{"a": "old a", "b": "old b", "c": "saved"}))
		})
	}
}

// A limit for the size of files fails writes like a full disk, in the middle of a text.
func TestReplaceAll_ChangesNothingOnAFullDisk(t *testing.T) {
	const folderVariable = "FULL_DISK"
	large := strings.Repeat("x", 3000)
	if dir := os.Getenv(folderVariable); dir != "" {
		g := NewWithT(t)
		err := ReplaceAll(t.Context(), []Change{{dir, "a", []byte("old a"), []byte("new a")}, {dir, "b", []byte("old b"), []byte(large)}})
		g.Expect(err).To(MatchError(syscall.EFBIG))
		g.Expect(Create(dir, "new", []byte(large))).To(MatchError(syscall.EFBIG))
		inPlace, err := os.OpenFile(filepath.Join(dir, "c"), os.O_RDWR, 0)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(replace(inPlace, []byte("old c"), []byte(large))).To(MatchError(syscall.EFBIG))
		g.Expect(inPlace.Close()).To(Succeed())
		return
	}
	for _, links := range []int{0, 1} {
		t.Run(strconv.Itoa(links)+" links", func(t *testing.T) {
			g := NewWithT(t)
			dir, _ := three(t)
			if links > 0 {
				g.Expect(os.Link(filepath.Join(dir, "b"), filepath.Join(t.TempDir(), "b"))).To(Succeed())
			}
			program, err := os.Executable()
			g.Expect(err).NotTo(HaveOccurred())
			command := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -f 2; exec "$0" -test.run 'TestReplaceAll_ChangesNothingOnAFullDisk$'`, program)
			command.Env = append(os.Environ(), folderVariable+"="+dir)
			output, err := command.CombinedOutput()
			g.Expect(err).NotTo(HaveOccurred(), string(output))
			g.Expect(contents(g, dir)).To(Equal(unchanged))
		})
	}
}

// With an attribute of the file system, not even root can write a file. The file is the last one, so the others are checked first.
func TestReplaceAll_ChangesNothingIfAFileIsImmutable(t *testing.T) {
	need.Root(t, "make a file immutable")
	g := NewWithT(t)
	dir, changes := three(t)
	if output, err := exec.CommandContext(t.Context(), "chattr", "+i", filepath.Join(dir, "c")).CombinedOutput(); err != nil {
		need.Machine(t, fmt.Errorf("chattr: %w: %s", err, output))
	}
	defer func() {
		_ = exec.CommandContext(context.WithoutCancel(t.Context()), "chattr", "-i", filepath.Join(dir, "c")).Run()
	}()
	g.Expect(ReplaceAll(t.Context(), changes)).To(MatchError(os.ErrPermission))
	g.Expect(contents(g, dir)).To(Equal(unchanged))
}

func TestReplaceAll_CallsForTheSameFoldersExcludeEachOther(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	var files []string
	for i := range 12 {
		name := fmt.Sprintf("%d/file", i%3*100+i)
		g.Expect(Create(dir, name, []byte("0"))).To(Succeed())
		files = append(files, name)
	}
	// Each writer counts up in all files, and begins again if another one was faster.
	const writers, rounds = 4, 5
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for done := 0; done < rounds; {
				now, err := Read(dir, files[0], 100)
				if err != nil {
					t.Error(err)
					return
				}
				number, _ := strconv.Atoi(string(now))
				var changes []Change
				for _, name := range files {
					changes = append(changes, Change{dir, name, now, []byte(strconv.Itoa(number + 1))})
				}
				if ReplaceAll(t.Context(), changes) == nil {
					done++
				}
			}
		})
	}
	all.Wait()
	for _, name := range files {
		g.Expect(Read(dir, name, 100)).To(BeEquivalentTo(strconv.Itoa(writers*rounds)), "no count is lost")
	}
}

func TestReplaceAll_NamesTheProcessThatItWaitsFor(t *testing.T) {
	g := NewWithT(t)
	dir, changes := three(t)
	lock, err := os.Open(dir)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = lock.Close() }()
	g.Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	g.Expect(ReplaceAll(ctx, changes)).To(MatchError(And(
		ContainSubstring("process %d (folder.test) changes files in %s", os.Getpid(), dir), ContainSubstring("nothing was written"))))
	g.Expect(contents(g, dir)).To(Equal(unchanged))
	g.Expect(unix.Flock(int(lock.Fd()), unix.LOCK_UN)).To(Succeed())
	g.Expect(ReplaceAll(t.Context(), changes)).To(Succeed())
}
