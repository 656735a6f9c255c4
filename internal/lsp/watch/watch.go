// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch reports changes of the files in folders, so that a language server learns what other programs have changed on disk.
package watch

import (
	"errors"
	"time"
)

// Kind is the kind of a change, with the numbers of the Language Server Protocol.
type Kind int

// Kinds of changes.
const (
	Created Kind = iota + 1
	Changed
	Deleted
)

// Change is a change of one file or folder.
type Change struct {
	Path string
	Kind Kind
}

// Report is what a watcher has found since its previous report.
type Report struct {
	// Changes contains at most maxChanges changes. If a folder is deleted, moved or replaced, it contains a change for each file in the folder.
	Changes []Change
	// Found contains the paths of the folders that did not exist, and exist now.
	Found []string
	// Absent contains the paths of the folders that do not exist now, sorted.
	Absent []string
	// Installed contains the paths of the folders, such as node_modules, in which packages were installed, updated or removed. Their files are not in Changes.
	Installed []string
	// Unseen is why the watcher may miss changes, as a sentence without a full stop, with the remedy; empty if it misses none.
	Unseen string
	// Synced is the newest result of Sync whose changes were reported.
	Synced int64
}

const (
	// quiet is how long no file must change until the changes are reported, and patience how long after a change they are reported at the latest. A checkout of many
	// files then is one report.
	quiet, patience = 100 * time.Millisecond, time.Second
	// rootPeriod is how often the watcher checks whether the path of a folder still leads to the same folder. inotify reports neither a change of a parent or of a
	// symbolic link in the path, nor a mount.
	rootPeriod = time.Second
	// maxFolders is the maximum number of folders that are watched, and maxFiles of names that the watcher remembers. maxChanges is the maximum number of changes
	// in one report.
	maxFolders, maxFiles, maxChanges = 16384, 500_000, 50_000
	// retryPeriod is how often the watcher reads all folders again while Report.Unseen is not empty.
	retryPeriod = time.Minute
)

// ErrUnsupported means that files cannot be watched on this operating system.
var ErrUnsupported = errors.New("watching files is not supported on this operating system")

// skipped are names of folders that are not watched: data of version control, and installed packages.
var skipped = map[string]bool{".git": true, ".hg": true, ".svn": true, "node_modules": true, "__pycache__": true, ".venv": true, "venv": true}

// batch collects changes until they are reported.
type batch struct {
	changes []Change
	index   map[string]int // of the change of each path
}

// add records a change. Of several changes of one file the server only needs the result.
func (b *batch) add(path string, kind Kind) {
	i, known := b.index[path]
	switch {
	case !known:
		if b.index == nil {
			b.index = map[string]int{}
		}
		b.index[path] = len(b.changes)
		b.changes = append(b.changes, Change{Path: path, Kind: kind})
	case b.changes[i].Kind == Created && kind == Changed:
	case b.changes[i].Kind == Deleted && kind == Created:
		b.changes[i].Kind = Changed
	default:
		b.changes[i].Kind = kind
	}
}

// take returns the changes and forgets them.
func (b *batch) take() []Change {
	changes := b.changes
	*b = batch{}
	return changes
}
