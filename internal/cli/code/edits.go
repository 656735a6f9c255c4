// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/folder"
	lspdocument "github.com/berth-dev/berth/internal/lsp/document"
)

// Edit is a change of one file.
type Edit struct {
	File    string `json:"file"`
	Changes int    `json:"changes"`
	// before and after are the content of the file.
	before, after string
}

// After returns the content of the file after the edit.
func (e *Edit) After() string { return e.after }

// Rename returns the edits that rename the symbol at a position.
func (c *Client) Rename(ctx context.Context, path string, where Where, to string) ([]Edit, Extent, error) {
	edits, doubt, err := thorough(ctx, c, question[[]Edit]{path: path, print: printEdits, twice: true, ask: func(ctx context.Context) ([]Edit, error) {
		params, err := c.at(ctx, path, where)
		if err != nil {
			return nil, err
		}
		params["newName"] = to
		var answer *workspaceEdit
		if err := c.call(ctx, "textDocument/rename", params, &answer); err != nil || answer == nil {
			return nil, err
		}
		return answer.edits(&c.files)
	}})
	if err == nil && len(edits) == 0 && doubt == "" {
		err = errors.New("the language server cannot rename this symbol")
	}
	return edits, Extent{Complete: doubt == "", Total: len(edits), Reason: doubt}, err
}

func printEdits(edits []Edit) string {
	var text strings.Builder
	for i := range edits {
		fmt.Fprintf(&text, "%s\n%s\n%s\n", edits[i].File, edits[i].before, edits[i].after)
	}
	return text.String()
}

// Format returns the edit that formats a file, or nil if the file is formatted.
func (c *Client) Format(ctx context.Context, path string) (*Edit, error) {
	documents, err := c.sync(ctx, path)
	if err != nil {
		return nil, err
	}
	var raw json.RawMessage
	params := documentOf(path)
	params["options"] = c.files.indentation(path, documents[0].text)
	if err := c.call(ctx, "textDocument/formatting", params, &raw); err != nil || null(raw) {
		return nil, err
	}
	var changes []textEdit
	if err := json.Unmarshal(raw, &changes); err != nil {
		return nil, fmt.Errorf("decode the edits of the format: %w", err)
	}
	edit, err := makeEdit(&c.files, path, changes)
	switch {
	case err != nil:
		return nil, err
	case edit.before != documents[0].text:
		return nil, fmt.Errorf("%s: %w: try again", path, folder.ErrChanged)
	case edit.before == edit.after:
		return nil, nil
	}
	return edit, nil
}

// maxEdited is the maximum number of files that one answer may change.
const maxEdited = 1000

// edits returns the edits of the files.
func (w *workspaceEdit) edits(files *files) ([]Edit, error) {
	byPath := map[string][]textEdit{}
	for uri, changes := range w.Changes {
		byPath[pathOf(uri)] = append(byPath[pathOf(uri)], changes...)
	}
	for _, change := range w.DocumentChanges {
		if change.Kind != "" {
			return nil, fmt.Errorf("the language server wants to %s a file, which this client does not do", change.Kind)
		}
		path := pathOf(change.TextDocument.URI)
		byPath[path] = append(byPath[path], change.Edits...)
	}
	if len(byPath) > maxEdited {
		return nil, fmt.Errorf("the language server wants to change %d files, but at most %d are allowed", len(byPath), maxEdited)
	}
	var edits []Edit
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		edit, err := makeEdit(files, path, byPath[path])
		if err != nil {
			return nil, err
		}
		edits = append(edits, *edit)
	}
	return edits, nil
}

// makeEdit applies changes to the content of a file, in memory.
func makeEdit(files *files, path string, changes []textEdit) (*Edit, error) {
	content, err := files.before(path)
	if err != nil {
		return nil, err
	}
	// The ranges refer to the original text. The order of insertions at one position is kept.
	ordered := slices.Clone(changes)
	slices.SortStableFunc(ordered, func(a, b textEdit) int {
		return cmp.Or(a.Range.Start.Line-b.Range.Start.Line, a.Range.Start.Character-b.Range.Start.Character)
	})
	var text strings.Builder
	end := 0 // of the content that text already has
	for _, change := range ordered {
		from := lspdocument.Offset(content, change.Range.Start.Line, change.Range.Start.Character)
		to := lspdocument.Offset(content, change.Range.End.Line, change.Range.End.Character)
		if from > to || from < end {
			return nil, fmt.Errorf("%s: the edits of the language server overlap", path)
		}
		text.Write(content[end:from])
		text.WriteString(change.NewText)
		end = to
	}
	text.Write(content[end:])
	return &Edit{File: path, Changes: len(changes), before: string(content), after: text.String()}, nil
}

// Apply writes edits to disk: all of them, or none if a file was changed in the meantime or cannot be written.
func (c *Client) Apply(ctx context.Context, edits []Edit) error {
	changes := make([]folder.Change, 0, len(edits))
	for i := range edits {
		dir, name, err := c.files.writable(edits[i].File)
		if err != nil {
			return err
		}
		changes = append(changes, folder.Change{Dir: dir, Name: name, Before: []byte(edits[i].before), After: []byte(edits[i].after)})
	}
	err := folder.ReplaceAll(ctx, changes)
	if errors.Is(err, folder.ErrChanged) {
		return fmt.Errorf("nothing was written: %w: try again", err)
	}
	return err
}
