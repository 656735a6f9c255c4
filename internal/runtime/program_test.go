// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/runtime"
)

// A relative directory in PATH is not used to find a program, because the working directory may belong to another user.
func TestFindProgram_RefusesAProgramInTheWorkingDirectory(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "berth-shim"), []byte("#!/bin/sh\n"), 0o755)).To(Succeed()) //nolint:gosec // it can be executed
	t.Chdir(dir)
	for _, path := range []string{".", ":/nowhere", "/nowhere:"} {
		t.Setenv("PATH", path)
		_, err := runtime.FindProgram("berth-shim", "")
		g.Expect(err).To(MatchError(exec.ErrDot), "PATH=%q", path)
	}
}
