// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
)

// late is the name of a test.
const late = "made only after the start"

// project is a folder of a workspace that a test removes, replaces and makes again.
type project struct {
	*WithT
	server server
	called string // the file with the function that the main file calls
	root   string
	folder string // several levels below root
	ask    func() // requests diagnostics of a folder that does not exist
}

// renamed returns the content of the called file in which the function has another name.
func (p *project) renamed() string {
	return strings.Replace(p.server.files[p.called], "helper", "helped", 1)
}

// make makes the project in a folder, with this content of the called file.
func (p *project) make(folder, called string) {
	p.Expect(os.MkdirAll(folder, 0o700)).To(Succeed())
	for name, text := range p.server.files {
		if name == p.called {
			text = called
		}
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
		"written": {nil, func(p *project) {
			p.Expect(os.WriteFile(filepath.Join(p.folder, p.called), []byte(p.renamed()), 0o600)).To(Succeed())
		}},
		"removed and made again": {nil, func(p *project) {
			p.remove(p.folder)
			p.make(p.folder, p.renamed())
		}},
		"replaced by another folder": {nil, func(p *project) {
			p.make(p.path("other"), p.renamed())
			p.rename(p.folder, p.path("before"))
			p.rename(p.path("other"), p.folder)
		}},
		"removed, asked about, and made again": {nil, func(p *project) {
			p.remove(p.folder)
			p.ask()
			p.make(p.folder, p.renamed())
		}},
		"its parent removed and made again": {nil, func(p *project) {
			p.remove(p.path("a"))
			p.make(p.folder, p.renamed())
		}},
		"its parent moved away and made again": {nil, func(p *project) {
			p.rename(p.path("a"), p.path("before"))
			p.make(p.folder, p.renamed())
		}},
		"a symbolic link that is switched": {
			func(p *project) {
				p.make(p.path("one"), p.server.files[p.called])
				p.make(p.path("two"), p.renamed())
				p.Expect(os.MkdirAll(filepath.Dir(p.folder), 0o700)).To(Succeed())
				p.Expect(os.Symlink(p.path("one"), p.folder)).To(Succeed())
			},
			func(p *project) {
				p.Expect(os.Symlink(p.path("two"), p.path("next"))).To(Succeed())
				p.rename(p.path("next"), p.folder)
			},
		},
		late: {func(*project) {}, func(p *project) { p.make(p.folder, p.renamed()) }},
	} {
		for _, of := range []struct{ server, called, complaint string }{
			{"gopls", "helper.go", "undefined: helper"},
			{"basedpyright", "helper.py", "is unknown import symbol"},
			{"tsgo", "helper.ts", "has no exported member"},
		} {
			t.Run(of.server+", "+name, func(t *testing.T) {
				root := t.TempDir()
				p := &project{WithT: NewWithT(t), server: servers[of.server], called: of.called, root: root, folder: filepath.Join(root, "a", "b", "c")}
				if test.prepare != nil {
					test.prepare(p)
				} else {
					p.make(p.folder, p.server.files[p.called])
				}
				p.follow(t, of.complaint, test.change)
			})
		}
	}
}

// follow starts the server, changes the folder, and requests diagnostics of the main file after each change.
func (p *project) follow(t *testing.T, complaint string, change func(p *project)) {
	t.Helper()
	shared := p.server.replaceable(t, p.root, p.folder)
	shared.obey(t)
	c := p.server.connect(t, shared.Mux, p.root, clientKinds["editor"])
	uri := lspclient.URI(p.folder, p.server.main)
	p.Expect(c.Open(uri, p.server.language, 1, p.server.files[p.server.main])).To(Succeed())
	inquire := func(timeout time.Duration) (d lsp.Diagnosis) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		p.Expect(c.Call(ctx, lsp.MethodDiagnostics, map[string]any{"uri": uri, "timeoutMs": timeout.Milliseconds()}, &d)).To(Succeed())
		return d
	}
	p.ask = func() {
		d := inquire(3 * time.Second)
		p.Expect(d.Settled).To(BeFalse())
		p.Expect(d.Reason).To(ContainSubstring("does not exist"))
	}
	diagnostics := func() string {
		d := inquire(patience / 2)
		p.Expect(d.Settled).To(BeTrue(), d.Reason)
		var found []lspclient.Diagnostic
		p.Expect(json.Unmarshal(d.Diagnostics, &found)).To(Succeed())
		return fmt.Sprint(found)
	}
	if _, err := os.Stat(p.folder); err == nil {
		p.Eventually(diagnostics).WithTimeout(patience).ShouldNot(ContainSubstring(complaint), "the server has read the project")
	}
	p.Eventually(func() bool {
		var report lsp.Report
		shared.Fill(&report)
		return report.Indexed
	}).WithTimeout(patience).Should(BeTrue(), "a server registers its patterns of files while it starts")
	change(p)
	p.Expect(diagnostics()).To(ContainSubstring(complaint))
	called := filepath.Join(p.folder, p.called)
	for range 3 {
		p.Expect(os.WriteFile(called, []byte(p.server.files[p.called]), 0o600)).To(Succeed())
		p.Expect(diagnostics()).NotTo(ContainSubstring(complaint))
		p.Expect(os.WriteFile(called, []byte(p.renamed()), 0o600)).To(Succeed())
		p.Expect(diagnostics()).To(ContainSubstring(complaint))
	}
}
