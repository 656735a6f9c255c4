// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/test/need"
)

// Whatever a program creates in place of the result file, Results returns immediately and never returns the content of another file.
func TestResults_ReadsOnlyRegularFilesWithinLimit(t *testing.T) {
	for name, test := range map[string]struct {
		put     func(g Gomega, place runtime.ResultPaths)
		problem string
		found   bool
	}{
		"nothing": {func(Gomega, runtime.ResultPaths) {}, "", false},
		"a pipe":  {func(g Gomega, place runtime.ResultPaths) { g.Expect(unix.Mkfifo(place.File, 0o600)).To(Succeed()) }, "not a regular file", true},
		"a link": {func(g Gomega, place runtime.ResultPaths) {
			g.Expect(os.Symlink("/etc/hostname", place.File)).To(Succeed())
		}, "symbolic link", true},
		"a broken link": {func(g Gomega, place runtime.ResultPaths) { g.Expect(os.Symlink("nowhere", place.File)).To(Succeed()) }, "symbolic link", true},
		"a folder":      {func(g Gomega, place runtime.ResultPaths) { g.Expect(os.Mkdir(place.File, 0o700)).To(Succeed()) }, "not a regular file", true},
		"a socket": {func(g Gomega, place runtime.ResultPaths) {
			// place.File is longer than the maximum length of a socket path.
			g.Expect(shim.InDirectory(filepath.Dir(place.File), filepath.Base(place.File), func(address *net.UnixAddr) error {
				listener, err := net.ListenUnix("unix", address)
				if err == nil {
					listener.SetUnlinkOnClose(false)
					err = listener.Close()
				}
				return err
			})).To(Succeed())
		}, "not a regular file", true},
		"too much": {func(g Gomega, place runtime.ResultPaths) {
			g.Expect(os.WriteFile(place.File, nil, 0o600)).To(Succeed())
			g.Expect(os.Truncate(place.File, 1<<30)).To(Succeed()) // a sparse file, which uses no space
		}, "1073741824 bytes; the limit is 1048576", true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			h := &Host{options: Options{StateDir: t.TempDir()}}
			g.Expect(h.preparePlace(runtime.Process{UID: "u", Results: true})).To(Succeed())
			test.put(g, h.Place("u"))
			found := h.Results("u")
			g.Expect(found.File).To(Equal(test.found))
			g.Expect(found.Head).To(BeEmpty())
			g.Expect(found.SHA256).To(BeEmpty())
			if test.problem == "" {
				g.Expect(found.Problem).To(BeEmpty())
			} else {
				g.Expect(found.Problem).To(ContainSubstring(test.problem))
			}
		})
	}
}

func TestResults_ReadsFileOfMaximumSize(t *testing.T) {
	g := NewWithT(t)
	h := &Host{options: Options{StateDir: t.TempDir()}}
	g.Expect(h.preparePlace(runtime.Process{UID: "u", Results: true})).To(Succeed())
	g.Expect(os.WriteFile(h.Place("u").File, []byte(strings.Repeat("x", runtime.MostResultBytes)), 0o600)).To(Succeed())
	found := h.Results("u")
	g.Expect(found.Problem).To(BeEmpty())
	g.Expect(found.Size).To(BeEquivalentTo(runtime.MostResultBytes))
	g.Expect(found.SHA256).To(HaveLen(64))
	g.Expect(found.Head).To(HaveLen(runtime.ResultHeadBytes))
	g.Expect(found.Artifacts).To(BeFalse())
	g.Expect(os.Mkdir(filepath.Join(h.Place("u").Artifacts, "more"), 0o700)).To(Succeed())
	g.Expect(h.Results("u").Artifacts).To(BeTrue())
}

// The owner is that of the file which is read, even if the path leads to another file in between.
func TestResultFile_ComparesOwnersOfOpenFiles(t *testing.T) {
	need.Root(t, "create files of other users")
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, fileName), []byte("secret of root"), 0o600)).To(Succeed())
	opened, err := os.Open(dir)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = opened.Close() })
	g.Expect(resultFile(opened, true).Head).To(BeEquivalentTo("secret of root"), "the directory and the file belong to root")
	g.Expect(opened.Chown(65534, 65534)).To(Succeed())
	found := resultFile(opened, true)
	g.Expect(found.Head).To(BeEmpty())
	g.Expect(found.Problem).To(ContainSubstring("does not belong to the user"))

	// The program moves its directory away and puts another one there.
	g.Expect(os.Rename(dir, dir+"-moved")).To(Succeed())
	t.Cleanup(func() { _ = os.RemoveAll(dir + "-moved") })
	g.Expect(os.Mkdir(dir, 0o700)).To(Succeed())
	g.Expect(os.Chown(dir, 65534, 65534)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, fileName), []byte("mine"), 0o600)).To(Succeed())
	g.Expect(os.Chown(filepath.Join(dir, fileName), 65534, 65534)).To(Succeed())
	found = resultFile(opened, true)
	g.Expect(found.Head).To(BeEmpty(), "the file of root is not accepted because of the owner of another file")
	g.Expect(found.Problem).To(ContainSubstring("does not belong to the user"))
}

