// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package statedir creates and checks the directory that contains everything Berth stores on a machine (keys, data, and records of processes), and
// replaces files in it atomically.
package statedir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Make creates a state directory with mode 0700 and returns its absolute path. It returns an error if the directory belongs to another user, or if it has
// content and other users can write to it: such a user could run programs as its owner. It removes all permissions of other users.
func Make(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("the state directory is not set")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create the state directory: %w", err)
	}
	// All checks and changes are made by the descriptor, so that they apply to one directory even if the path is replaced in between.
	opened, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		if info, statErr := os.Stat(dir); statErr == nil {
			err = errors.Join(foreign(dir, info), err)
		}
	}
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	defer func() { _ = opened.Close() }()
	info, err := opened.Stat()
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	if err := foreign(dir, info); err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o022 != 0 {
		content, err := opened.Readdirnames(1)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("state directory: %w", err)
		}
		if len(content) > 0 {
			return "", fmt.Errorf("the state directory %s can be written to by other users (mode %04o): check its contents and run chmod 700, "+
				"or choose another directory with --state-dir", dir, info.Mode().Perm())
		}
	}
	if err := opened.Chmod(0o700); err != nil {
		return "", fmt.Errorf("restrict the permissions of the state directory: %w", err)
	}
	return dir, nil
}

// foreign returns an error if a directory belongs to another user.
func foreign(dir string, info fs.FileInfo) error {
	if uid, known := owner(info); known && uid != os.Geteuid() {
		return fmt.Errorf("the state directory %s belongs to user %d, but berth runs as user %d: change its owner, or choose another directory with --state-dir",
			dir, uid, os.Geteuid())
	}
	return nil
}
