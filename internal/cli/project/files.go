// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// File is a file to be written.
type File struct {
	// Path is relative to the directory of the project.
	Path string
	Text string
	// Exists is true if the file exists, and Text adds something to it.
	Exists bool
}

// ManifestFile is the name of the file with the objects.
const ManifestFile = "berth.yaml"

// Clients are the coding agents whose configuration Files writes.
var Clients = []string{"claude", "codex", "cursor", "vscode"}

// configurations are the configurations of the clients: the path of the file, and the function that adds Berth to its content.
var configurations = map[string]struct {
	path string
	add  func(before string) (string, error)
}{
	"claude": {".mcp.json", addServer("mcpServers", map[string]any{"command": "berth", "args": []string{"mcp"}})},
	"codex":  {filepath.Join(".codex", "config.toml"), codex},
	"cursor": {filepath.Join(".cursor", "mcp.json"), addServer("mcpServers", map[string]any{"command": "berth", "args": []string{"mcp"}})},
	"vscode": {filepath.Join(".vscode", "mcp.json"), addServer("servers", map[string]any{"type": "stdio", "command": "berth", "args": []string{"mcp"}})},
}

// Files returns the files to write: the objects, the configuration of the clients, and a section for AGENTS.md. Files that already contain Berth are left out.
func (p *Project) Files(clients []string) ([]File, error) {
	var files []File
	add := func(path string, content func(before string) (string, error)) error {
		before, err := os.ReadFile(p.path(path))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text, contentErr := content(string(before))
		if contentErr != nil {
			return fmt.Errorf("%s: %w", path, contentErr)
		}
		if text != string(before) {
			files = append(files, File{Path: path, Text: text, Exists: err == nil})
		}
		return nil
	}
	errs := []error{add("AGENTS.md", agents)}
	if len(p.Servers)+len(p.Languages) > 0 {
		errs = append(errs, add(ManifestFile, p.manifest))
	}
	for _, client := range clients {
		if found, ok := configurations[client]; ok {
			errs = append(errs, add(found.path, found.add))
		} else {
			errs = append(errs, fmt.Errorf("unknown client %q: use %s", client, strings.Join(Clients, ", ")))
		}
	}
	return files, errors.Join(errs...)
}

// addServer returns a function that adds Berth to a JSON configuration under a key.
func addServer(key string, server map[string]any) func(before string) (string, error) {
	return func(before string) (string, error) {
		all := map[string]json.RawMessage{}
		servers := map[string]json.RawMessage{}
		if strings.TrimSpace(before) != "" {
			if err := json.Unmarshal([]byte(before), &all); err != nil {
				return "", fmt.Errorf("the file is not valid JSON, so nothing can be added to it: %w", err)
			}
		}
		if raw, ok := all[key]; ok {
			if err := json.Unmarshal(raw, &servers); err != nil {
				return "", fmt.Errorf("%s is not an object: %w", key, err)
			}
		}
		if _, ok := servers["berth"]; ok {
			return before, nil
		}
		var err error
		if servers["berth"], err = json.Marshal(server); err != nil {
			return "", err
		}
		if all[key], err = json.Marshal(servers); err != nil {
			return "", err
		}
		text, err := json.MarshalIndent(all, "", "  ")
		return string(text) + "\n", err
	}
}

func codex(before string) (string, error) {
	if strings.Contains(before, "[mcp_servers.berth]") {
		return before, nil
	}
	return separated(before) + "[mcp_servers.berth]\ncommand = \"berth\"\nargs = [\"mcp\"]\n", nil
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
- Use an interactive program: apply with name "instance/NAME", then send and screen.
- After each edit: diagnostics with the paths of the changed files. If settled is false, call it again before you rely on it.
- Navigate code: definition, references, symbols, hover. Rename in all files: rename with apply: true.
- Stop what you no longer need: stop keeps the object, delete removes it.

Without MCP, the commands are the same: berth status, berth logs -f KIND/NAME, berth restart KIND/NAME --wait, berth send KIND/NAME TEXT.
`

func agents(before string) (string, error) {
	if strings.Contains(before, agentsTitle) {
		return before, nil
	}
	return separated(before) + agentsSection, nil
}

// manifest returns the objects as YAML. It keeps an existing file, because the user may have changed it.
func (p *Project) manifest(before string) (string, error) {
	if before != "" {
		return before, nil
	}
	var text strings.Builder
	text.WriteString("# Objects of this project. Apply them with: kubectl apply -f " + ManifestFile + "\n")
	object := func(because, kind, name string, spec map[string]any) error {
		encoded, err := yaml.Marshal(map[string]any{"spec": spec})
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "---\n# Because of %s\napiVersion: berth.dev/v1alpha1\nkind: %s\nmetadata:\n  name: %s\n%s", because, kind, name, encoded)
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

// Write writes files below the directory of the project.
func (p *Project) Write(files []File) error {
	for _, file := range files {
		path := p.path(file.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(file.Text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
