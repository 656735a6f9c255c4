// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

const timeout = 30 * time.Second

// within runs a function and fails the test if the function does not return, for example because it opens a pipe.
func within(t *testing.T, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()
	var err error
	NewWithT(t).Eventually(done).WithTimeout(timeout).Should(Receive(&err))
	return err
}

// No function reads, writes or creates anything outside of the folder, or blocks.
func TestFolder_FollowsNoLinkAndOpensOnlyRegularFiles(t *testing.T) {
	for name, test := range map[string]struct {
		put  func(g Gomega, dir, outside string)
		file string
		link string // the link that the error must name
	}{
		"a link to a file outside": {func(g Gomega, dir, outside string) {
			g.Expect(os.Symlink(outside, filepath.Join(dir, "a"))).To(Succeed())
		}, "a", "a"},
		"a link to a file inside": {func(g Gomega, dir, _ string) { g.Expect(os.Symlink("other", filepath.Join(dir, "a"))).To(Succeed()) }, "a", "a"},
		"a dangling link":         {func(g Gomega, dir, _ string) { g.Expect(os.Symlink("../new", filepath.Join(dir, "a"))).To(Succeed()) }, "a", "a"},
		"a link to itself":        {func(g Gomega, dir, _ string) { g.Expect(os.Symlink("a", filepath.Join(dir, "a"))).To(Succeed()) }, "a", "a"},
		"a linked directory": {func(g Gomega, dir, outside string) {
			g.Expect(os.Symlink(filepath.Dir(outside), filepath.Join(dir, "d"))).To(Succeed())
		}, "d/secret", "d"},
		"a linked directory, no file": {func(g Gomega, dir, outside string) {
			g.Expect(os.Symlink(filepath.Dir(outside), filepath.Join(dir, "d"))).To(Succeed())
		}, "d/new", "d"},
		"a dangling directory":     {func(g Gomega, dir, _ string) { g.Expect(os.Symlink("../new", filepath.Join(dir, "d"))).To(Succeed()) }, "d/a", "d"},
		"a pipe":                   {func(g Gomega, dir, _ string) { g.Expect(syscall.Mkfifo(filepath.Join(dir, "a"), 0o600)).To(Succeed()) }, "a", ""},
		"a directory":              {func(g Gomega, dir, _ string) { g.Expect(os.Mkdir(filepath.Join(dir, "a"), 0o700)).To(Succeed()) }, "a", ""},
		"a file as a directory":    {func(Gomega, string, string) {}, "other/a", ""},
		"a path out of the folder": {func(Gomega, string, string) {}, "../secret", ""},
		"an absolute path":         {func(Gomega, string, string) {}, "/etc/passwd", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			above := t.TempDir()
			dir, outside := filepath.Join(above, "folder"), filepath.Join(above, "secret")
			g.Expect(os.Mkdir(dir, 0o700)).To(Succeed())
			g.Expect(os.WriteFile(outside, []byte("secret"), 0o600)).To(Succeed())
			g.Expect(os.WriteFile(filepath.Join(dir, "other"), []byte("secret"), 0o600)).To(Succeed())
			test.put(g, dir, outside)
			for what, call := range map[string]func() error{
				"read":    func() error { _, err := Read(dir, test.file, 100); return err },
				"create":  func() error { return Create(dir, test.file, []byte("x")) },
				"replace": func() error { return Replace(dir, test.file, []byte("secret"), []byte("x")) },
			} {
				err := within(t, call)
				g.Expect(err).To(HaveOccurred(), what)
				var link *LinkError
				g.Expect(errors.As(err, &link)).To(Equal(test.link != ""), "%s: %v", what, err)
				if link != nil {
					g.Expect(link.Path).To(Equal(test.link), what)
				}
			}
			for _, kept := range []string{outside, filepath.Join(dir, "other")} {
				g.Expect(os.ReadFile(kept)).To(BeEquivalentTo("secret"), kept)
			}
			g.Expect(filepath.Glob(filepath.Join(above, "new*"))).To(BeEmpty())
		})
	}
}

func TestFolder_ReadsCreatesAndReplaces(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	_, err := Read(dir, "a/b/c", 10)
	g.Expect(err).To(MatchError(fs.ErrNotExist))
	g.Expect(Replace(dir, "a/b/c", nil, []byte("x"))).To(MatchError(fs.ErrNotExist))
	g.Expect(Create(dir, "a/b/c", []byte("first"))).To(Succeed())
	g.Expect(Create(dir, "a/b/c", []byte("again"))).To(MatchError(fs.ErrExist))
	g.Expect(os.Chmod(filepath.Join(dir, "a/b/c"), 0o640)).To(Succeed())
	for _, unexpected := range []string{"", "firs", "first!", "other"} {
		g.Expect(Replace(dir, "a/b/c", []byte(unexpected), []byte("x"))).To(MatchError(ErrChanged), unexpected)
	}
	before := "first"
	for _, after := range []string{"a longer text", "short", ""} {
		g.Expect(Replace(dir, "a/b/c", []byte(before), []byte(after))).To(Succeed())
		g.Expect(Read(dir, "a/b/c", 100)).To(BeEquivalentTo(after))
		before = after
	}
	info, err := os.Stat(filepath.Join(dir, "a/b/c"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o640))
}

func TestRead_LimitsSize(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(Create(dir, "a", []byte(strings.Repeat("x", 10)))).To(Succeed())
	g.Expect(Read(dir, "a", 10)).To(HaveLen(10))
	_, err := Read(dir, "a", 9)
	g.Expect(err).To(MatchError(ContainSubstring("more than 9 bytes")))
}
