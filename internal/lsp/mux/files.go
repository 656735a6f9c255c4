// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/watch"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	methodWatched = "workspace/didChangeWatchedFiles"
	// maxGlobs and maxGlobLength bound the patterns of a server, and maxFileChanges the changes in one notification.
	maxGlobs, maxGlobLength, maxFileChanges = 1000, 1000, 5000
	// maxPending is the maximum number of changes that wait until a server has started.
	maxPending = 50_000
)

// Files watches folders on disk, as watch.Watcher does. None of its methods waits for a report.
type Files interface {
	SetFolders(folders []string)
	// Sync requests a report that contains everything that has changed until now: the first one whose Synced is the result or greater.
	Sync() int64
	Close()
}

// WatchDisk is the usual value of Options.Watch.
func WatchDisk(folders []string, since time.Time, report func(watch.Report)) (Files, error) {
	return watch.Start(folders, since, report)
}

// fileWatch is the state of the watcher of files, and what the server wants to know.
type fileWatch struct {
	globs   []glob
	watcher Files          // nil: the server has not registered patterns, or the watcher could not be started
	folders []string       // of the watcher
	pending []watch.Change // for a server that is starting, which may have read the files before they changed
	found   []string       // like pending, for folders that exist now
	absent  []string       // the folders that do not exist
	// installed are folders such as node_modules whose packages have changed since the current server was attached.
	installed []string
	synced    int64 // the newest Synced of a report
	// unseen is why the watcher may miss changes, and lost why the current server was not told about changes; empty if there is no reason.
	unseen, lost string
}

// doubt returns why the server may not know what has changed on disk that concerns a document; empty if it does.
func (f *fileWatch) doubt(uri string) string {
	path := pathOf(uri)
	for _, folder := range f.absent {
		if strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/") {
			return folder + " does not exist"
		}
	}
	for _, folder := range f.installed {
		if strings.HasPrefix(path, filepath.Dir(folder)+"/") {
			return "the packages in " + folder + " have changed, and the server may not know it: restart the language server"
		}
	}
	return cmp.Or(f.unseen, f.lost)
}

// problem returns why the server may not know what has changed on disk in a workspace with this first folder; empty if it does, or if it does not want to know.
func (f *fileWatch) problem(root string) string {
	switch {
	case slices.Contains(f.absent, root):
		return root + " does not exist"
	case len(f.globs) > 0:
		return cmp.Or(f.unseen, f.lost)
	}
	return ""
}

// root returns the first folder of the workspace, or an empty string.
func (m *Mux) root() string {
	if len(m.config.Folders) == 0 {
		return ""
	}
	return filepath.Clean(m.config.Folders[0])
}

// glob is a pattern of the server. kinds is a set of bits: 1 created, 2 changed, 4 deleted.
type glob struct {
	paths *regexp.Regexp
	kinds int
}

// watchFiles reads the patterns from the registrations, and starts the watcher when the first server is ready. The watcher runs until Quit.
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
	switch folders := slices.Clone(m.config.Folders); {
	case m.files.watcher != nil && !slices.Equal(folders, m.files.folders):
		m.files.folders = folders
		m.files.watcher.SetFolders(folders)
	case m.files.watcher == nil && m.options.Watch != nil && m.server != nil && m.server.ready() && len(folders) > 0 && !m.quitting:
		watcher, err := m.options.Watch(folders, m.server.health.attachedAt, m.filesRead)
		if err != nil {
			m.doubtFiles(err.Error())
			return
		}
		m.files.folders, m.files.watcher = folders, watcher
		m.doubtFiles("")
	}
	m.tellPending()
}

// doubtFiles records why the watcher may miss changes.
func (m *Mux) doubtFiles(why string) {
	if why == m.files.unseen {
		return
	}
	m.files.unseen, m.changed = why, true
	if why != "" {
		m.log("the language server may not learn what other programs change on disk: " + why)
	}
}

// filesRead handles a report of the watcher.
func (m *Mux) filesRead(report watch.Report) {
	m.lock()
	defer m.unlock()
	m.doubtFiles(report.Unseen)
	m.files.synced = max(m.files.synced, report.Synced)
	if !slices.Equal(m.files.absent, report.Absent) {
		m.files.absent, m.changed = report.Absent, true
	}
	m.files.installed = slices.Compact(slices.Sorted(slices.Values(append(m.files.installed, report.Installed...))))
	switch {
	case m.server == nil: // the next server reads the files itself
	case slices.Contains(report.Found, m.root()):
		m.markFaulty(m.server, lsp.ReasonFolderReplaced, fmt.Sprintf("%s did not exist and exists again, and the language server may have found it missing", m.root()))
	case len(m.files.pending)+len(report.Changes) > maxPending:
		m.files.lost = fmt.Sprintf("more than %d files changed while the language server started: restart the language server", maxPending)
	default:
		m.files.pending = append(m.files.pending, report.Changes...)
		m.files.found = slices.Compact(slices.Sorted(slices.Values(append(m.files.found, report.Found...))))
	}
	m.tellPending()
}

