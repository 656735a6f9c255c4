// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// directory returns a directory with files.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "My Shop_2")
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDetect_ProposesServers(t *testing.T) {
	for name, test := range map[string]struct {
		files    map[string]string
		command  string // of the dev server; DIR is the directory of the project
		language string
	}{
		"Vite":           {map[string]string{"package.json": `{"scripts":{"dev":"vite"},"devDependencies":{"typescript":"5"}}`}, "npm run dev -- --port $(PORT) --strictPort", "typescript"},
		"Vite with pnpm": {map[string]string{"package.json": `{"scripts":{"dev":"vite --host"}}`, "pnpm-lock.yaml": "x"}, "pnpm run dev --port $(PORT) --strictPort", ""},
		"Next":           {map[string]string{"package.json": `{"scripts":{"dev":"next dev","start":"next start"}}`}, "npm run dev -- --port $(PORT)", ""},
		"nodemon":        {map[string]string{"package.json": `{"scripts":{"start":"nodemon server.js"}}`}, "npm run start", ""},
		"a library":      {map[string]string{"package.json": `{"scripts":{"test":"node --test"}}`, "tsconfig.json": "{}"}, "", "typescript"},
		"Django":         {map[string]string{"manage.py": "import django\n", "requirements.txt": "Django==5\n"}, "python3 manage.py runserver 127.0.0.1:$(PORT)", "python"},
		"Flask":          {map[string]string{"app.py": "x", "pyproject.toml": "[project]\ndependencies = [\"flask>=3\"]\n", ".venv/bin/python": "x"}, "DIR/.venv/bin/python -m flask --app app run --debug --port $(PORT)", "python"},
		"FastAPI":        {map[string]string{"main.py": "x", "requirements.txt": "fastapi[standard]\n"}, "python3 -m uvicorn main:app --reload --port $(PORT)", "python"},
		"Go":             {map[string]string{"go.mod": "module x\n"}, "", "go"},
		"Rust":           {map[string]string{"Cargo.toml": "[package]\n"}, "", "rust"},
		"nothing":        {map[string]string{"README": "x"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := directory(t, test.files)
			p, err := Detect(dir)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.Name).To(Equal("my-shop-2"))
			var command, language string
			if len(p.Servers) > 0 {
				command = strings.ReplaceAll(strings.Join(p.Servers[0].Command, " "), dir, "DIR")
			}
			if len(p.Languages) > 0 {
				language = p.Languages[0].Language
			}
			g.Expect(command).To(Equal(test.command))
			g.Expect(language).To(Equal(test.language))
		})
	}
}

func TestDetect_ReportsWhatItCannotRead(t *testing.T) {
	g := NewWithT(t)
	_, err := Detect(directory(t, map[string]string{"package.json": "{"}))
	g.Expect(err).To(MatchError(ContainSubstring("read package.json")))
	_, err = Detect(filepath.Join(t.TempDir(), "none"))
	g.Expect(err).To(HaveOccurred())
	p, err := Detect(directory(t, map[string]string{"compose.yaml": "services: {}"}))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.Notes).To(ConsistOf(ContainSubstring("docker compose up")))
}

func TestFiles_AddOnlyWhatIsMissing(t *testing.T) {
	g := NewWithT(t)
	dir := directory(t, map[string]string{
		"package.json":       `{"scripts":{"dev":"vite"},"devDependencies":{"typescript":"5"}}`,
		".mcp.json":          `{"mcpServers": {"other": {"command": "other", "args": ["--x"]}}, "keep": 1.50}`,
		".codex/config.toml": "model = \"x\"\n",
		"AGENTS.md":          "# Rules\n",
	})
	p, err := Detect(dir)
	g.Expect(err).NotTo(HaveOccurred())
	files, err := p.Files(Clients)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.Write(files)).To(Succeed())
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		g.Expect(err).NotTo(HaveOccurred())
		return string(text)
	}
	var claude struct {
		MCPServers map[string]struct {
			Command string   `json:"command"`
			Args    []string `json:"args"`
		} `json:"mcpServers"`
		Keep json.Number `json:"keep"`
	}
	g.Expect(json.Unmarshal([]byte(read(".mcp.json")), &claude)).To(Succeed())
	g.Expect(claude.MCPServers["other"].Args).To(Equal([]string{"--x"}))
	g.Expect(claude.MCPServers["berth"].Args).To(Equal([]string{"mcp"}))
	g.Expect(claude.Keep.String()).To(Equal("1.50"))
	g.Expect(read(".codex/config.toml")).To(Equal("model = \"x\"\n\n[mcp_servers.berth]\ncommand = \"berth\"\nargs = [\"mcp\"]\n"))
	g.Expect(read("AGENTS.md")).To(HavePrefix("# Rules\n\n" + agentsTitle))
	g.Expect(read(".vscode/mcp.json")).To(ContainSubstring(`"stdio"`))

	documents := strings.Split(read(ManifestFile), "---\n")[1:]
	g.Expect(documents).To(HaveLen(2))
	var server v1alpha1.DevServer
	g.Expect(yaml.UnmarshalStrict([]byte(documents[0]), &server)).To(Succeed())
	g.Expect(server.Spec.Process.WorkingDir).To(Equal(dir))
	var language v1alpha1.LanguageServer
	g.Expect(yaml.UnmarshalStrict([]byte(documents[1]), &language)).To(Succeed())
	g.Expect(language.Spec.Workspace.Folders).To(Equal([]string{dir}))
	g.Expect(language.Spec.State).To(Equal(v1alpha1.StateOnDemand))

	again, err := p.Files(Clients)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(BeEmpty(), "a second call has nothing to add")
	g.Expect(len(strings.Split(agentsSection, "\n"))).To(BeNumerically("<=", 30))
}

func TestFiles_RefusesInvalidConfiguration(t *testing.T) {
	g := NewWithT(t)
	p, err := Detect(directory(t, map[string]string{".mcp.json": "{ // comment\n}"}))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = p.Files([]string{"claude"})
	g.Expect(err).To(MatchError(ContainSubstring(".mcp.json: the file is not valid JSON")))
	_, err = p.Files([]string{"emacs"})
	g.Expect(err).To(MatchError(ContainSubstring(`unknown client "emacs": use claude, codex, cursor, vscode`)))
}
