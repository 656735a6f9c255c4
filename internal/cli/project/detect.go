// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package project detects what a directory with source code contains, and proposes the dev servers and language servers for it.
package project

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/folder"
	"github.com/berth-dev/berth/internal/printable"
)

// Project is what was detected in a directory.
type Project struct {
	// Dir is the absolute path of the directory. Name is its base name as a valid object name.
	Dir, Name string
	Servers   []DevServer
	Languages []LanguageServer
	// Notes are remarks for the user, such as programs that are missing.
	Notes []string
}

// DevServer is a proposal for a dev server. Because states why it was proposed.
type DevServer struct {
	Name    string
	Command []string
	Because string
}

// LanguageServer is a proposal for a language server. Because states why it was proposed.
type LanguageServer struct {
	Name, Language string
	Command        []string
	Because        string
}

// maxRead is the maximum size of a file that is read, in bytes.
const maxRead = 1 << 20

// longestName is the maximum length of the name of a project. It leaves room for a suffix in the names of the objects.
const longestName = 40

// Detect examines a directory, whose files another person may have written. It reads only regular files directly in it, and follows no symbolic links.
func Detect(dir string) (*Project, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the directory of the project: %w", err)
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("read the directory of the project: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	if printable.Line(dir) != dir {
		// The YAML library does not escape line separators, and some parsers end a line there.
		return nil, fmt.Errorf("the path %q contains control characters or is not valid UTF-8: rename the directory", dir)
	}
	p := &Project{Dir: dir, Name: cmp.Or(printable.Name(filepath.Base(dir), longestName), "project")}
	if err := p.node(); err != nil {
		return nil, err
	}
	p.python()
	if p.has("go.mod") {
		p.language("gopls", "go", "go.mod", "go install golang.org/x/tools/gopls@latest", "gopls")
	}
	if p.has("Cargo.toml") {
		p.language("rust-analyzer", "rust", "Cargo.toml", "rustup component add rust-analyzer", "rust-analyzer")
	}
	for _, name := range []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"} {
		if p.has(name) {
			p.Notes = append(p.Notes, name+": Berth does not start the services of Docker Compose; start them with docker compose up")
		}
	}
	return p, nil
}

func (p *Project) path(name string) string { return filepath.Join(p.Dir, name) }

// has reports whether the directory contains a regular file with a name. A symbolic link does not count.
func (p *Project) has(name string) bool {
	file, err := folder.Open(p.Dir, name)
	if err != nil {
		p.unread(err)
		return false
	}
	_ = file.Close()
	return true
}

// text returns the content of a file, or an empty string if it does not exist or cannot be read.
func (p *Project) text(name string) string {
	data, err := folder.Read(p.Dir, name, maxRead)
	p.unread(err)
	return string(data)
}

// unread adds a note about a file that exists and was not read, once.
func (p *Project) unread(err error) {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if note := "not read: " + err.Error(); !slices.Contains(p.Notes, note) {
		p.Notes = append(p.Notes, note)
	}
}

// serve proposes a dev server.
func (p *Project) serve(because string, command ...string) {
	name := p.Name
	if len(p.Servers) > 0 {
		name = fmt.Sprintf("%s-%d", p.Name, len(p.Servers)+1)
	}
	p.Servers = append(p.Servers, DevServer{Name: name, Command: command, Because: because})
}

// language proposes a language server. install is the command that installs its program.
func (p *Project) language(name, language, because, install string, command ...string) {
	if local := p.path(filepath.Join("node_modules", ".bin", command[0])); executable(local) {
		command[0] = literal(local)
	} else if _, err := exec.LookPath(command[0]); err != nil {
		p.Notes = append(p.Notes, fmt.Sprintf("%s is not in PATH; to install it, run: %s", command[0], install))
	}
	p.Languages = append(p.Languages, LanguageServer{Name: p.Name + "-" + name, Language: language, Command: command, Because: because})
}

// literal escapes a path for a command, in which $(NAME) would be replaced by the value of a variable.
func literal(path string) string { return strings.ReplaceAll(path, "$", "$$") }

