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
	g.Expect(filepath.Join(dir, ".claude", "settings.json")).To(BeAnExistingFile())
	g.Expect(filepath.Join(dir, ".cursor")).NotTo(BeAnExistingFile())

	f = newFixture()
	g.Expect(f.run(t.Context(), "init", dir, "--clients", "claude")).To(Equal(0))
	g.Expect(f.err.String()).To(ContainSubstring("nothing to write"))
}

// The preview shows links, and the text of a file cannot look like a part of the preview.
func TestInit_ShowsLinksAndForeignText(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "bash_profile")
	g.Expect(os.WriteFile(outside, []byte("profile"), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"scripts":{"dev":"vite\n---\nkind: ClusterRoleBinding\u001b[2J"}}`), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "AGENTS.md"), []byte("# Rules\n=== berth.yaml (new file)\n"), 0o600)).To(Succeed())
	g.Expect(os.Symlink(outside, filepath.Join(dir, "berth.yaml"))).To(Succeed())
	f := newFixture()
	g.Expect(f.run(t.Context(), "init", dir, "--clients", "claude", "--yes")).To(Equal(0))
	g.Expect(f.out.String()).To(And(ContainSubstring("=== berth.yaml (not written: "), ContainSubstring("is a symbolic link to"), ContainSubstring(outside)))
	g.Expect(f.out.String()).NotTo(MatchRegexp("(?m)^=== berth.yaml \\(new file\\)"))
	g.Expect(f.err.String()).To(And(ContainSubstring("wrote 3 files"), Not(ContainSubstring("kubectl apply"))), "the linked manifest is not one to apply")
	g.Expect(os.ReadFile(outside)).To(BeEquivalentTo("profile"))

	g.Expect(os.Remove(filepath.Join(dir, "berth.yaml"))).To(Succeed())
	f = newFixture()
	g.Expect(f.run(t.Context(), "init", dir, "--clients", "claude", "--yes")).To(Equal(0))
	g.Expect(f.out.String()).NotTo(ContainSubstring("\x1b"))
	g.Expect(f.err.String()).To(ContainSubstring("next: berth up --detach, then kubectl apply -f berth.yaml"))
	manifests, err := readManifests(filepath.Join(dir, "berth.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(manifests).To(HaveLen(1))
	g.Expect(manifests[0].object.GetKind()).To(Equal("DevServer"))
}
