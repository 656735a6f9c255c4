// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
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

// maxPlaces is the maximum number of places in one result.
const maxPlaces = 200

// Definition returns the definitions of the symbol at a position.
func (c *Client) Definition(ctx context.Context, path string, where Where) ([]Place, error) {
	return c.places(ctx, "textDocument/definition", path, where, nil)
}

// References returns the references to the symbol at a position, including its declaration. There are at most 200; more states whether others were left out.
func (c *Client) References(ctx context.Context, path string, where Where) ([]Place, error) {
	return c.places(ctx, "textDocument/references", path, where, map[string]any{"context": map[string]any{"includeDeclaration": true}})
}

func (c *Client) places(ctx context.Context, method, path string, where Where, extra map[string]any) ([]Place, error) {
	params, err := c.at(ctx, path, where)
	if err != nil {
		return nil, err
	}
	maps.Copy(params, extra)
	var raw json.RawMessage
	if err := c.call(ctx, method, params, &raw); err != nil {
		return nil, err
	}
	if len(raw) > 0 && raw[0] == '{' {
		raw = json.RawMessage("[" + string(raw) + "]")
	}
	var found []location
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &found); err != nil {
			return nil, fmt.Errorf("%s: decode the answer: %w", method, err)
		}
	}
	lines := lineReader{files: &c.files, known: map[string][]string{}, left: maxPlaceRead}
	places := []Place{}
	for _, l := range found[:min(len(found), maxPlaces)] {
		if l.TargetURI != "" {
			l.URI, l.Range = l.TargetURI, l.TargetSelectionRange
		}
		places = append(places, lines.place(l))
	}
	return places, nil
}

// at synchronizes a file and returns the parameters of a request for a position in it.
func (c *Client) at(ctx context.Context, path string, where Where) (map[string]any, error) {
	documents, err := c.sync(ctx, path)
	if err != nil {
		return nil, err
	}
	at, err := where.find(documents[0].text)
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

// FileSymbols returns the symbols of a file, at most 200.
func (c *Client) FileSymbols(ctx context.Context, path string) ([]Symbol, error) {
	return c.symbols(ctx, "textDocument/documentSymbol", documentOf(path), path)
}

// WorkspaceSymbols returns the symbols of the workspace that match a query, at most 200.
func (c *Client) WorkspaceSymbols(ctx context.Context, query string) ([]Symbol, error) {
	return c.symbols(ctx, "workspace/symbol", map[string]any{"query": query})
}

func (c *Client) symbols(ctx context.Context, method string, params map[string]any, paths ...string) ([]Symbol, error) {
	if _, err := c.sync(ctx, paths...); err != nil {
		return nil, err
	}
	var nodes []symbolNode
	if err := c.call(ctx, method, params, &nodes); err != nil {
		return nil, err
	}
	return flatten([]Symbol{}, nodes, ""), nil
}

func flatten(all []Symbol, nodes []symbolNode, inside string) []Symbol {
	for i := range nodes {
		if len(all) == maxPlaces {
			break
		}
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
