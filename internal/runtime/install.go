// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"

	"k8s.io/apimachinery/pkg/types"
)

// InstallDir creates the directory of an install with mode 0700. It returns the absolute path without symbolic links, because two paths of one directory must
// identify the same install.
func InstallDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// InstallID returns a short name that is unique to the directory of an install.
func InstallID(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:6])
}

var validUID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$`)

// ValidUID reports whether a UID can be used as the name of a directory and of a cgroup.
func ValidUID(uid types.UID) bool { return validUID.MatchString(string(uid)) }