// tellPending tells the server about the changes on disk that wait until it is ready and until it has had the time to register patterns. Then it lets the inquiries
// continue that wait for these changes.
func (m *Mux) tellPending() {
	f, b := &m.files, m.server
	if b != nil && b.ready() {
		m.addAgain(f.found)
		f.found = nil
		if len(f.globs) > 0 || b.health.indexed || m.now().Sub(b.health.readyAt) >= progressGrace {
			m.tellFiles(f.pending)
			f.pending = nil
		}
	}
	if b != nil && len(f.pending) > 0 {
		return
	}
	for _, r := range slices.Clone(m.inquiries) {
		if q := r.inquiry; q.synced > 0 && q.synced <= f.synced {
			if q.synced = 0; q.filesOnly {
				m.synced(r)
			} else {
				m.diagnose(r)
			}
		}
	}
}

// addAgain removes and adds folders of the workspace that did not exist, because a server may have ignored them. Two notifications are needed: gopls adds nothing if
// it cannot remove a folder.
func (m *Mux) addAgain(found []string) {
	b := m.server
	if !b.accepts() || !b.foldersChange {
		return
	}
	again := workspaceFolders(slices.DeleteFunc(slices.Clone(b.folders), func(path string) bool { return !slices.Contains(found, filepath.Clean(path)) }))
	if len(again) == 0 {
		return
	}
	for _, event := range []map[string]any{{"added": []folder{}, "removed": again}, {"added": again, "removed": []folder{}}} {
		b.put(wire.NotificationBody("workspace/didChangeWorkspaceFolders", wire.Encode(map[string]any{"event": event})))
	}
	b.toldAt = m.now()
	b.pull.everything()
	m.pullNext()
}

// tellFiles tells the server about changes on disk. A server that has registered no patterns receives all of them. Some such servers, such as clangd, read changed
// files only when they receive the text of a document that depends on them.
func (m *Mux) tellFiles(changes []watch.Change) {
	type change struct {
		URI  string `json:"uri"`
		Type int    `json:"type"`
	}
	var wanted []change
	registered := len(m.files.globs) > 0
	for _, c := range changes {
		if !registered || slices.ContainsFunc(m.files.globs, func(g glob) bool { return g.kinds&(1<<(c.Kind-1)) != 0 && g.paths.MatchString(c.Path) }) {
			wanted = append(wanted, change{fileURI(c.Path), int(c.Kind)})
		}
	}
	if len(wanted) == 0 || !m.server.accepts() {
		return
	}
	for part := range slices.Chunk(wanted, maxFileChanges) {
		m.server.put(wire.NotificationBody(methodWatched, wire.Encode(map[string]any{"changes": part})))
	}
	if !registered {
		m.renewAll(changes)
	}
	m.server.toldAt = m.now()
	m.server.pull.everything()
	m.pullNext()
}

// sources are the files that C, C++ and Objective-C programs can include, and the configuration of clangd.
var sources = regexp.MustCompile(`(?i)(?:/[^/.]+|\.(?:[chm]|cc|mm|cu|cuh|[ch](?:pp|xx|\+\+)|hh|inc|inl|ipp|tpp|tcc|ixx|cppm|def)|/compile_commands\.json|/compile_flags\.txt|/\.clangd|/\.clang-tidy)$`)

// renewAll sends the server the texts of all open documents again if files have changed that they may include, and that no client has open: a client that saves a file
// notifies the server itself. After other changes, a document is only renewed when a client asks for its diagnostics.
func (m *Mux) renewAll(changes []watch.Change) {
	m.documents.Outdate()
	m.server.forgets, m.server.filesAt = m.now().Sub(m.server.filesAt) < forgetful, m.now()
	if !slices.ContainsFunc(changes, func(c watch.Change) bool { return sources.MatchString(c.Path) && !m.documents.IsOpen(fileURI(c.Path)) }) {
		return
	}
	for _, uri := range m.documents.URIs() {
		m.renew(uri)
	}
}

// forgetful is how long after a change of a file the next one may escape clangd, which compares the sizes of files, and their times in whole seconds. Documents are
// then closed and opened again.
const forgetful = 2 * time.Second

// renew sends the server the text of a document again, if files have changed since it received the text.
func (m *Mux) renew(uri string) {
	m.emit(m.documents.Renew(uri, m.server.forgets))
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
