// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sourcegraph/jsonrpc2"
)

// Diagnostic is one message about a file. Lines and columns count from 1, columns in UTF-16 code units.
type Diagnostic struct {
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Severity string `json:"severity"` // error, warning, information or hint
	Message  string `json:"message"`
	Source   string `json:"source,omitempty"`
	Code     string `json:"code,omitempty"`
}

// Report are the diagnostics of one file.
type Report struct {
	File string `json:"file"`
	// Settled reports whether the diagnostics are those of the content with the hash SHA256. If it is false, Reason explains why, and the diagnostics may be
	// incomplete or those of an earlier content.
	Settled     bool         `json:"settled"`
	Reason      string       `json:"reason,omitempty"`
	SHA256      string       `json:"sha256"` // the first 16 hexadecimal digits
	Diagnostics []Diagnostic `json:"diagnostics"`
}

const (
	// quiet is how long a server must have sent no diagnostics and no progress before its diagnostics count as complete.
	quiet = 400 * time.Millisecond
	// quietAfterOthers is the same if another document has changed since the server published the diagnostics, because the server publishes them again only if
	// they differ.
	quietAfterOthers = 2 * time.Second
)

// Diagnostics returns the diagnostics of files for their current content on disk. It waits for the server until the context is done.
func (c *Client) Diagnostics(ctx context.Context, paths []string) ([]Report, error) {
	documents, changedAt, err := c.sync(ctx, paths...)
	if err != nil {
		return nil, err
	}
	if c.asksTSServer {
		return c.askTSServer(ctx, documents)
	}
	reason := ""
	if err := c.barrier(ctx, documents); err != nil {
		if ctx.Err() == nil {
			return nil, err
		}
		reason = "the server has not processed the content in time"
	} else {
		reason = c.await(ctx, documents, changedAt)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var reports []Report
	for i := range documents {
		d := &documents[i]
		report := newReport(d)
		known, found := c.published[d.path]
		report.Reason = cmp.Or(reason, known.doubt(found, d.version))
		report.Diagnostics = append(report.Diagnostics, known.all...)
		report.Settled = report.Reason == ""
		reports = append(reports, report)
	}
	return reports, nil
}

// doubt returns why published diagnostics may not be those of a version of the document; empty if they are.
func (p publication) doubt(found bool, version int) string {
	switch {
	case !found:
		return "the server has sent no diagnostics for this file"
	case p.version == nil:
		return "the server does not state for which content its diagnostics are"
	case *p.version != version:
		return "the server has sent no diagnostics for this content"
	}
	return ""
}

func newReport(d *document) Report {
	sum := sha256.Sum256([]byte(d.text))
	return Report{File: d.path, SHA256: hex.EncodeToString(sum[:8]), Diagnostics: []Diagnostic{}}
}

// barrier returns when the server has processed the content of the documents. A server answers a request only after the changes that precede it.
func (c *Client) barrier(ctx context.Context, documents []document) error {
	if c.refreshes {
		var uris []string
		for i := range documents {
			uris = append(uris, uriOf(documents[i].path))
		}
		return c.call(ctx, "workspace/executeCommand", map[string]any{"command": refreshCommand, "arguments": []any{map[string]any{"Files": uris}}}, nil)
	}
	for i := range documents {
		params := map[string]any{"textDocument": map[string]any{"uri": uriOf(documents[i].path)}}
		// A server without document symbols answers with an error, after it has processed the changes.
		if err := c.conn.Call(ctx, "textDocument/documentSymbol", params, nil); err != nil && (ctx.Err() != nil || errors.Is(err, jsonrpc2.ErrClosed)) {
			return err
		}
	}
	return nil
}

// await waits until the diagnostics of the documents are those of their content and the server is quiet. It returns why that did not happen, or an empty string.
// Diagnostics of gopls need no wait, because its command has published them.
func (c *Client) await(ctx context.Context, documents []document, changedAt time.Time) (reason string) {
	for {
		state := c.examine(documents, changedAt)
		if state.missing == 0 && (c.refreshes || state.busy == 0 && state.rest <= 0) {
			return ""
		}
		rest := state.rest
		if state.missing > 0 || state.busy > 0 {
			rest = time.Hour // only a message of the server can change this
		}
		timer := c.clock.NewTimer(rest)
		select {
		case <-state.changed:
		case <-timer.C():
		case <-c.Done():
			timer.Stop()
			return "the connection to the language server ended"
		case <-ctx.Done():
			timer.Stop()
			if state.missing > 0 {
				return "the server has sent no diagnostics for this content in time"
			}
			return fmt.Sprintf("the server is still working (%d tasks in progress)", state.busy)
		}
		timer.Stop()
	}
}

// progress is what is known about the diagnostics of documents at one time.
type progress struct {
	missing int           // number of documents without diagnostics for their content
	busy    int           // number of tasks that the server reports as in progress
	rest    time.Duration // how long the server must still be quiet
	changed <-chan struct{}
}

func (c *Client) examine(documents []document, changedAt time.Time) progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	state, needed := progress{busy: len(c.work), changed: c.changed}, quiet
	for i := range documents {
		known, found := c.published[documents[i].path]
		switch older := known.at.Before(changedAt); {
		case !found, known.version != nil && *known.version != documents[i].version:
			state.missing++
		case older:
			needed = quietAfterOthers
		}
	}
	state.rest = needed - c.clock.Since(later(c.heard, changedAt))
	return state
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

var severities = []string{"error", "warning", "information", "hint"}

// describe converts the diagnostics of the protocol.
func describe(p publishedDiagnostics) []Diagnostic {
	all := make([]Diagnostic, 0, len(p.Diagnostics))
	for _, d := range p.Diagnostics {
		severity := severities[0]
		if d.Severity >= 1 && d.Severity <= len(severities) {
			severity = severities[d.Severity-1]
		}
		var code string
		if json.Unmarshal(d.Code, &code) != nil {
			code = strings.TrimPrefix(string(d.Code), "null") // a number
		}
		all = append(all, Diagnostic{
			Line: d.Range.Start.Line + 1, Column: d.Range.Start.Character + 1, Severity: severity, Message: d.Message, Source: d.Source, Code: code,
		})
	}
	return all
}
