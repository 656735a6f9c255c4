// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package npm installs the packages of npm projects for tests.
package npm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gofrs/flock"
)

// Install returns a copy of an npm project with its packages installed. The copy is made in the user's cache, once for each content of the project, and reused by
// later runs. The first call may take minutes; started, which may be nil, is then called.
func Install(ctx context.Context, source string, started func()) (dir string, err error) {
	files := os.DirFS(source)
	sum, err := fingerprint(files)
	if err != nil {
		return "", fmt.Errorf("read the npm project %s: %w", source, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "berth-e2e", filepath.Base(source)+"-"+sum)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	// Without the lock, concurrent runs would install into the same directory at the same time.
	lock := flock.New(dir + ".lock")
	if err := lock.Lock(); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	installed := filepath.Join(dir, "node_modules", ".berth-installed")
	if _, err := os.Stat(installed); err == nil {
		return dir, nil
	}
	if started != nil {
		started()
	}
	if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, files)); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci in %s: %w\n%s", dir, err, text)
	}
	return dir, os.WriteFile(installed, nil, 0o644)
}

// fingerprint returns a hash of the contents of a project.
func fingerprint(files fs.FS) (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:6]), err
}
