// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxPackages is the maximum number of folders with installed packages whose changes are noticed.
const maxPackages = 256

// holdsPackages are the names of folders with installed packages. They contain too many folders to watch all of them. The watcher only compares which packages there are.
var holdsPackages = map[string]bool{"node_modules": true, ".venv": true, "venv": true}

// packages is what is known of a folder with installed packages.
type packages struct {
	quick string // the times of the folders that list the packages; a change means that content has to be determined again
	// content identifies the packages: their names, and the times of their folders.
	content uint64
}

// addPackages begins to compare a folder with installed packages. fresh reports that the folder is new, so that the server does not know its packages.
func (w *Watcher) addPackages(path string, fresh bool) {
	if !holdsPackages[filepath.Base(path)] || w.packages[path] != nil || len(w.packages) >= maxPackages {
		return
	}
	w.packages[path] = &packages{quick: "-"}
	if !fresh {
		w.packages[path].changed(path)
	}
}

// checkPackages finds the folders in which packages were installed, updated or removed since the previous call.
func (w *Watcher) checkPackages() {
	for _, path := range slices.Sorted(maps.Keys(w.packages)) {
		if w.packages[path].changed(path) && !slices.Contains(w.installed, path) {
			w.installed = append(w.installed, path)
		}
		if _, err := os.Lstat(path); err != nil {
			delete(w.packages, path) // if it is made again, its parent is watched
		}
	}
}

// changed reports whether the packages in a folder differ from those at the previous call.
func (p *packages) changed(path string) bool {
	lists := lists(path)
	quick := fmt.Sprint(lists, times(lists))
	if quick == p.quick {
		return false
	}
	content := fnv.New64a()
	for _, list := range lists {
		entries, err := os.ReadDir(list)
		if err != nil {
			continue // removed
		}
		for _, entry := range entries {
			// Build tools keep caches in hidden folders.
			if name := entry.Name(); !strings.HasPrefix(name, ".") && name != "__pycache__" {
				_, _ = fmt.Fprint(content, list, name, times([]string{filepath.Join(list, name)})) // does not fail
			}
		}
	}
	before := p.content
	p.quick, p.content = quick, content.Sum64()
	return p.content != before
}

// lists returns the folders that list the packages: the folder itself and those of scopes such as @types, or those of Python.
func lists(path string) []string {
	if filepath.Base(path) == "node_modules" {
		scopes, _ := filepath.Glob(filepath.Join(path, "@*")) // the pattern is valid, unless the path contains a special character
		return append([]string{path}, scopes...)
	}
	found, _ := filepath.Glob(filepath.Join(path, "lib", "python*", "site-packages"))
	return found
}

// times returns when each of the files was last changed; 0 if it does not exist.
func times(paths []string) []int64 {
	all := make([]int64, len(paths))
	for i, path := range paths {
		if info, err := os.Lstat(path); err == nil {
			all[i] = info.ModTime().UnixNano()
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				all[i] = stat.Ctim.Nano()
			}
		}
	}
	return all
}
