// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// A relative directory in PATH is not used to find the shim, because the working directory may belong to another user.
func TestFindShim_RefusesAProgramInTheWorkingDirectory(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "berth-shim"), []byte("#!/bin/sh\n"), 0o755)).To(Succeed()) //nolint:gosec // it can be executed
	t.Chdir(dir)
	for _, path := range []string{".", ":/nowhere", "/nowhere:"} {
		t.Setenv("PATH", path)
		_, err := findShim()
		g.Expect(err).To(MatchError(exec.ErrDot), "PATH=%q", path)
	}
}
