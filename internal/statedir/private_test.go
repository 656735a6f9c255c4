// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package statedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

func TestReadPrivate_ReadsOnlyFilesOfItsUser(t *testing.T) {
	for name, test := range map[string]struct {
		put     func(path string) error
		uid     int // 0: the user that runs the test
		wantErr string
	}{
		"private":      {put: func(path string) error { return CreatePrivate(path, []byte("secret")) }},
		"a link to it": {put: func(path string) error { return os.Symlink(filepath.Join(filepath.Dir(path), "other"), path) }},
		"readable by group": {put: func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("secret"), 0o600), os.Chmod(path, 0o640))
		}, wantErr: "mode 0640"},
		"readable by all": {put: func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("secret"), 0o600), os.Chmod(path, 0o604))
		}, wantErr: "chmod 600"},
		"too large":        {put: func(path string) error { return os.WriteFile(path, []byte("secret!"), 0o600) }, wantErr: "more than 6 bytes"},
		"a pipe":           {put: func(path string) error { return syscall.Mkfifo(path, 0o600) }, wantErr: "is not a regular file"},
		"a directory":      {put: func(path string) error { return os.Mkdir(path, 0o700) }, wantErr: "is not a regular file"},
		"a file of others": {put: func(path string) error { return os.WriteFile(path, []byte("secret"), 0o600) }, uid: 65534, wantErr: "belongs to user 65534"},
		"no file":          {put: func(string) error { return nil }, wantErr: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			if test.uid != 0 {
				need.Root(t, "give a file to another user")
			}
			path := filepath.Join(t.TempDir(), "token")
			g.Expect(os.WriteFile(filepath.Join(filepath.Dir(path), "other"), []byte("secret"), 0o600)).To(Succeed())
			g.Expect(test.put(path)).To(Succeed())
			if test.uid != 0 {
				g.Expect(os.Chown(path, test.uid, test.uid)).To(Succeed())
			}
			var text []byte
			done := make(chan error, 1)
			go func() {
				var err error
				text, err = ReadPrivate(path, 6)
				done <- err
			}()
			var err error
			g.Eventually(done).WithTimeout(time.Minute).Should(Receive(&err))
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(text).To(BeEquivalentTo("secret"))
		})
	}
}

func TestCreatePrivate_ReplacesNothing(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "token")
	g.Expect(os.Symlink("target", path)).To(Succeed())
	g.Expect(CreatePrivate(path, []byte("x"))).To(MatchError(fs.ErrExist), "a dangling link is not followed")
	g.Expect(os.Remove(path)).To(Succeed())
	g.Expect(CreatePrivate(path, []byte("x"))).To(Succeed())
	g.Expect(CreatePrivate(path, []byte("y"))).To(MatchError(fs.ErrExist))
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(BeEquivalentTo(0o600))
}