// A program can put anything in the place of its inputs before it is started again.
func TestPreparePlace_ReplacesWhatIsInThePlaceOfInputs(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":      func(path string) error { return os.Symlink("../result", path) },
		"an input":    func(path string) error { return os.WriteFile(path, []byte("an earlier and longer input"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			h := &Host{options: Options{StateDir: t.TempDir()}}
			p := runtime.Process{UID: "u", Results: true, Inputs: map[string][]byte{"given": []byte("input")}}
			place := h.Place("u")
			g.Expect(os.MkdirAll(place.Inputs, 0o700)).To(Succeed())
			g.Expect(put(filepath.Join(place.Inputs, "given"))).To(Succeed())
			done := make(chan error, 1)
			go func() { done <- h.preparePlace(p) }()
			g.Eventually(done).WithTimeout(time.Minute).Should(Receive(BeNil()))
			g.Expect(os.ReadFile(filepath.Join(place.Inputs, "given"))).To(BeEquivalentTo("input"))
			g.Expect(place.File).NotTo(BeAnExistingFile())
		})
	}
}

// The kind passes the paths of Place to the program, so they must not depend on what exists: a program may remove its artifacts folder.
func TestPlace_DependsOnlyOnOptions(t *testing.T) {
	g := NewWithT(t)
	private := &Host{options: Options{StateDir: t.TempDir(), ResultsDir: t.TempDir()}}
	shared := &Host{options: private.options}
	shared.options.RunAs = &shim.User{Name: "other"}
	before, other := private.Place("u"), shared.Place("u")
	g.Expect(before.File).To(HavePrefix(private.options.StateDir))
	g.Expect(other.File).To(HavePrefix(private.options.ResultsDir))

	g.Expect(private.preparePlace(runtime.Process{UID: "u", Results: true})).To(Succeed())
	g.Expect(os.WriteFile(before.File, []byte("found"), 0o600)).To(Succeed())
	g.Expect(shared.Place("u")).To(Equal(other), "the manager was restarted with another RunAs")
	g.Expect(shared.Results("u")).To(And(HaveField("Paths", before), HaveField("Head", []byte("found"))), "the results of the earlier start")
	g.Expect(private.Results("u").Paths).To(BeZero())

	g.Expect(os.MkdirAll(filepath.Dir(other.File), 0o700)).To(Succeed())
	g.Expect(private.Place("u")).To(Equal(before))
	g.Expect(private.preparePlace(runtime.Process{UID: "u", Results: true})).To(Succeed())
	g.Expect(private.Results("u").Paths).To(BeZero(), "the results of a repeated start are in the directory of this start")
}

// A symbolic link to artifacts elsewhere counts as no artifacts.
func TestResults_IgnoresSymlinkedArtifacts(t *testing.T) {
	g := NewWithT(t)
	h := &Host{options: Options{StateDir: t.TempDir()}}
	g.Expect(h.preparePlace(runtime.Process{UID: "u", Results: true})).To(Succeed())
	g.Expect(os.Remove(h.Place("u").Artifacts)).To(Succeed())
	g.Expect(os.Symlink("/etc", h.Place("u").Artifacts)).To(Succeed())
	g.Expect(h.Results("u")).To(Equal(runtime.Results{}))
}

// Forget also removes directories that programs have made read-only.
func TestUnlock_MakesReadOnlyDirectoriesRemovable(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "cache")
	g.Expect(os.MkdirAll(filepath.Join(dir, "module", "v1"), 0o700)).To(Succeed())
	for _, inside := range []string{"module/v1", "module", "."} {
		g.Expect(os.Chmod(filepath.Join(dir, inside), 0)).To(Succeed())
	}
	unlock(dir)
	for _, inside := range []string{".", "module", "module/v1"} {
		info, err := os.Stat(filepath.Join(dir, inside))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(Equal(fs.FileMode(0o700)), inside)
	}
	g.Expect(removeAll(dir)).To(Succeed())
	g.Expect(dir).NotTo(BeADirectory())
}
