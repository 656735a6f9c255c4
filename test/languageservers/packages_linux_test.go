// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
)

// TestServers_DoubtDiagnosticsAfterAnInstallation installs the missing package of a main file. Berth does not watch the folders of packages, so an answer that still
// reports the package as missing must not be marked as settled. After a restart of the server, it is right.
func TestServers_DoubtDiagnosticsAfterAnInstallation(t *testing.T) {
	for name, of := range map[string]struct{ main, text, installed, module, complaint string }{
		"tsgo":         {"main.ts", "import { v } from \"added\";\nexport const n: number = v;\n", "node_modules/added/index.d.ts", "export declare const v: number;\n", "Cannot find module"},
		"basedpyright": {"main.py", "from added import v\n\nn: int = v\n", ".venv/lib/python3.11/site-packages/added/__init__.py", "v: int = 1\n", "could not be resolved"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, s, folder := NewWithT(t), servers[name], t.TempDir()
			write := func(name, text string) {
				path := filepath.Join(folder, name)
				g.Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
				g.Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
			}
			write("tsconfig.json", typescriptFiles["tsconfig.json"])
			write(of.main, of.text)
			write("node_modules/other/index.d.ts", "export {};\n")
			write("pyrightconfig.json", "{\"venvPath\": \".\", \"venv\": \".venv\"}\n")
			write(".venv/pyvenv.cfg", "home = /usr/bin\nversion = 3.11\n")
			write(".venv/lib/python3.11/site-packages/other.py", "")
			shared := s.replaceable(t, folder)
			c := s.connect(t, shared.Mux, folder, clientKinds["editor"])
			uri := lspclient.URI(folder, of.main)
			g.Expect(c.Open(uri, s.language, 1, of.text)).To(Succeed())
			ask := func() (d lsp.Diagnosis) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				g.Expect(c.Call(ctx, lsp.MethodDiagnostics, map[string]any{"uri": uri, "timeoutMs": (patience / 2).Milliseconds()}, &d)).To(Succeed())
				return d
			}
			g.Eventually(ask).WithTimeout(patience).Should(And(HaveField("Settled", true), HaveField("Diagnostics", ContainSubstring(of.complaint))))
			write(of.installed, of.module)
			d := ask()
			g.Expect(d.Settled).To(BeFalse())
			g.Expect(d.Reason).To(ContainSubstring("have changed, and the server may not know it: restart the language server"))
			shared.restart()
			g.Eventually(ask).WithTimeout(patience).Should(And(HaveField("Settled", true), HaveField("Diagnostics", Not(ContainSubstring(of.complaint)))))
		})
	}
}
