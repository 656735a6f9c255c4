// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// hotProject is an npm project, and the file in it that the spec edits. That file contains the text "version 0", which the page shows.
type hotProject struct {
	source  string
	files   map[string]string
	edited  string
	command []string
}

// The commands contain no flag for the host, so the servers choose the addresses to listen on and the host name to print.
var (
	hotVite = hotProject{
		source: "samples/vite",
		files: map[string]string{
			"main.js": `import { words } from './words.js'
const show = (text) => { document.querySelector('#time').textContent = text }
show(words)
import.meta.hot.accept('./words.js', (module) => show(module.words))
`,
			"words.js": "export const words = 'version 0'\n",
		},
		edited:  "words.js",
		command: []string{"npm", "run", "dev", "--", "--port", "$(PORT)", "--strictPort"},
	}
	hotNext = hotProject{
		source: "test/e2e/projects/next",
		files: map[string]string{
			"app/page.js": `import { Words } from './words'
export default function Page() {
  return <Words />
}
`,
			"app/words.js": `'use client'
export function Words() {
  return <p>version 0</p>
}
`,
		},
		edited:  "app/words.js",
		command: []string{"npm", "run", "dev", "--", "-p", "$(PORT)"},
	}
)

var _ = DescribeTable("Hot reload works in a browser at status.url, and again after a restart", Label(anyUser),
	func(ctx context.Context, h hotProject, create func(name, dir string, command ...string) *testObject) {
		dir := workingCopy(ctx, h.source)
		for name, text := range h.files {
			Expect(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)).To(Succeed())
		}
		s := create("hot", dir, h.command...).create(ctx).waitUntilReady(ctx)
		// A server can be Ready before it prints the URL that determines the host of status.url.
		s.waitForCondition(ctx, v1alpha1.ConditionURLDetected, v1alpha1.ReasonDetected)
		url := s.server().Status.URL
		p := openPage(url)
		Eventually(p.text).WithTimeout(startTimeout).Should(ContainSubstring("version 0"), url)

		var version int
		// replaces is a function that edits the file repeatedly, until the page shows an edit without a reload. The page may reload for an edit that is made
		// before its connection for updates is open.
		replaces := func() {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				g.Expect(p.evaluate("window.loaded = 'once'")).To(Equal("once"))
				version++
				words := fmt.Sprint("version ", version)
				text := strings.Replace(h.files[h.edited], "version 0", words, 1)
				g.Expect(os.WriteFile(filepath.Join(dir, h.edited), []byte(text), 0o644)).To(Succeed())
				g.Eventually(p.text).WithTimeout(10*time.Second).Should(ContainSubstring(words), url)
				g.Expect(p.evaluate("window.loaded")).To(Equal("once"), "%s was loaded again", url)
			}).WithTimeout(startTimeout).Should(Succeed())
		}
		replaces()
		suiteBerth.run(ctx, "restart", s.path())
		s.waitForIncarnation(ctx, 2)
		s.waitForCondition(ctx, v1alpha1.ConditionURLDetected, v1alpha1.ReasonDetected)
		Expect(s.server().Status.URL).To(Equal(url))
		replaces()
	},
	Entry("Vite", NodeTimeout(lifecycleTimeout), hotVite, devServer),
	Entry("Vite behind the proxy", NodeTimeout(lifecycleTimeout), hotVite, newProxiedServer),
	Entry("Next", NodeTimeout(lifecycleTimeout), hotNext, devServer),
	Entry("Next behind the proxy", NodeTimeout(lifecycleTimeout), hotNext, newProxiedServer),
)

// workingCopy returns a copy of a project with its packages, for one spec to edit. The files in its node_modules are hard links.
func workingCopy(ctx context.Context, source string) string {
	GinkgoHelper()
	installed := installProject(ctx, source)
	dir, err := os.MkdirTemp(filepath.Dir(installed), "copy-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(os.RemoveAll(dir)).To(Succeed()) })
	Expect(os.CopyFS(dir, os.DirFS(filepath.Join(suiteBerth.root, source)))).To(Succeed())
	text, err := exec.CommandContext(ctx, "cp", "-al", filepath.Join(installed, "node_modules"), dir).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", text)
	return dir
}
