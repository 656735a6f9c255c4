// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/folder"
	"github.com/berth-dev/berth/internal/printable"
)

// File is a file to be written.
type File struct {
	// Path is relative to the directory of the project.
	Path string
	Text string
	// Exists is true if the file exists, and Text adds something to it.
	Exists bool
	// Skipped states why Write leaves the file out, for example because it is a symbolic link. It is usually empty.
	Skipped string

	before []byte // the content that Text was made from
}

// ManifestFile is the name of the file with the objects.
const ManifestFile = "berth.yaml"

// CodexHooks is the file with the hooks of Codex.
var CodexHooks = filepath.Join(".codex", "hooks.json")

// Clients are the coding agents whose configuration Files writes.
var Clients = []string{"claude", "codex", "cursor", "gemini", "opencode", "qwen", "vscode"}

// configuration is a configuration file of a client: its path, and the function that adds Berth to its content.
type configuration struct {
	path string
	add  func(before string) (string, error)
}

// configurations are the configuration files of the clients.
var configurations = map[string][]configuration{
	"claude": {
		{".mcp.json", addServer("mcpServers", map[string]any{"command": "berth", "args": []string{"mcp"}})},
		{filepath.Join(".claude", "settings.json"), addHooks(claudeEvents, 5)},
	},
	"codex": {
		{filepath.Join(".codex", "config.toml"), codex},
		{CodexHooks, addHooks(codexEvents, 5)},
	},
	"gemini":   {{filepath.Join(".gemini", "settings.json"), addHooks(geminiEvents, 5000)}},
	"opencode": {{filepath.Join(".opencode", "plugins", "berth.js"), opencodeHooks}},
	"qwen":     {{filepath.Join(".qwen", "settings.json"), addHooks(qwenEvents, 5)}},
	"cursor":   {{filepath.Join(".cursor", "mcp.json"), addServer("mcpServers", map[string]any{"command": "berth", "args": []string{"mcp"}})}},
	"vscode":   {{filepath.Join(".vscode", "mcp.json"), addServer("servers", map[string]any{"type": "stdio", "command": "berth", "args": []string{"mcp"}})}},
}

// Files returns the files to write: the objects, the configuration of the clients, and a section for AGENTS.md. Files that already contain Berth are left out. Files adds
// a note about each of them that contains something else than it would write, because the user may not have written it.
func (p *Project) Files(clients []string) ([]File, error) {
	var files []File
	add := func(path string, content func(before string) (string, error)) error {
		file := File{Path: path}
		var err error
		file.before, err = folder.Read(p.Dir, path, maxRead)
		file.Exists = err == nil
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			file.Skipped = err.Error()
			files = append(files, file)
			return nil
		}
		file.Text, err = content(string(file.before))
		if errors.Is(err, errOther) || errors.Is(err, errNoHooks) {
			p.Notes = append(p.Notes, path+": "+err.Error())
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if file.Text != string(file.before) {
			files = append(files, file)
		}
		return nil
	}
	errs := []error{add("AGENTS.md", agents)}
	if len(p.Servers)+len(p.Languages) > 0 {
		errs = append(errs, add(ManifestFile, p.manifest))
	}
	for _, client := range clients {
		if configurations[client] == nil {
			errs = append(errs, fmt.Errorf("unknown client %q: use %s", client, strings.Join(Clients, ", ")))
		}
		for _, file := range configurations[client] {
			errs = append(errs, add(file.path, file.add))
		}
	}
	return files, errors.Join(errs...)
}

// errOther is the error of a function that adds Berth to a file which already contains another entry for Berth.
var errOther = errors.New("kept, although it differs from what berth init would write: read it before you use it")

// errNotJSON is the error about a file that is not valid JSON, for example because it contains comments.
var errNotJSON = errors.New("the file is not valid JSON")

// addServer returns a function that adds Berth to a JSON configuration under a key.
func addServer(key string, server map[string]any) func(before string) (string, error) {
	return func(before string) (string, error) {
		all, servers, err := section(before, key)
		if err != nil {
			return "", err
		}
		mine, err := json.Marshal(server)
		if err != nil {
			return "", err
		}
		if known, ok := servers["berth"]; ok {
			if !sameJSON(known, mine) {
				return "", errOther
			}
			return before, nil
		}
		servers["berth"] = mine
		if all[key], err = json.Marshal(servers); err != nil {
			return "", err
		}
		text, err := json.MarshalIndent(all, "", "  ")
		return string(text) + "\n", err
	}
}

// section returns the fields of a JSON object, and those of the object in one of its fields.
func section(text, key string) (all, fields map[string]json.RawMessage, err error) {
	all, fields = map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if strings.TrimSpace(text) != "" {
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			return nil, nil, fmt.Errorf("%w, so nothing can be added to it: %w", errNotJSON, err)
		}
	}
	if raw, ok := all[key]; ok {
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, nil, fmt.Errorf("%s is not an object: %w", key, err)
		}
	}
	return all, fields, nil
}

