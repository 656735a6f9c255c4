// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// hostileFiles are files that a workspace can contain, or that a server can name, and that must not be opened. Each is created at a path of the workspace. outside is
// the path of a file with a secret.
var hostileFiles = map[string]func(path, outside string) error{
	"a link out of the workspace": func(path, outside string) error { return os.Symlink(outside, path) },
	"a relative link": func(path, outside string) error {
		return os.Symlink("../../"+filepath.Base(filepath.Dir(outside))+"/secret.go", path)
	},
	"a dangling link": func(path, _ string) error { return os.Symlink("none", path) },
	"a device":        func(path, _ string) error { return os.Symlink("/dev/zero", path) },
	"a pipe":          func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
	"a directory":     func(path, _ string) error { return os.Mkdir(path, 0o700) },
	"a large file": func(path, _ string) error {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		return os.Truncate(path, 1<<40) // a sparse file, which uses no space
	},
}

const secret = "package secret // root:$y$hash"

// hostileWorkspace returns a workspace, and a file outside of it.
func hostileWorkspace(t *testing.T) (workspace, outside string) {
	t.Helper()
	workspace, outside = t.TempDir(), filepath.Join(t.TempDir(), "secret.go")
	write(t, outside, secret)
	write(t, filepath.Join(workspace, "a.go"), "package a\n\nfunc Old() {}\n")
	return workspace, outside
}

// within fails the test if a function does not return, for example because it reads a pipe.
func within(t *testing.T, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	NewWithT(t).Eventually(done).WithTimeout(timeout).Should(BeClosed())
}

// locationOf returns the answer of a server that names a file.
func locationOf(path string) any {
	return []any{map[string]any{"uri": uriOf(path), "range": span{position{0, 0}, position{0, 1}}}}
}

func TestClient_ReadsOnlyRegularFilesOfTheWorkspace(t *testing.T) {
	for name, put := range hostileFiles {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace, outside := hostileWorkspace(t)
			path := filepath.Join(workspace, "hostile.go")
			g.Expect(put(path, outside)).To(Succeed())
			s := &server{answer: func(method string, _ json.RawMessage) any {
				if method == "textDocument/definition" {
					return locationOf(path)
				}
				return nil
			}}
			c := connect(t, s, workspace)
			within(t, func() {
				places, _, err := c.Definition(t.Context(), filepath.Join(workspace, "a.go"), Where{Symbol: "Old"})
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(places).To(Equal([]Place{{File: path, Line: 1, Column: 1}}), "the place has no text")
				_, _, err = c.FileSymbols(t.Context(), path, Page{})
				g.Expect(err).To(HaveOccurred())
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			for uri, text := range s.texts {
				g.Expect(text).NotTo(ContainSubstring("root:"), uri)
			}
		})
	}
}

