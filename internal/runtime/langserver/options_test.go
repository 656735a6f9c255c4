// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// A relative directory in PATH is not used to find berth-lsp, because the working directory may belong to another user.
func TestFindProgram_RefusesAProgramInTheWorkingDirectory(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "berth-lsp"), []byte("#!/bin/sh\n"), 0o755)).To(Succeed()) //nolint:gosec // it can be executed
	t.Chdir(dir)
	for _, path := range []string{".", ":/nowhere", "/nowhere:"} {
		t.Setenv("PATH", path)
		_, err := findProgram("")
		g.Expect(err).To(MatchError(exec.ErrDot), "PATH=%q", path)
	}
}
