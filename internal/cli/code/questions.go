// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/folder"
	"github.com/berth-dev/berth/internal/printable"
)

// Place is a position in a file. Line and Column count from 1, Column in UTF-16 code units. Text is the line without surrounding space, if the file is in the workspace
// or in a library.
type Place struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"untrustedText,omitempty"`
}

// Page selects a part of a list: at most Limit entries after the first Offset ones. Without a limit, there are at most 200.
type Page struct{ Offset, Limit int }

// maxPage is the maximum limit of a page, and usualPage is the limit without one.
const maxPage, usualPage = 1000, 200

// cut returns the part of a list that a page selects, and the extent of this part. doubt states why the list itself may lack entries.
func cut[T any](all []T, page Page, doubt string) ([]T, Extent) {
	from := min(max(page.Offset, 0), len(all))
	limit := page.Limit
	if limit <= 0 {
		limit = usualPage
	}
	to := min(from+min(limit, maxPage), len(all))
	extent := Extent{Total: len(all), Reason: doubt}
	if to < len(all) {
		more := fmt.Sprintf("only %d of %d are listed: set offset to %d for the next ones", to-from, len(all), to)
		extent.Reason = strings.Join(slices.DeleteFunc([]string{doubt, more}, func(text string) bool { return text == "" }), "; ")
	} else if from > 0 && extent.Reason == "" {
		extent.Reason = fmt.Sprintf("the first %d are left out", from)
	}
	extent.Complete = extent.Reason == ""
	return all[from:to], extent
}

// Definition returns the definitions of the symbol at a position.
func (c *Client) Definition(ctx context.Context, path string, where Where) ([]Place, Extent, error) {
	return c.places(ctx, "textDocument/definition", path, where, nil, Page{})
}

// References returns the references to the symbol at a position, including its declaration, in the order of their files and lines.
func (c *Client) References(ctx context.Context, path string, where Where, page Page) ([]Place, Extent, error) {
	return c.places(ctx, "textDocument/references", path, where, map[string]any{"context": map[string]any{"includeDeclaration": true}}, page)
}

func (c *Client) places(ctx context.Context, method, path string, where Where, extra map[string]any, page Page) ([]Place, Extent, error) {
	found, doubt, err := thorough(ctx, c, question[[]location]{path: path, print: printLocations, ask: func(ctx context.Context) ([]location, error) {
		params, err := c.at(ctx, path, where)
		if err != nil {
			return nil, err
		}
		maps.Copy(params, extra)
		return c.locations(ctx, method, params)
	}})
	if err != nil {
		return nil, Extent{}, err
	}
	if extra != nil { // the order of definitions has a meaning
		slices.SortStableFunc(found, compareLocations)
		doubt = cmp.Or(doubt, rounded(len(found)))
	}
	part, extent := cut(found, page, doubt)
	lines := lineReader{files: &c.files, known: map[string][]string{}, left: maxPlaceRead}
	places := []Place{}
	for _, l := range part {
		places = append(places, lines.place(l))
	}
	return places, extent, nil
}

// locations sends a request whose answer is one location, or a list of them, or of links to them.
func (c *Client) locations(ctx context.Context, method string, params any) (found []location, err error) {
	var raw json.RawMessage
	if err := c.call(ctx, method, params, &raw); err != nil {
		return nil, err
	}
	if len(raw) > 0 && raw[0] == '{' {
		raw = json.RawMessage("[" + string(raw) + "]")
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &found); err != nil {
			return nil, fmt.Errorf("%s: decode the answer: %w", method, err)
		}
	}
	for i := range found {
		if l := &found[i]; l.TargetURI != "" {
			l.URI, l.Range = l.TargetURI, l.TargetSelectionRange
		}
	}
	return found, nil
}

func compareLocations(a, b location) int {
	return cmp.Or(strings.Compare(a.URI, b.URI), cmp.Compare(a.Range.Start.Line, b.Range.Start.Line), cmp.Compare(a.Range.Start.Character, b.Range.Start.Character))
}

func printLocations(all []location) string {
	sorted := slices.SortedFunc(slices.Values(all), compareLocations)
	return fmt.Sprint(sorted)
}

// rounded returns a doubt if a server has returned a round number of entries, because servers limit long lists without saying so: gopls and clangd to 100 symbols, and
// clangd to 1000 references.
func rounded(total int) string {
	if total >= 100 && (total%100 == 0 || total&(total-1) == 0) {
		return fmt.Sprintf("the language server returned exactly %d entries, which may be its own limit", total)
	}
	return ""
}

// at synchronizes a file and returns the parameters of a request for a position in it.
func (c *Client) at(ctx context.Context, path string, where Where) (map[string]any, error) {
	documents, err := c.sync(ctx, path)
	if err != nil {
		return nil, err
	}
	at, err := where.locate(documents[0].text, cmp.Or(Language(path), c.language))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	params := documentOf(path)
	params["position"] = at
	return params, nil
}

const (
	// maxPlaceRead is how many bytes of files are read for the places of one result.
	maxPlaceRead = 32 << 20
	// maxPlaceText is the maximum length of the text of a place, in bytes.
	maxPlaceText = 500
)

// lineReader reads single lines of the workspace and of libraries. It keeps the lines of each file that it has read.
type lineReader struct {
	files *files
	known map[string][]string
	left  int64 // how many bytes may still be read
}

func (r *lineReader) place(l location) Place {
	place := Place{File: pathOf(l.URI), Line: l.Range.Start.Line + 1, Column: l.Range.Start.Character + 1}
	lines, known := r.known[place.File]
	if !known {
		lines = r.lines(place.File)
		r.known[place.File] = lines
	}
	if place.Line >= 1 && place.Line <= len(lines) {
		place.Text = printable.Shorten(strings.TrimSpace(lines[place.Line-1]), maxPlaceText)
	}
	return place
}

// lines returns the lines of a file, or nil if it cannot be read: without its text, a place is still useful.
func (r *lineReader) lines(path string) []string {
	file, err := r.files.openPlace(path)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	text, err := folder.Content(file, min(maxFile, r.left))
	if err != nil {
		return nil
	}
	r.left -= int64(len(text))
	return strings.Split(string(text), "\n")
}

// maxHover is the maximum length of a description, in bytes.
const maxHover = 16 << 10

// Hover returns the description of the symbol at a position.
func (c *Client) Hover(ctx context.Context, path string, where Where) (string, error) {
	params, err := c.at(ctx, path, where)
	if err != nil {
		return "", err
	}
	var answer *struct {
		Contents json.RawMessage `json:"contents"`
	}
	if err := c.call(ctx, "textDocument/hover", params, &answer); err != nil || answer == nil {
		return "", err
	}
	return printable.Shorten(strings.TrimSpace(hoverText(answer.Contents)), maxHover), nil
}

// hoverText returns the text of hover contents in any of their three formats.
func hoverText(contents json.RawMessage) string {
	var text string
	if json.Unmarshal(contents, &text) == nil {
		return text
	}
	var marked struct {
		Value string `json:"value"`
	}
	if json.Unmarshal(contents, &marked) == nil {
		return marked.Value
	}
	var many []json.RawMessage
	_ = json.Unmarshal(contents, &many) // an unknown format has no text
	var all []string
	for _, one := range many {
		all = append(all, hoverText(one))
	}
	return strings.Join(all, "\n")
}

// Symbol is a named part of a file.
type Symbol struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	File   string `json:"file,omitempty"`
	Line   int    `json:"line"`
	Inside string `json:"inside,omitempty"` // the name of the surrounding symbol
}

// FileSymbols returns the symbols of a file.
func (c *Client) FileSymbols(ctx context.Context, path string, page Page) ([]Symbol, Extent, error) {
	return c.symbols(ctx, "textDocument/documentSymbol", documentOf(path), path, page)
}

// WorkspaceSymbols returns the symbols of the workspace that match a query.
func (c *Client) WorkspaceSymbols(ctx context.Context, query string, page Page) ([]Symbol, Extent, error) {
	return c.symbols(ctx, "workspace/symbol", map[string]any{"query": query}, c.anyFile(), page)
}

func (c *Client) symbols(ctx context.Context, method string, params map[string]any, path string, page Page) ([]Symbol, Extent, error) {
	all, doubt, err := thorough(ctx, c, question[[]Symbol]{path: path, print: printSymbols, ask: func(ctx context.Context) ([]Symbol, error) {
		if _, err := c.sync(ctx, slices.DeleteFunc([]string{path}, func(path string) bool { return path == "" })...); err != nil {
			return nil, err
		}
		var nodes []symbolNode
		if err := c.call(ctx, method, params, &nodes); err != nil {
			return nil, err
		}
		return flatten([]Symbol{}, nodes, ""), nil
	}})
	if err != nil {
		return nil, Extent{}, err
	}
	if method == "workspace/symbol" {
		doubt = cmp.Or(doubt, rounded(len(all)))
	}
	part, extent := cut(all, page, doubt)
	return part, extent, nil
}

func printSymbols(all []Symbol) string {
	var lines []string
	for _, symbol := range all {
		lines = append(lines, fmt.Sprint(symbol))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func flatten(all []Symbol, nodes []symbolNode, inside string) []Symbol {
	for i := range nodes {
		node := &nodes[i]
		symbol := Symbol{Name: node.Name, Kind: symbolKind(node.Kind), Line: node.Range.Start.Line + 1, Inside: inside}
		if node.SelectionRange != nil {
			symbol.Line = node.SelectionRange.Start.Line + 1
		}
		if node.Location != nil {
			symbol.File, symbol.Line, symbol.Inside = pathOf(node.Location.URI), node.Location.Range.Start.Line+1, node.ContainerName
		}
		all = flatten(append(all, symbol), node.Children, node.Name)
	}
	return all
}

// null reports whether an answer is null.
func null(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }
