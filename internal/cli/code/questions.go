// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
)

// Place is a position in a file. Line and Column count from 1, Column in UTF-16 code units. Text is the line without surrounding space.
type Place struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text,omitempty"`
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
	lines := lineReader{}
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

// lineReader reads single lines of files. It keeps the lines of each file that it has read.
type lineReader map[string][]string

func (r lineReader) place(l location) Place {
	place := Place{File: pathOf(l.URI), Line: l.Range.Start.Line + 1, Column: l.Range.Start.Character + 1}
	lines, known := r[place.File]
	if !known {
		if info, err := os.Stat(place.File); err == nil && info.Mode().IsRegular() && info.Size() <= maxFile {
			text, _ := os.ReadFile(place.File) // without the text, the place is still useful
			lines = strings.Split(string(text), "\n")
		}
		r[place.File] = lines
	}
	if place.Line <= len(lines) {
		place.Text = strings.TrimSpace(lines[place.Line-1])
	}
	return place
}

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
	return strings.TrimSpace(hoverText(answer.Contents)), nil
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
