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
	// Folder reports that the path was a folder that was moved away with everything in it. There are no changes for the files in it.
	Folder bool
}

const (
	// quiet is how long no file must change until the changes are delivered, and patience how long they are delivered at the latest. A checkout of many files
	// then is one delivery.
	quiet, patience = 100 * time.Millisecond, time.Second
	// maxFolders is the maximum number of folders that are watched. maxChanges is the maximum number of changes in one delivery.
	maxFolders, maxChanges = 16384, 50000
)

// ErrUnsupported means that files cannot be watched on this operating system.
var ErrUnsupported = errors.New("watching files is not supported on this operating system")

// skipped are names of folders that are not watched: data of version control, and installed packages.
var skipped = map[string]bool{".git": true, ".hg": true, ".svn": true, "node_modules": true, "__pycache__": true, ".venv": true, "venv": true}

// batch collects changes until they are delivered.
type batch struct {
	changes []Change
	index   map[string]int // of the change of each path
	lost    int            // changes beyond maxChanges
}

// add records a change. Of several changes of one file the server only needs the result.
func (b *batch) add(path string, kind Kind) {
	i, known := b.index[path]
	switch {
	case !known && len(b.changes) >= maxChanges:
		b.lost++
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

// move records that a folder was moved away.
func (b *batch) move(path string) {
	b.add(path, Deleted)
	if i, known := b.index[path]; known {
		b.changes[i].Folder = true
	}
}

// take returns the changes and forgets them.
func (b *batch) take() []Change {
	changes := b.changes
	*b = batch{}
	return changes
}
