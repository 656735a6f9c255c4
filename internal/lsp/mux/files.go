// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/lsp/watch"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	methodWatched = "workspace/didChangeWatchedFiles"
	// maxGlobs and maxGlobLength bound the patterns of a server, and maxFileChanges the changes in one notification.
	maxGlobs, maxGlobLength, maxFileChanges = 1000, 1000, 5000
)

// fileWatch is the state of the watcher of files, and what the server wants to know.
type fileWatch struct {
	globs   []glob
	folders []string // that are watched; nil: none
	stop    func()
}

// glob is a pattern of the server. kinds is a set of bits: 1 created, 2 changed, 4 deleted.
type glob struct {
	paths *regexp.Regexp
	kinds int
}

// watchFiles reads the patterns from the registrations, and starts the watcher when the server has registered the first one. The watcher runs until Quit, or until
// the folders of the spec change.
func (m *Mux) watchFiles() {
	m.files.globs = m.files.globs[:0]
	for _, r := range m.features.registrations {
		if r.Method == methodWatched {
			m.files.globs = append(m.files.globs, globs(r.Options, m.config.Folders)...)
		}
	}
	if excess := len(m.files.globs) - maxGlobs; excess > 0 {
		m.log("the language server has registered too many patterns of files; only the first 1000 are watched")
		m.files.globs = m.files.globs[:maxGlobs]
	}
	folders := m.config.Folders
	if len(m.files.globs) == 0 || m.options.Watch == nil || m.quitting || slices.Equal(folders, m.files.folders) {
		return
	}
	if stop := m.files.stop; stop != nil {
		m.awake.Go(stop) // it waits for filesChanged, which needs the lock
	}
	m.files.folders = slices.Clone(folders)
	var err error
	if m.files.stop, err = m.options.Watch(m.files.folders, m.filesChanged); err != nil {
		m.log("the language server does not learn what other programs change on disk: " + err.Error())
	}
}

// filesChanged tells the server about changes on disk. A server that is starting reads the files itself.
func (m *Mux) filesChanged(changes []watch.Change) {
	m.lock()
	defer m.unlock()
	if !m.serves() {
		return
	}
	type change struct {
		URI  string `json:"uri"`
		Type int    `json:"type"`
	}
	var wanted []change
	for _, c := range changes {
		// A server knows which of its files were in a folder that was moved away.
		if c.Folder || slices.ContainsFunc(m.files.globs, func(g glob) bool { return g.kinds&(1<<(c.Kind-1)) != 0 && g.paths.MatchString(c.Path) }) {
			wanted = append(wanted, change{fileURI(c.Path), int(c.Kind)})
		}
	}
	for part := range slices.Chunk(wanted, maxFileChanges) {
		m.server.put(wire.NotificationBody(methodWatched, wire.Encode(map[string]any{"changes": part})))
		m.server.toldAt = m.now()
	}
	if len(wanted) > 0 {
		m.server.pull.everything()
		m.pullNext()
	}
}

// globs returns the patterns of a registration. A pattern without a base is relative to each folder of the workspace.
func globs(options json.RawMessage, folders []string) []glob {
	var p struct {
		Watchers []struct {
			GlobPattern json.RawMessage `json:"globPattern"`
			Kind        *int            `json:"kind"`
		} `json:"watchers"`
	}
	if json.Unmarshal(options, &p) != nil {
		return nil
	}
	var list []glob
	for _, w := range p.Watchers {
		kinds := 7
		if w.Kind != nil {
			kinds = *w.Kind
		}
		pattern, bases := patternOf(w.GlobPattern, folders)
		if pattern == "" || len(pattern) > maxGlobLength || len(list) >= maxGlobs {
			continue
		}
		for _, base := range bases {
			if paths, err := regexp.Compile("^" + regexp.QuoteMeta(base) + globExpression(pattern) + "$"); err == nil {
				list = append(list, glob{paths, kinds})
			}
		}
	}
	return list
}

