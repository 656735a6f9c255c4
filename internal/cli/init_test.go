// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestInit_WritesOnlyAfterConfirmation(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"scripts":{"dev":"vite"}}`), 0o600)).To(Succeed())
	f := newFixture()
	g.Expect(f.run(t.Context(), "init", dir)).To(Equal(1))
	g.Expect(f.out.String()).To(And(ContainSubstring("=== berth.yaml (new file)"), ContainSubstring("kind: DevServer"), ContainSubstring("=== .mcp.json")))
	g.Expect(f.err.String()).To(ContainSubstring("nothing was written"))
	g.Expect(filepath.Join(dir, "berth.yaml")).NotTo(BeAnExistingFile())

	f.app.in = strings.NewReader("y\n")
	g.Expect(f.run(t.Context(), "init", dir, "--clients", "claude")).To(Equal(0))
	g.Expect(filepath.Join(dir, "berth.yaml")).To(BeAnExistingFile())
	g.Expect(filepath.Join(dir, ".mcp.json")).To(BeAnExistingFile())
	g.Expect(filepath.Join(dir, ".cursor")).NotTo(BeAnExistingFile())

	f = newFixture()
	g.Expect(f.run(t.Context(), "init", dir, "--clients", "claude")).To(Equal(0))
	g.Expect(f.err.String()).To(ContainSubstring("nothing to write"))
}
