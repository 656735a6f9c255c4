// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp/mux"
	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/test/lspclient"
)

// TestServers_ShareWorktrees gives one gopls several worktrees of a project while it runs, and compares its memory with one gopls for each worktree. WORKTREES is
// their number.
func TestServers_ShareWorktrees(t *testing.T) {
	g := NewWithT(t)
	count := 3
	if text := os.Getenv("WORKTREES"); text != "" {
		count, _ = strconv.Atoi(text)
	}
	s := servers["gopls"]
	s.files = map[string]string{
		"go.mod":    goFiles["go.mod"],
		"helper.go": goFiles["helper.go"],
		"main.go": "package main\n\nimport (\n\t\"crypto/tls\"\n\t\"encoding/json\"\n\t\"fmt\"\n\t\"go/types\"\n\t\"html/template\"\n\t\"net/http\"\n)\n\n" +
			"var _ = []any{tls.Config{}, json.Marshal, types.Config{}, template.New, http.Get}\n\nfunc main() {\n\tfmt.Println(helper(\"world\"))\n}\n",
	}
	s.from, s.mistake = "helper(", "helped("
	var folders []string
	for range count {
		folders = append(folders, s.folder(t))
	}
	// use opens the main file of a worktree, sees a mistake in it, and corrects the mistake.
	use := func(c *lspclient.Client, folder string) {
		opened := s.open(t, c, folder)
		opened.diagnosticsOfMistake()
	}

	var separate int64
	t.Run("separate", func(t *testing.T) {
		var running []*exec.Cmd
		for _, folder := range folders {
			command := s.program(t, folder)
			program, err := lspclient.Start(command)
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { _ = program.Kill(); _ = program.Close() })
			use(s.initialize(t, lspclient.New(program, lspclient.Options{}), folder, clientKinds["editor"]), folder)
			running = append(running, command)
		}
		for _, command := range running {
			stat, err := procstat.Read(command.Process.Pid)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(stat.Memory).To(BeNumerically(">", 0))
			separate += stat.Memory
		}
	})

	command := s.program(t, folders[0])
	program, err := lspclient.Start(command)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = program.Kill(); _ = program.Close() })
	m := mux.New(mux.Options{Config: s.config(t, folders[0]), Log: t.Logf})
	t.Cleanup(func() { m.Quit("the test is over") })
	m.Attach(1, program, program)
	clients := []*lspclient.Client{s.connect(t, m, folders[0], clientKinds["editor"])}
	use(clients[0], folders[0])
	m.SetFolders(folders)
	for _, folder := range folders[1:] {
		c := s.connect(t, m, folder, clientKinds["editor"])
		clients = append(clients, c)
		use(c, folder)
	}
	// Each client renames a function in its own worktree only.
	for i, c := range clients {
		var edit struct {
			DocumentChanges []struct{ TextDocument struct{ URI string } }
		}
		uri := lspclient.URI(folders[i], s.main)
		params := lspclient.PositionParams(uri, lspclient.Find(s.files[s.main], "helper(", 1))
		params["newName"] = "renamed"
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		g.Expect(c.Call(ctx, "textDocument/rename", params, &edit)).To(Succeed())
		cancel()
		var changed []string
		for _, change := range edit.DocumentChanges {
			changed = append(changed, change.TextDocument.URI)
		}
		g.Expect(changed).To(ConsistOf(uri, lspclient.URI(folders[i], "helper.go")))
	}
	stat, err := procstat.Read(command.Process.Pid)
	g.Expect(err).NotTo(HaveOccurred())
	shared := stat.Memory
	g.Expect(shared).To(BeNumerically(">", 0))
	t.Logf("%d worktrees: one gopls %d MiB, one for each %d MiB (%.0f %%)", count, shared>>20, separate>>20, 100*float64(shared)/float64(separate))
	g.Expect(shared).To(BeNumerically("<", separate), "one server needs less memory than several")
}