// sameJSON reports whether two JSON texts have the same value.
func sameJSON(a, b []byte) bool {
	var first, second any
	return json.Unmarshal(a, &first) == nil && json.Unmarshal(b, &second) == nil && reflect.DeepEqual(first, second)
}

// codexServer begins the section for Berth in the configuration of Codex, and codexSection is the section.
const (
	codexServer  = "[mcp_servers.berth]"
	codexSection = codexServer + "\ncommand = \"berth\"\nargs = [\"mcp\"]\n"
)

func codex(before string) (string, error) {
	switch {
	case strings.Contains(before, codexSection):
		return before, nil
	case strings.Contains(before, codexServer):
		return "", errOther
	}
	return separated(before) + codexSection, nil
}

// separated returns a text that ends with an empty line, or an empty text.
func separated(text string) string {
	if text == "" {
		return ""
	}
	return strings.TrimRight(text, "\n") + "\n\n"
}

// agentsTitle begins the section of AGENTS.md.
const agentsTitle = "## Processes: use Berth"

const agentsSection = agentsTitle + `

Berth runs the dev servers, terminal sessions and language servers of this project. Use the tools of the MCP server "berth". Do not start servers with "&", "nohup"
or "npm run dev" in a shell, do not choose ports, and do not end processes with "pkill" or "kill".

- List the processes and their addresses: list. Why something is not ready, and what to do next: get.
- Start or change a dev server: apply with name "devserver/NAME", command, workingDir and wait: true. The result has its address. Pass $(PORT) in the command; Berth
  chooses the port and keeps it.
- The proposed objects of this project are in berth.yaml: pass its content as manifest to apply.
- Restart after a change of the configuration: restart with wait: true. If it fails, call get and logs, correct the cause, and restart again.
- Read output: logs, with search for a regular expression and cursor for only what is new.
- Use an interactive program: apply with name "instance/NAME", then send and screen. One send answers one question: in a menu, send the number of the choice, or keys
  (Up, Down, Enter, Escape). If the result contains untrustedQuestion, that question is still open: read it, and decide about it with another send.
- Run another coding agent: apply a manifest of an Instance with process.command and process.resumeCommand, so that a restart continues its session. For Claude
  Code these are [claude, --session-id, $(SESSION_ID)] and [claude, --resume, $(SESSION_ID)].
- After each edit: diagnostics with the paths of the changed files. If settled is false, call it again before you rely on it.
- Navigate code: definition, references, symbols, hover. Rename in all files: rename with apply: true.
- Stop what you no longer need: stop keeps the object, delete removes it.

Without MCP, the commands are the same: berth status, berth logs -f KIND/NAME, berth restart KIND/NAME --wait, berth send KIND/NAME TEXT
(exit code 5: another question follows).
`

func agents(before string) (string, error) {
	switch {
	case strings.Contains(before, agentsSection):
		return before, nil
	case strings.Contains(before, agentsTitle):
		return "", errOther
	}
	return separated(before) + agentsSection, nil
}

// manifest returns the objects as YAML. It keeps an existing file, because the user may have changed it.
func (p *Project) manifest(before string) (string, error) {
	proposed, err := p.proposal()
	if err == nil && before != "" && before != proposed {
		err = errOther
	}
	return proposed, err
}

// maxBecause is the maximum length of a comment that states why an object is proposed, in bytes.
const maxBecause = 200

// proposal returns the proposed objects as YAML. Everything that comes from the project is encoded, except the comments, which printable.Line keeps on their line.
func (p *Project) proposal() (string, error) {
	var text strings.Builder
	text.WriteString("# Objects of this project. Apply them with: kubectl apply -f " + ManifestFile + "\n")
	object := func(because, kind, name string, spec map[string]any) error {
		encoded, err := yaml.Marshal(map[string]any{
			"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "---\n# Because of %s\n%s", printable.Shorten(printable.Line(because), maxBecause), encoded)
		return nil
	}
	var errs []error
	for _, s := range p.Servers {
		errs = append(errs, object(s.Because, "DevServer", s.Name, map[string]any{"process": map[string]any{"command": s.Command, "workingDir": p.Dir}}))
	}
	for _, s := range p.Languages {
		errs = append(errs, object(s.Because, "LanguageServer", s.Name, map[string]any{
			"language": s.Language, "process": map[string]any{"command": s.Command}, "state": "OnDemand", "workspace": map[string]any{"folders": []string{p.Dir}},
		}))
	}
	return text.String(), errors.Join(errs...)
}

// Write writes files below the directory of the project, except those that are skipped. It writes no file whose content has changed since Files.
func (p *Project) Write(files []File) error {
	for _, file := range files {
		var err error
		switch {
		case file.Skipped != "":
		case file.Exists:
			err = folder.Replace(p.Dir, file.Path, file.before, []byte(file.Text))
		default:
			err = folder.Create(p.Dir, file.Path, []byte(file.Text))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
