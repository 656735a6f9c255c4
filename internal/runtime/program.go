// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// FindProgram returns the absolute path of a program of Berth, such as berth-shim. If path is empty, FindProgram searches the directory of the running
// executable, then PATH. It returns an error if the program does not exist.
func FindProgram(name, path string) (string, error) {
	if path == "" {
		if self, err := os.Executable(); err == nil {
			path = filepath.Join(filepath.Dir(self), name)
		}
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			if path, err = exec.LookPath(name); err != nil {
				return "", fmt.Errorf("%s is neither in the directory of this program nor in PATH; install it in that directory: %w", name, err)
			}
		}
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return path, nil
}
