// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/folder"
)

const (
	// maxFile is the maximum size of a file, in bytes.
	maxFile = 8 << 20
	// maxOpen is the maximum number of documents that are open at the server.
	maxOpen = 64
)

// document is a file that is open at the server.
type document struct {
	path    string
	text    string
	version int
	used    int // the number of the last use, for eviction
}

// languages are the language identifiers of files by extension.
var languages = map[string]string{
	".go": "go", ".py": "python", ".ts": "typescript", ".tsx": "typescriptreact", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".jsx": "javascriptreact",
	".c": "c", ".h": "c", ".cc": "cpp", ".cpp": "cpp", ".hpp": "cpp", ".rs": "rust", ".css": "css", ".scss": "scss", ".html": "html", ".json": "json",
	".yaml": "yaml", ".yml": "yaml", ".sh": "shellscript", ".java": "java", ".rb": "ruby", ".php": "php", ".lua": "lua", ".md": "markdown",
	".mts": "typescript", ".cts": "typescript", ".vue": "vue", ".svelte": "svelte", ".astro": "astro", ".less": "less", ".jsonc": "jsonc", ".mdx": "mdx",
}

// withComments are the names of JSON files that may contain comments, as editors treat them.
var withComments = []string{"tsconfig.json", "tsconfig.*.json", "jsconfig.json", "jsconfig.*.json"}

// Language returns the language identifier of a file, or an empty string if it is unknown.
func Language(path string) string {
	for _, pattern := range withComments {
		if matches, _ := filepath.Match(pattern, filepath.Base(path)); matches {
			return "jsonc"
		}
	}
	return languages[strings.ToLower(filepath.Ext(path))]
}

// maxSearched is the maximum number of files and folders in which anyFile searches.
const maxSearched = 5000

// anyFile returns a file that is open at the server, or else one of the workspace in its language; empty if there is none. Some servers read a project only once a file
// of it is open, and know no symbols until then.
func (c *Client) anyFile() (found string) {
	c.syncing.Lock()
	for _, d := range c.documents {
		found = max(found, d.path)
	}
	c.syncing.Unlock()
	left := maxSearched
	for _, dir := range c.files.workspace {
		if found != "" {
			break
		}
		_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			left--
			switch {
			case left < 0:
				return fs.SkipAll
			case err != nil:
				return fs.SkipDir // it cannot be read
			case entry.IsDir() && path != dir && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
				return fs.SkipDir
			case entry.Type().IsRegular() && Serves(c.language, Language(path)):
				found = path
				return fs.SkipAll
			}
			return nil
		})
	}
	return found
}

// families are the languages whose servers also serve other languages.
var families = map[string]string{
	"typescriptreact": "typescript", "javascript": "typescript", "javascriptreact": "typescript", "c": "cpp", "scss": "css", "less": "css", "jsonc": "json",
	"shellscript": "bash",
}

// Serves reports whether a server for one language also serves another one.
func Serves(server, language string) bool {
	return language != "" && (server == language || server == families[language] || families[server] == language)
}

// sync opens the files at the server, and makes all open documents equal to the files on disk. It returns copies of the documents of the files.
func (c *Client) sync(ctx context.Context, paths ...string) (wanted []document, err error) {
	c.syncing.Lock()
	defer c.syncing.Unlock()
	c.uses++
	for _, d := range c.documents {
		if slices.Contains(paths, d.path) {
			continue
		}
		// A document that cannot be read any more is closed. Only a caller who asks for it learns why.
		if _, err := c.refresh(ctx, d); err != nil {
			return nil, err
		}
	}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		d := c.documents[path]
		if d == nil {
			d = &document{path: path}
			if err := c.open(ctx, d); err != nil {
				return nil, err
			}
		} else if unreadable, err := c.refresh(ctx, d); err != nil || unreadable != nil {
			return nil, cmp.Or(err, unreadable)
		}
		d.used = c.uses
		wanted = append(wanted, *d)
	}
	return wanted, c.evict(ctx, paths)
}

func (c *Client) open(ctx context.Context, d *document) error {
	if _, err := d.read(&c.files); err != nil {
		return err
	}
	d.version = 1
	language := cmp.Or(Language(d.path), c.language)
	c.documents[d.path] = d
	return c.conn.Notify(ctx, "textDocument/didOpen", map[string]any{
		"textDocument": map[string]any{"uri": uriOf(d.path), "languageId": language, "version": d.version, "text": d.text},
	})
}

// refresh makes a document equal to its file. It closes the document if the file cannot be read, and then returns why as unreadable.
func (c *Client) refresh(ctx context.Context, d *document) (unreadable, err error) {
	changed, err := d.read(&c.files)
	if err != nil {
		delete(c.documents, d.path)
		return err, c.conn.Notify(ctx, "textDocument/didClose", documentOf(d.path))
	}
	if !changed {
		return nil, nil
	}
	d.version++
	id := map[string]any{"uri": uriOf(d.path), "version": d.version}
	err = c.conn.Notify(ctx, "textDocument/didChange", map[string]any{"textDocument": id, "contentChanges": []any{map[string]any{"text": d.text}}})
	if err != nil {
		return nil, err
	}
	return nil, c.conn.Notify(ctx, "textDocument/didSave", documentOf(d.path))
}

// read reads the file. It reports whether the text has changed. The size and the modification time would not show that: programs such as cp -p set them.
func (d *document) read(files *files) (changed bool, err error) {
	file, err := files.open(d.path)
	if missing(err) {
		return false, fmt.Errorf("%s does not exist: %w", d.path, fs.ErrNotExist)
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	text, err := folder.Content(file, maxFile)
	if err != nil {
		return false, err
	}
	if d.version > 0 && string(text) == d.text {
		return false, nil
	}
	d.text = string(text)
	return true, nil
}

// evict closes the documents that were not used for the longest time, except the given ones, while too many are open.
func (c *Client) evict(ctx context.Context, keep []string) error {
	for len(c.documents) > maxOpen {
		var oldest *document
		for _, d := range c.documents {
			if !slices.Contains(keep, d.path) && (oldest == nil || d.used < oldest.used) {
				oldest = d
			}
		}
		if oldest == nil {
			return nil
		}
		delete(c.documents, oldest.path)
		if err := c.conn.Notify(ctx, "textDocument/didClose", documentOf(oldest.path)); err != nil {
			return err
		}
	}
	return nil
}