// patternOf returns a pattern and the paths before it. In the protocol it is a string, or an object with a base, which is a URI or a folder of the workspace.
func patternOf(raw json.RawMessage, folders []string) (pattern string, bases []string) {
	if json.Unmarshal(raw, &pattern) == nil {
		if strings.HasPrefix(pattern, "/") {
			return pattern, []string{""}
		}
		for _, folder := range folders {
			bases = append(bases, strings.TrimSuffix(folder, "/")+"/")
		}
		return pattern, bases
	}
	var relative struct {
		BaseURI json.RawMessage `json:"baseUri"`
		Pattern string          `json:"pattern"`
	}
	if json.Unmarshal(raw, &relative) != nil {
		return "", nil
	}
	var base string
	if json.Unmarshal(relative.BaseURI, &base) != nil {
		var folder folder
		_ = json.Unmarshal(relative.BaseURI, &folder) // an error leaves the base empty
		base = folder.URI
	}
	uri, err := url.Parse(base)
	if err != nil || uri.Scheme != "file" {
		return "", nil
	}
	return relative.Pattern, []string{strings.TrimSuffix(uri.Path, "/") + "/"}
}

// globExpression translates a pattern of the protocol into a regular expression: * and ? within a name, ** for any number of folders, {a,b} and [a-z].
func globExpression(pattern string) string {
	var out strings.Builder
	depth := 0
	for len(pattern) > 0 {
		length := 1
		switch c := pattern[0]; {
		case strings.HasPrefix(pattern, "**/"):
			out.WriteString("(?:.*/)?")
			length = 3
		case strings.HasPrefix(pattern, "**"):
			out.WriteString(".*")
			length = 2
		case c == '*':
			out.WriteString("[^/]*")
		case c == '?':
			out.WriteString("[^/]")
		case c == '{':
			out.WriteString("(?:")
			depth++
		case c == '}' && depth > 0:
			out.WriteString(")")
			depth--
		case c == ',' && depth > 0:
			out.WriteString("|")
		case c == '[' && strings.Contains(pattern, "]"):
			length = strings.Index(pattern, "]") + 1
			inner := pattern[1 : length-1]
			if rest, negated := strings.CutPrefix(inner, "!"); negated {
				inner = "^/" + rest
			}
			out.WriteString("[" + strings.ReplaceAll(inner, `\`, `\\`) + "]")
		default:
			out.WriteString(regexp.QuoteMeta(pattern[:1]))
		}
		pattern = pattern[length:]
	}
	return out.String()
}

// SetFolders sets the folders of the workspace for this and the next servers. A server that does not accept changes of its folders keeps the folders with which it
// was started.
func (m *Mux) SetFolders(folders []string) {
	m.lock()
	defer m.unlock()
	m.config.Folders = slices.Clone(folders)
	m.changed = true
	m.watchFiles()
	m.syncFolders()
}

// syncFolders notifies the server of the folders that were added and removed since the last notification.
func (m *Mux) syncFolders() {
	b := m.server
	if !b.accepts() || !b.foldersChange || slices.Equal(b.folders, m.config.Folders) {
		return
	}
	without := func(paths, others []string) []folder {
		return workspaceFolders(slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return slices.Contains(others, path) }))
	}
	event := map[string]any{"added": without(m.config.Folders, b.folders), "removed": without(b.folders, m.config.Folders)}
	b.folders, b.toldAt = m.config.Folders, m.now()
	b.put(wire.NotificationBody("workspace/didChangeWorkspaceFolders", wire.Encode(map[string]any{"event": event})))
	b.pull.everything()
	m.pullNext()
}

// changesFolders reports whether a server accepts changes of its folders. capability is the capability workspace of the server.
func changesFolders(capability json.RawMessage) bool {
	var workspace struct {
		Folders struct {
			Supported           bool            `json:"supported"`
			ChangeNotifications json.RawMessage `json:"changeNotifications"`
		} `json:"workspaceFolders"`
	}
	// changeNotifications is a boolean, or a string with which the server unregisters later.
	return json.Unmarshal(capability, &workspace) == nil && workspace.Folders.Supported && on(workspace.Folders.ChangeNotifications)
}
