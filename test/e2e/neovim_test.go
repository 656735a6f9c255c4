// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/need"
)

var _ = It("Neovim shows diagnostics and changes code through berth lsp connect, and does not notice restarts", Label(anyUser), NodeTimeout(lifecycleTimeout), func(ctx context.Context) {
	need.Programs(GinkgoT(), "nvim")
	t := languageProjects["gopls"]
	s, folder := t.languageServer(ctx, "neovim")
	s.create(ctx).waitUntilReady(ctx)
	main := filepath.Join(folder, t.main)
	editors := []*neovim{startNeovim(ctx, main), startNeovim(ctx, main)}
	editor, other := editors[0], editors[1]
	for _, n := range editors {
		Expect(n.lua("attach({%q, 'lsp', 'connect', %q}, %q)", suiteBerth.program(), s.GetName(), folder)).To(Equal("true"))
	}
	works := func(n *neovim) {
		GinkgoHelper()
		n.lua("move('greet(')")
		Eventually(func() string { return n.lua("ask('textDocument/hover')") }).WithTimeout(startTimeout).Should(ContainSubstring(t.hover))
		Expect(n.lua("connected()")).To(Equal("true"))
	}

	By("showing a mistake that is not saved, in the editor that made it only")
	works(editor)
	works(other)
	editor.lua("set(%q)", t.mistake)
	Eventually(func() string { return editor.lua("messages()") }).WithTimeout(startTimeout).Should(ContainSubstring(t.complaint))
	works(other)
	Expect(other.lua("messages()")).To(BeEmpty())
	Expect(editor.lua("messages()")).To(ContainSubstring(t.complaint))

	By("restarting the server, and killing it")
	suiteBerth.run(ctx, "restart", s.path())
	s.waitForIncarnation(ctx, 2)
	works(other)
	signalTo(s.status().Process.PID, s.mark, syscall.SIGKILL)
	works(other)
	Eventually(func() string { return editor.lua("messages()") }).WithTimeout(startTimeout).Should(ContainSubstring(t.complaint))
	editor.lua("set(%q)", t.files[t.main])
	Eventually(func() string { return editor.lua("messages()") }).WithTimeout(startTimeout).Should(BeEmpty())
	works(editor)

	By("formatting, completing and renaming")
	editor.lua("set(%q)", strings.Replace(t.files[t.main], "\tprintln", "  println", 1))
	editor.lua("format()")
	want, err := json.Marshal(t.files[t.main])
	Expect(err).NotTo(HaveOccurred())
	Expect(editor.lua("text()")).To(MatchJSON(want))
	editor.lua("move('reet(')")
	Expect(editor.lua("ask('textDocument/completion')")).To(ContainSubstring("greet"))
	editor.lua("move('greet(')")
	Expect(editor.lua("ask('textDocument/definition')")).To(ContainSubstring(t.helper))
	editor.lua("rename('welcome')")
	Eventually(func() string { return editor.lua("text()") }).WithTimeout(startTimeout).Should(ContainSubstring("welcome("))
	editor.lua("vim.cmd('wall')")
	Expect(os.ReadFile(filepath.Join(folder, t.helper))).To(BeEquivalentTo(strings.Replace(t.files[t.helper], "greet", "welcome", 1)))

	By("reading in the other editor what this editor has saved")
	other.lua("vim.cmd('checktime')")
	other.lua("move('welcome(')")
	Eventually(func() string { return other.lua("ask('textDocument/hover')") }).WithTimeout(startTimeout).Should(ContainSubstring("func welcome"))
})

// neovim is a Neovim without a terminal.
type neovim struct {
	socket      string
	environment []string
}

// startNeovim starts Neovim with a file, and ends it after the spec.
func startNeovim(ctx context.Context, file string) *neovim {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	n := &neovim{
		socket:      filepath.Join(dir, "socket"),
		environment: append(suiteBerth.environment(), "XDG_CACHE_HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_STATE_HOME="+dir), // no files in the home directory
	}
	init := filepath.Join(suiteBerth.root, "test/e2e/projects/neovim/init.lua")
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "nvim", "--headless", "-u", init, "-i", "NONE", "--listen", n.socket, file)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.environment, GinkgoWriter, GinkgoWriter
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	Expect(cmd.Start()).To(Succeed())
	DeferCleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // Wait has not been called, so the PID still identifies the process group
		_ = cmd.Wait()
	})
	Eventually(n.socket).WithTimeout(startTimeout).Should(BeAnExistingFile())
	return n
}

// lua evaluates a Lua expression in Neovim, and returns its value as text. Strings in the format are written with %q.
func (n *neovim) lua(format string, args ...any) string {
	GinkgoHelper()
	for i, arg := range args {
		text, ok := arg.(string)
		Expect(ok).To(BeTrue())
		args[i] = luaText(text)
	}
	expression := fmt.Sprintf(strings.ReplaceAll(format, "%q", "%s"), args...)
	quoted, err := json.Marshal("tostring((" + expression + "))") // also for a function without a value
	Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command("nvim", "--server", n.socket, "--remote-expr", "luaeval("+string(quoted)+")")
	cmd.Env = n.environment
	text, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s: %s", expression, text)
	return strings.TrimSuffix(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
}

// luaText returns a Lua string constant.
func luaText(text string) string {
	var quoted strings.Builder
	quoted.WriteByte('\'')
	for _, c := range []byte(text) {
		fmt.Fprintf(&quoted, "\\%03d", c)
	}
	quoted.WriteByte('\'')
	return quoted.String()
}
