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

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
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
