// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
)

const (
	goModule  = "module example.com/x\n\ngo 1.24\n"
	goCaller  = "package main\n\nfunc main() { println(hello()) }\n"
	goCalled  = "package main\n\nfunc hello() string { return \"x\" }\n"
	goRenamed = "package main\n\nfunc hellx() string { return \"x\" }\n"
)

// project is a folder of a workspace that a test removes, replaces and makes again.
type project struct {
	*WithT
	root, folder string // folder is in root, several levels below it
}

// make makes the project in a folder. called is the content of the file with the function that the main file calls.
func (p *project) make(folder, called string) {
	p.Expect(os.MkdirAll(folder, 0o700)).To(Succeed())
	for name, text := range map[string]string{"go.mod": goModule, "main.go": goCaller, "h.go": called} {
		p.Expect(os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600)).To(Succeed())
	}
}

func (p *project) remove(path string)      { p.Expect(os.RemoveAll(path)).To(Succeed()) }
func (p *project) rename(from, to string)  { p.Expect(os.Rename(from, to)).To(Succeed()) }
func (p *project) path(name string) string { return filepath.Join(p.root, name) }

// TestServers_SeeFoldersThatAreMadeAgain makes the folder of a workspace, so that it compiles, and then again, so that it does not. Every answer that is marked as
// settled must be about the newest files, also immediately after the change.
func TestServers_SeeFoldersThatAreMadeAgain(t *testing.T) {
	for name, test := range map[string]struct {
		prepare, change func(p *project)
	}{
		"removed and made again": {nil, func(p *project) {
			p.remove(p.folder)
			p.make(p.folder, goRenamed)
		}},
		"replaced by another folder": {nil, func(p *project) {
			p.make(p.path("other"), goRenamed)
			p.rename(p.folder, p.path("before"))
			p.rename(p.path("other"), p.folder)
		}},
		"its parent removed and made again": {nil, func(p *project) {
			p.remove(p.path("a"))
			p.make(p.folder, goRenamed)
		}},
		"its parent moved away and made again": {nil, func(p *project) {
			p.rename(p.path("a"), p.path("before"))
			p.make(p.folder, goRenamed)
		}},
		"a symbolic link that is switched": {
			func(p *project) {
				p.make(p.path("one"), goCalled)
				p.make(p.path("two"), goRenamed)
				p.Expect(os.MkdirAll(filepath.Dir(p.folder), 0o700)).To(Succeed())
				p.Expect(os.Symlink(p.path("one"), p.folder)).To(Succeed())
			},
			func(p *project) {
				p.Expect(os.Symlink(p.path("two"), p.path("next"))).To(Succeed())
				p.rename(p.path("next"), p.folder)
			},
		},
		"made only after the start": {func(*project) {}, func(p *project) { p.make(p.folder, goRenamed) }},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			p := &project{WithT: NewWithT(t), root: root, folder: filepath.Join(root, "a", "b", "c")}
			if test.prepare != nil {
				test.prepare(p)
			} else {
				p.make(p.folder, goCalled)
			}
			s := servers["gopls"]
			shared := s.replaceable(t, root, p.folder)
			c := s.connect(t, shared.Mux, root, clientKinds["editor"])
			uri := lspclient.URI(p.folder, "main.go")
			p.Expect(c.Open(uri, s.language, 1, goCaller)).To(Succeed())
			diagnostics := func() string {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				var d lsp.Diagnosis
				p.Expect(c.Call(ctx, lsp.MethodDiagnostics, map[string]any{"uri": uri}, &d)).To(Succeed())
				p.Expect(d.Settled).To(BeTrue(), d.Reason)
				var found []lspclient.Diagnostic
				p.Expect(json.Unmarshal(d.Diagnostics, &found)).To(Succeed())
				return fmt.Sprint(found)
			}
			if _, err := os.Stat(p.folder); err == nil {
				p.Eventually(diagnostics).WithTimeout(patience).Should(Equal("[]"), "the server has read the project")
			}
			test.change(p)
			p.Expect(diagnostics()).To(ContainSubstring("undefined: hello"))
			called := filepath.Join(p.folder, "h.go")
			for range 3 {
				p.Expect(os.WriteFile(called, []byte(goCalled), 0o600)).To(Succeed())
				p.Expect(diagnostics()).To(Equal("[]"))
				p.Expect(os.WriteFile(called, []byte(goRenamed), 0o600)).To(Succeed())
				p.Expect(diagnostics()).To(ContainSubstring("undefined: hello"))
			}
			p.remove(called)
			p.Expect(diagnostics()).To(ContainSubstring("undefined: hello"))
			p.Expect(os.WriteFile(called, []byte(goCalled), 0o600)).To(Succeed())
			p.Expect(diagnostics()).To(Equal("[]"))
		})
	}
}
