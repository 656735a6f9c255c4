// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/cli/code"
	"github.com/berth-dev/berth/internal/lsp/mux"
)

// users is the number of files that use the symbol of a large project.
const users = 20

// large are projects in which one file declares the symbol target, and each of many others uses it once.
var large = map[string]struct {
	main, declaration string
	other             func(i int) (name, text string)
	more              map[string]string
	line              int // of the declaration in main
	uses              int // how often each other file contains the name
}{
	"gopls": {
		main: "target.go", line: 3, declaration: "package large\n\nfunc target(n int) int { return n }\n", more: map[string]string{"go.mod": "module example.test/large\n\ngo 1.24\n"},
		other: func(i int) (string, string) {
			return fmt.Sprintf("f%d.go", i), fmt.Sprintf("package large\n\nvar v%d = target(%d)\n", i, i)
		}, uses: 1,
	},
	"clangd": {
		main: "target.cpp", line: 2, declaration: "#include \"target.h\"\nint target(int n) { return n; }\n",
		more: map[string]string{"target.h": "#pragma once\n#include <vector>\nint target(int n);\n"},
		other: func(i int) (string, string) {
			return fmt.Sprintf("f%d.cpp", i), fmt.Sprintf("#include \"target.h\"\nint f%d(int a) { std::vector<int> v(a); return target(a + (int)v.size()); }\n", i)
		}, uses: 1,
	},
	"typescript-language-server": {
		main: "target.ts", line: 1, declaration: "export function target(n: number): number {\n  return n;\n}\n", more: map[string]string{"tsconfig.json": typescriptFiles["tsconfig.json"]},
		other: func(i int) (string, string) {
			return fmt.Sprintf("f%d.ts", i), fmt.Sprintf("import { target } from \"./target\";\n\nexport const v%d = target(%d);\n", i, i)
		}, uses: 2,
	},
	"basedpyright": {
		main: "target.py", line: 1, declaration: "def target(n: int) -> int:\n    return n\n",
		other: func(i int) (string, string) {
			return fmt.Sprintf("f%d.py", i), fmt.Sprintf("from target import target\n\nv%d = target(%d)\n", i, i)
		}, uses: 2,
	},
}

// largeProject writes the project of a server, and returns its folder and how often it contains the symbol.
func largeProject(t *testing.T, name string) (folder string, uses int) {
	t.Helper()
	g := NewWithT(t)
	folder, err := filepath.EvalSymlinks(t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	p := large[name]
	files := map[string]string{p.main: p.declaration}
	for path, text := range p.more {
		files[path] = text
	}
	for i := range users {
		path, text := p.other(i)
		files[path] = text
	}
	if name == "clangd" {
		files["compile_commands.json"] = compileCommands(g, folder, files)
	}
	for path, text := range files {
		g.Expect(os.WriteFile(filepath.Join(folder, path), []byte(text), 0o600)).To(Succeed())
		if strings.HasPrefix(filepath.Base(path), "target.") {
			uses++
		}
	}
	return folder, uses + users*p.uses
}

func compileCommands(g Gomega, folder string, files map[string]string) string {
	var commands []map[string]string
	for path := range files {
		if filepath.Ext(path) == ".cpp" {
			commands = append(commands, map[string]string{"directory": folder, "file": filepath.Join(folder, path), "command": "c++ -std=c++17 -c " + path})
		}
	}
	text, err := json.Marshal(commands)
	g.Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// agent connects a client of the tools of berth mcp to a multiplexer.
func (s server) agent(t *testing.T, m *mux.Mux, folder string) *code.Client {
	t.Helper()
	near, far := net.Pipe()
	go m.Serve(far)
	c, err := code.New(t.Context(), near, []string{folder}, s.language)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The first questions about a project, after the start and after a restart of the server, are answered completely, or with complete: false.
func TestAgents_ReceiveCompleteAnswersFromTheFirstQuestion(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(large)) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			folder, uses := largeProject(t, name)
			s := servers[name]
			m := s.multiplexer(t, folder)
			path, where := filepath.Join(folder, large[name].main), code.Where{Line: large[name].line, Symbol: "target"}
			for incarnation := range int64(2) {
				if incarnation > 0 {
					m.Hold("the test restarts the server")
					running := s.start(t, folder)
					m.Attach(incarnation+1, running, running)
				}
				c := s.agent(t, m, folder)
				for range 2 {
					ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
					began := time.Now()
					places, extent, err := c.References(ctx, path, where, code.Page{Limit: 1000})
					cancel()
					g.Expect(err).NotTo(HaveOccurred())
					t.Logf("incarnation %d: %d references after %s, %+v", incarnation+1, len(places), time.Since(began).Round(time.Millisecond), extent)
					g.Expect(extent).To(Equal(code.Extent{Complete: true, Total: uses}))
				}
			}
		})
	}
}

// A rename that is the first question to a server changes all files.
func TestAgents_RenameInAllFilesWithTheFirstQuestion(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(large)) {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			folder, _ := largeProject(t, name)
			s := servers[name]
			c := s.agent(t, s.multiplexer(t, folder), folder)
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			edits, extent, err := c.Rename(ctx, filepath.Join(folder, large[name].main), code.Where{Line: large[name].line, Symbol: "target"}, "renamed")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(extent.Complete).To(BeTrue(), extent.Reason)
			g.Expect(c.Apply(ctx, edits)).To(Succeed())
			for i := range users {
				path, _ := large[name].other(i)
				text, err := os.ReadFile(filepath.Join(folder, path))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(string(text)).To(ContainSubstring("renamed("), path)
			}
		})
	}
}
