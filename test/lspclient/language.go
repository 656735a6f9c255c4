// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lspclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
)

// Position counts lines and UTF-16 units from zero.
type Position struct {
	Line      int `json:"line"`
	Character int `json:"character"`
}

// Range is a part of a document.
type Range struct {
	Start Position `json:"start"`
	End   Position `json:"end"`
}

// Location is a part of some document.
type Location struct {
	URI   string `json:"uri"`
	Range Range  `json:"range"`
}

// Diagnostics are the last published diagnostics of one document.
type Diagnostics struct {
	URI     string       `json:"uri"`
	Version *int64       `json:"version"`
	All     []Diagnostic `json:"diagnostics"`
}

// Diagnostic is one diagnostic of a document.
type Diagnostic struct {
	Range   Range  `json:"range"`
	Message string `json:"message"`
}

// URI returns the URI of a file.
func URI(path ...string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(path...))}).String()
}

// Server is the result of initialize.
type Server struct {
	ServerInfo struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"serverInfo"`
	Capabilities map[string]json.RawMessage `json:"capabilities"`
}

// Initialize performs the handshake of an editor.
func (c *Client) Initialize(ctx context.Context, folder string) (server Server, err error) {
	params := map[string]any{
		"processId": nil, "rootUri": URI(folder),
		"workspaceFolders": []any{map[string]any{"uri": URI(folder), "name": filepath.Base(folder)}},
		"capabilities": map[string]any{
			"general":   map[string]any{"positionEncodings": []string{"utf-16"}},
			"workspace": map[string]any{"configuration": true, "workspaceFolders": true},
			"window":    map[string]any{"workDoneProgress": true},
			"textDocument": map[string]any{
				"synchronization":    map[string]any{"didSave": true},
				"hover":              map[string]any{"contentFormat": []string{"plaintext", "markdown"}},
				"publishDiagnostics": map[string]any{"versionSupport": true},
			},
		},
	}
	if err := c.Call(ctx, "initialize", params, &server); err != nil {
		return server, err
	}
	return server, c.Notify("initialized", map[string]any{})
}

// Shutdown sends shutdown and exit, as an editor does, and closes the connection.
func (c *Client) Shutdown(ctx context.Context) error {
	err := c.Call(ctx, "shutdown", nil, nil)
	if err == nil {
		err = c.Notify("exit", nil)
	}
	c.Close()
	return err
}

// Open opens a document.
func (c *Client) Open(uri, language string, version int, text string) error {
	return c.Notify("textDocument/didOpen", map[string]any{
		"textDocument": map[string]any{"uri": uri, "languageId": language, "version": version, "text": text},
	})
}

// Change replaces the whole text of a document.
func (c *Client) Change(uri string, version int, text string) error {
	return c.Notify("textDocument/didChange", map[string]any{
		"textDocument": map[string]any{"uri": uri, "version": version}, "contentChanges": []any{map[string]any{"text": text}},
	})
}

// CloseDocument closes a document.
func (c *Client) CloseDocument(uri string) error {
	return c.Notify("textDocument/didClose", map[string]any{"textDocument": map[string]any{"uri": uri}})
}

// PositionParams returns the params of a request that refers to a position.
func PositionParams(uri string, at Position) map[string]any {
	return map[string]any{"textDocument": map[string]any{"uri": uri}, "position": at}
}

// Find returns the position of the nth occurrence of words in a text; the first occurrence is 1. If there are fewer occurrences, the line is -1.
func Find(text, words string, nth int) Position {
	at := 0
	for i := range nth {
		if i > 0 {
			at += len(words)
		}
		next := strings.Index(text[at:], words)
		if next < 0 {
			return Position{Line: -1}
		}
		at += next
	}
	line := strings.Count(text[:at], "\n")
	units := 0
	for _, r := range text[strings.LastIndexByte(text[:at], '\n')+1 : at] {
		units++
		if r > 0xFFFF {
			units++
		}
	}
	return Position{Line: line, Character: units}
}

// Hover requests the hover text at a position. It returns "" if there is none.
func (c *Client) Hover(ctx context.Context, uri string, at Position) (string, error) {
	var answer *struct {
		Contents json.RawMessage `json:"contents"`
	}
	if err := c.Call(ctx, "textDocument/hover", PositionParams(uri, at), &answer); err != nil || answer == nil {
		return "", err
	}
	return HoverText(answer.Contents), nil
}

// HoverText returns the text of hover contents in any of their formats.
func HoverText(contents json.RawMessage) string {
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
	_ = json.Unmarshal(contents, &many)
	for _, one := range many {
		text += HoverText(one) + "\n"
	}
	return text
}

// Definition requests the definitions of the symbol at a position.
func (c *Client) Definition(ctx context.Context, uri string, at Position) ([]Location, error) {
	var answer json.RawMessage
	if err := c.Call(ctx, "textDocument/definition", PositionParams(uri, at), &answer); err != nil {
		return nil, err
	}
	return locations(answer)
}

// References requests the references to the symbol at a position, including its declaration.
func (c *Client) References(ctx context.Context, uri string, at Position) ([]Location, error) {
	params := PositionParams(uri, at)
	params["context"] = map[string]any{"includeDeclaration": true}
	var answer json.RawMessage
	if err := c.Call(ctx, "textDocument/references", params, &answer); err != nil {
		return nil, err
	}
	return locations(answer)
}

// locations decodes one location, a list, or null.
func locations(answer json.RawMessage) (all []Location, err error) {
	var links []struct {
		Location
		TargetURI   string `json:"targetUri"`
		TargetRange Range  `json:"targetSelectionRange"`
	}
	if len(answer) > 0 && answer[0] == '{' {
		answer = append(append([]byte("["), answer...), ']')
	}
	if err := json.Unmarshal(answer, &links); err != nil {
		return nil, fmt.Errorf("decode locations: %w", err)
	}
	for _, link := range links {
		if link.TargetURI != "" {
			link.Location = Location{URI: link.TargetURI, Range: link.TargetRange}
		}
		all = append(all, link.Location)
	}
	return all, nil
}

func (c *Client) recordDiagnostics(params json.RawMessage) {
	var d Diagnostics
	if json.Unmarshal(params, &d) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.diagnostics[d.URI] = d
	close(c.changed)
	c.changed = make(chan struct{})
}

// WaitForDiagnostics waits until condition returns true for the last published diagnostics of a document.
func (c *Client) WaitForDiagnostics(ctx context.Context, uri string, condition func(Diagnostics) bool) (Diagnostics, error) {
	for {
		c.mu.Lock()
		d, ok := c.diagnostics[uri]
		changed := c.changed
		c.mu.Unlock()
		if ok && condition(d) {
			return d, nil
		}
		select {
		case <-changed:
		case <-c.done:
			return d, c.Err()
		case <-ctx.Done():
			return d, fmt.Errorf("diagnostics of %s: %+v: %w", uri, d.All, ctx.Err())
		}
	}
}
