// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// unknownName matches the names that the spec below puts into the program.
var unknownName = regexp.MustCompile(`greet\d+`)

var _ = DescribeTable("berth mcp answers questions about code for the content on disk", Label(anyUser),
	func(ctx context.Context, name string) {
		project := languageProjects[name]
		dir := GinkgoT().TempDir()
		for file, text := range project.files {
			Expect(os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)).To(Succeed())
		}
		main, helper := filepath.Join(dir, project.main), filepath.Join(dir, project.helper)
		c := newToolClient(ctx)
		object := map[string]any{"name": "languageserver/agent-" + name, "wait": true, "timeoutSeconds": 120}
		c.must(ctx, "apply", map[string]any{"manifest": project.manifest(ctx, "agent-"+name, dir), "wait": true, "timeoutSeconds": 120})
		DeferCleanup(func(ctx context.Context) { _, _ = c.call(ctx, "delete", object) }, NodeTimeout(timeout))

		By("asking for diagnostics after each edit")
		var stale, unsettled int
		var took []time.Duration
		for i := range editCount() {
			want := project.edit(main, i)
			begun := time.Now()
			report := c.must(ctx, "diagnostics", map[string]any{"files": []string{main}})["files"].([]any)[0].(map[string]any)
			took = append(took, time.Since(begun))
			found, err := json.Marshal(report["untrustedDiagnostics"])
			Expect(err).NotTo(HaveOccurred())
			if report["settled"] == false {
				unsettled++
			} else if unknownName.FindString(string(found)) != want {
				stale++
			}
		}
		AddReportEntry(fmt.Sprintf("%s: %d edits, %d stale, %d not settled, %s", name, len(took), stale, unsettled, percentiles(took)))
		Expect(stale).To(BeZero())
		Expect(unsettled).To(BeZero())

		By("asking with the command line")
		Expect(os.WriteFile(main, []byte(strings.ReplaceAll(project.files[project.main], "greet(", "greet0(")), 0o644)).To(Succeed())
		Expect(suiteBerth.run(ctx, "lsp", "diagnostics", main)).To(MatchRegexp(regexp.QuoteMeta(main) + `:\d+:\d+: error: .*greet0`))

		By("asking about symbols")
		Expect(os.WriteFile(main, []byte(project.files[project.main]), 0o644)).To(Succeed())
		symbols, _ := c.call(ctx, "symbols", map[string]any{"file": helper})
		Expect(symbols).To(ContainSubstring(`"name":"greet"`))
		symbol := map[string]any{"file": main, "symbol": "greet"}
		Expect(c.must(ctx, "hover", symbol)).To(HaveKeyWithValue("untrustedText", ContainSubstring(project.hover)))
		places := c.must(ctx, "references", symbol)["places"].([]any)
		Expect(places).To(HaveLen(project.references))
		Expect(c.must(ctx, "definition", symbol)["places"].([]any)[0]).To(HaveKeyWithValue("file", helper))

		By("renaming a symbol in all files")
		Expect(c.must(ctx, "rename", map[string]any{"file": helper, "symbol": "greet", "newName": "welcome", "apply": true})).To(HaveKeyWithValue("applied", true))
		for _, file := range []string{main, helper} {
			text, err := os.ReadFile(file)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(text)).To(And(ContainSubstring("welcome"), Not(ContainSubstring("greet"))))
		}
		welcomes := func(g Gomega) {
			places := c.must(ctx, "references", map[string]any{"file": main, "symbol": "welcome"})["places"].([]any)
			g.Expect(places).To(HaveLen(project.references))
		}
		if name == "clangd" {
			// clangd answers questions about a file with the former content of its headers until it has parsed them again.
			Eventually(ctx, welcomes).Should(Succeed())
		} else {
			welcomes(NewWithT(GinkgoT()))
		}
	},
	Entry("gopls", NodeTimeout(lifecycleTimeout), "gopls"),
	Entry("pyright", NodeTimeout(lifecycleTimeout), "pyright"),
	Entry("typescript-language-server", NodeTimeout(lifecycleTimeout), "typescript-language-server"),
	Entry("clangd", NodeTimeout(lifecycleTimeout), "clangd"),
)

// edit writes the text of edit number i to the main file of the project. Every second text contains an unknown name, which it returns.
func (p languageProject) edit(main string, i int) (unknown string) {
	GinkgoHelper()
	text := p.files[p.main]
	if i%2 == 1 {
		unknown = fmt.Sprintf("greet%d", i)
		text = strings.ReplaceAll(text, "greet(", unknown+"(")
	}
	Expect(os.WriteFile(main, []byte(text), 0o644)).To(Succeed())
	return unknown
}

func percentiles(took []time.Duration) string {
	slices.Sort(took)
	return fmt.Sprintf("p50 %s, p99 %s", took[len(took)/2], took[len(took)*99/100])
}

// editCount returns the number of edits for each language server: the value of the environment variable EDITS, or 30.
func editCount() int {
	if n, err := strconv.Atoi(os.Getenv("EDITS")); err == nil {
		return n
	}
	return 30
}

// manifest returns a LanguageServer for a copy of the project.
func (p languageProject) manifest(ctx context.Context, name, dir string) string {
	GinkgoHelper()
	spec := map[string]any{"language": p.language, "workspace": map[string]any{"folders": []string{dir}}, "process": map[string]any{"command": p.command(ctx)}}
	if p.options != nil {
		spec["initializationOptions"] = p.options(ctx)
	}
	if p.settings != "" {
		spec["settings"] = json.RawMessage(p.settings)
	}
	object := map[string]any{"apiVersion": "berth.dev/v1alpha1", "kind": "LanguageServer", "metadata": map[string]any{"name": name}}
	maps.Copy(object, map[string]any{"spec": spec})
	text, err := json.Marshal(object)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}