// executable follows symbolic links, because package managers link programs. The user sees the path in the proposal.
func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// node examines package.json.
func (p *Project) node() error {
	if !p.has("package.json") {
		return nil
	}
	var pack struct {
		Scripts         map[string]string `json:"scripts"`
		Dependencies    map[string]string `json:"dependencies"`
		DevDependencies map[string]string `json:"devDependencies"`
	}
	text := p.text("package.json")
	if text == "" {
		return nil // a note states why, or the file is empty
	}
	if err := json.Unmarshal([]byte(text), &pack); err != nil {
		return fmt.Errorf("read package.json: %w", err)
	}
	uses := func(name string) bool { return pack.Dependencies[name] != "" || pack.DevDependencies[name] != "" }
	for _, script := range []string{"dev", "start", "serve"} {
		line := pack.Scripts[script]
		if line == "" {
			continue
		}
		p.serve(fmt.Sprintf("the script %q in package.json: %s", script, line), p.nodeCommand(script, line)...)
		break
	}
	if uses("typescript") || p.has("tsconfig.json") || p.has("jsconfig.json") {
		p.language("typescript", "typescript", "package.json", "npm install --global typescript typescript-language-server", "typescript-language-server", "--stdio")
	}
	return nil
}

// takePort are the programs that take their port as --port.
var takePort = []string{"vite", "astro", "next", "nuxt", "webpack", "ng"}

// nodeCommand returns the command that runs a script and passes it the port in the way that its program expects.
func (p *Project) nodeCommand(script, line string) []string {
	command := []string{p.packageManager(), "run", script}
	words := strings.FieldsFunc(line, func(char rune) bool { return strings.ContainsRune(" \t&|;", char) })
	if !slices.ContainsFunc(words, func(word string) bool { return slices.Contains(takePort, word) }) {
		return command
	}
	if command[0] == "npm" {
		command = append(command, "--") // the other package managers pass all arguments on
	}
	command = append(command, "--port", "$(PORT)")
	if slices.Contains(words, "vite") {
		command = append(command, "--strictPort")
	}
	return command
}

func (p *Project) packageManager() string {
	for _, known := range [][2]string{{"pnpm-lock.yaml", "pnpm"}, {"yarn.lock", "yarn"}, {"bun.lock", "bun"}, {"bun.lockb", "bun"}} {
		if p.has(known[0]) {
			return known[1]
		}
	}
	return "npm"
}

// python examines the files of Python projects.
func (p *Project) python() {
	described := p.text("pyproject.toml") + p.text("requirements.txt")
	django := p.has("manage.py") && strings.Contains(p.text("manage.py"), "django")
	program := "python3"
	for _, environment := range []string{".venv", "venv"} {
		if local := p.path(filepath.Join(environment, "bin", "python")); executable(local) {
			program = literal(local)
			break
		}
	}
	because := func(what string) string { return "the project uses " + what }
	switch module := p.application(); {
	case django:
		p.serve("manage.py", program, "manage.py", "runserver", "127.0.0.1:$(PORT)")
	case requires(described, "fastapi") && module != "":
		p.serve(because("FastAPI"), program, "-m", "uvicorn", module+":app", "--reload", "--port", "$(PORT)")
	case requires(described, "flask") && module != "":
		p.serve(because("Flask"), program, "-m", "flask", "--app", module, "run", "--debug", "--port", "$(PORT)")
	}
	if described != "" || django || p.has("setup.py") {
		p.language("pyright", "python", "Python files of the project", "npm install --global pyright", "pyright-langserver", "--stdio")
	}
}

// application returns the module with the application, or an empty string.
func (p *Project) application() string {
	for _, name := range []string{"main", "app"} {
		if p.has(name + ".py") {
			return name
		}
	}
	return ""
}

// requires reports whether a dependency is named in pyproject.toml or requirements.txt.
func requires(described, name string) bool {
	return regexp.MustCompile(`(?im)(^|["'\s])` + name + `\b`).MatchString(described)
}
