// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"slices"
)

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
	b.put(notificationBody("workspace/didChangeWorkspaceFolders", encode(map[string]any{"event": event})))
	b.pull.everything(m.documents.URIs())
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
