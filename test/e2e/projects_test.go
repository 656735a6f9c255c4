// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gofrs/flock"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// installProject returns a copy of an npm project with its packages installed. The copy is made in the user's cache, once for each content of the project, and
// reused by later runs.
func installProject(ctx context.Context, source string) string {
	GinkgoHelper()
	files := os.DirFS(filepath.Join(suiteBerth.root, source))
	cache, err := os.UserCacheDir()
	Expect(err).NotTo(HaveOccurred())
	dir := filepath.Join(cache, "berth-e2e", filepath.Base(source)+"-"+fingerprint(files))
	Expect(os.MkdirAll(filepath.Dir(dir), 0o755)).To(Succeed())

	// Without the lock, concurrent runs would install into the same directory at the same time.
	lock := flock.New(dir + ".lock")
	Expect(lock.Lock()).To(Succeed())
	defer func() { Expect(lock.Unlock()).To(Succeed()) }()
	installed := filepath.Join(dir, "node_modules", ".berth-installed")
	if _, err := os.Stat(installed); err == nil {
		return dir
	}
	By("installing " + filepath.Base(source) + " with npm")
	Expect(os.RemoveAll(dir)).To(Succeed())
	Expect(os.CopyFS(dir, files)).To(Succeed())
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "npm ci in %s:\n%s", dir, text)
	Expect(os.WriteFile(installed, nil, 0o644)).To(Succeed())
	return dir
}

// fingerprint returns a hash of the contents of a project.
func fingerprint(files fs.FS) string {
	GinkgoHelper()
	sum := sha256.New()
	Expect(fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})).To(Succeed())
	return hex.EncodeToString(sum.Sum(nil)[:6])
}