// A language server can be hostile or compromised: it can name any file.
func TestDefinition_HasNoTextOfFilesOutsideTheWorkspace(t *testing.T) {
	g := NewWithT(t)
	workspace, outside := hostileWorkspace(t)
	linked := filepath.Join(workspace, "linked")
	g.Expect(os.Symlink(filepath.Dir(outside), linked)).To(Succeed())
	for _, path := range []string{outside, filepath.Join(linked, "secret.go"), workspace + "/../" + filepath.Base(filepath.Dir(outside)) + "/secret.go", "/etc/passwd", "/dev/zero", "/proc/self/environ"} {
		c := connect(t, &server{answer: func(method string, _ json.RawMessage) any {
			if method == "textDocument/definition" {
				return locationOf(path)
			}
			return nil
		}}, workspace)
		within(t, func() {
			places, _, err := c.Definition(t.Context(), filepath.Join(workspace, "a.go"), Where{Symbol: "Old"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(places).To(HaveLen(1))
			g.Expect(places[0].Text).To(BeEmpty(), path)
		})
	}
}

func TestDefinition_HasTextOfLibraries(t *testing.T) {
	g := NewWithT(t)
	workspace, _ := hostileWorkspace(t)
	for variable, below := range map[string]string{"GOROOT": "src", "GOMODCACHE": "", "GOPATH": "pkg/mod", "CARGO_HOME": "registry/src", "RUSTUP_HOME": "toolchains"} {
		root := t.TempDir()
		t.Setenv(variable, root)
		path := filepath.Join(root, below, "lib", "lib.go")
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
		write(t, path, "\tfunc Lib() {"+strings.Repeat("x", 5000))
		c := connect(t, &server{answer: func(method string, _ json.RawMessage) any {
			if method == "textDocument/definition" {
				return locationOf(path)
			}
			return nil
		}}, workspace)
		places, _, err := c.Definition(t.Context(), filepath.Join(workspace, "a.go"), Where{Symbol: "Old"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(places[0].Text).To(HavePrefix("func Lib() {"), variable)
		g.Expect(len(places[0].Text)).To(BeNumerically("<=", maxPlaceText))
	}
}

func TestReferences_ReadABoundedAmount(t *testing.T) {
	g := NewWithT(t)
	workspace, _ := hostileWorkspace(t)
	var all []any
	for i := range 8 {
		path := filepath.Join(workspace, strings.Repeat("x", i+1)+".go")
		g.Expect(os.WriteFile(path, []byte("line\n"+strings.Repeat("x", maxFile-5)), 0o600)).To(Succeed())
		all = append(all, locationOf(path).([]any)...)
	}
	write(t, filepath.Join(workspace, "z.go"), "package a\n")
	all = append(all, map[string]any{"uri": uriOf(filepath.Join(workspace, "z.go")), "range": span{position{-5, 0}, position{-5, 1}}})
	c := connect(t, &server{answer: func(method string, _ json.RawMessage) any {
		if method == "textDocument/references" {
			return all
		}
		return nil
	}}, workspace)
	places, _, err := c.References(t.Context(), filepath.Join(workspace, "a.go"), Where{Symbol: "Old"}, Page{})
	g.Expect(err).NotTo(HaveOccurred())
	texts := 0
	for _, place := range places {
		if place.Text == "line" {
			texts++
		}
	}
	g.Expect(texts).To(Equal(maxPlaceRead/maxFile), "the text of the other files is left out")
}

func TestEdits_WriteOnlyRegularFilesOfTheWorkspace(t *testing.T) {
	targets := map[string]func(path, outside string) error{"a file outside": nil}
	for name, put := range hostileFiles {
		targets[name] = put
	}
	targets["a link in the workspace"] = func(path, _ string) error { return os.Symlink("a.go", path) }
	for name, put := range targets {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			workspace, outside := hostileWorkspace(t)
			path := outside
			if put != nil {
				path = filepath.Join(workspace, "hostile.go")
				g.Expect(put(path, outside)).To(Succeed())
			}
			edit := []any{map[string]any{"newText": "planted", "range": span{position{0, 0}, position{0, 1}}}}
			c := connect(t, &server{answer: func(method string, _ json.RawMessage) any {
				switch method {
				case "textDocument/rename":
					return map[string]any{"changes": map[string]any{uriOf(path): edit}}
				case "textDocument/formatting":
					return edit
				}
				return nil
			}}, workspace)
			within(t, func() {
				edits, _, err := c.Rename(t.Context(), filepath.Join(workspace, "a.go"), Where{Symbol: "Old"}, "New")
				g.Expect(err).To(HaveOccurred())
				g.Expect(edits).To(BeEmpty())
				if name == "a link in the workspace" {
					g.Expect(err).To(MatchError(And(ContainSubstring("cannot edit "+path), ContainSubstring("name the file that the link leads to"))))
				}
				one, err := c.Format(t.Context(), path)
				g.Expect(err).To(HaveOccurred())
				g.Expect(one).To(BeNil())
			})
			g.Expect(os.ReadFile(outside)).To(BeEquivalentTo(secret))
			g.Expect(os.ReadFile(filepath.Join(workspace, "a.go"))).To(BeEquivalentTo("package a\n\nfunc Old() {}\n"))
		})
	}
}

// A link that replaces a file between the answer of the server and the write is not followed.
func TestApply_FollowsNoLinkThatAppearsLater(t *testing.T) {
	g := NewWithT(t)
	workspace, outside := hostileWorkspace(t)
	path := filepath.Join(workspace, "a.go")
	c := connect(t, &server{}, workspace)
	edit, err := makeEdit(&c.files, path, []textEdit{{Range: span{position{0, 0}, position{0, 1}}, NewText: "planted"}})
	g.Expect(err).NotTo(HaveOccurred())
	write(t, outside, edit.before)
	g.Expect(os.Remove(path)).To(Succeed())
	g.Expect(os.Symlink(outside, path)).To(Succeed())
	g.Expect(c.Apply(t.Context(), []Edit{*edit})).To(MatchError(ContainSubstring("symbolic link")))
	g.Expect(os.ReadFile(outside)).To(BeEquivalentTo(edit.before))
}

func TestRename_LimitsTheNumberOfFiles(t *testing.T) {
	g := NewWithT(t)
	workspace, _ := hostileWorkspace(t)
	changes := map[string]any{}
	for i := range maxEdited + 1 {
		changes[uriOf(filepath.Join(workspace, strings.Repeat("x", i)))] = []any{}
	}
	c := connect(t, &server{answer: func(method string, _ json.RawMessage) any {
		if method == "textDocument/rename" {
			return map[string]any{"changes": changes}
		}
		return nil
	}}, workspace)
	_, _, err := c.Rename(t.Context(), filepath.Join(workspace, "a.go"), Where{Symbol: "Old"}, "New")
	g.Expect(err).To(MatchError(ContainSubstring("at most 1000 are allowed")))
}

// A file that is replaced by a link is closed at the server, and does not fail requests for other files.
func TestClient_ClosesAFileThatBecomesALink(t *testing.T) {
	g := NewWithT(t)
	workspace, outside := hostileWorkspace(t)
	a, b := filepath.Join(workspace, "a.go"), filepath.Join(workspace, "b.go")
	write(t, b, "package a\n")
	s := &server{}
	c := connect(t, s, workspace)
	_, _, err := c.FileSymbols(t.Context(), b, Page{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Remove(b)).To(Succeed())
	g.Expect(os.Symlink(outside, b)).To(Succeed())
	_, _, err = c.FileSymbols(t.Context(), a, Page{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(s.journal).WithTimeout(timeout).Should(ContainSubstring("didClose b.go"))
	_, _, err = c.FileSymbols(t.Context(), b, Page{})
	g.Expect(err).To(MatchError(ContainSubstring("is outside the workspace")))
}

// A workspace can be reached through a link, and can contain links to its own files.
func TestClient_ReadsThroughLinksWithinTheWorkspace(t *testing.T) {
	g := NewWithT(t)
	workspace, _ := hostileWorkspace(t)
	alias := filepath.Join(t.TempDir(), "alias")
	g.Expect(os.Symlink(workspace, alias)).To(Succeed())
	g.Expect(os.Symlink("a.go", filepath.Join(workspace, "link.go"))).To(Succeed())
	s := &server{}
	c := connect(t, s, alias)
	_, _, err := c.FileSymbols(t.Context(), filepath.Join(alias, "link.go"), Page{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(s.journal).WithTimeout(timeout).Should(ContainSubstring("didOpen link.go"))
	edit, err := makeEdit(&c.files, filepath.Join(alias, "a.go"), []textEdit{{Range: span{position{0, 0}, position{0, 7}}, NewText: "changed"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Apply(t.Context(), []Edit{*edit})).To(Succeed())
	g.Expect(os.ReadFile(filepath.Join(workspace, "a.go"))).To(HavePrefix("changed a"))
}
