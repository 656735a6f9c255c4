// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sourcegraph/jsonrpc2"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/printable"
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
	Settled bool   `json:"settled"`
	Reason  string `json:"reason,omitempty"`
	// BasedOnUnsaved are the names of the editors and other clients whose unsaved text of other files the server had. Their text can cause diagnostics that the
	// files on disk do not have.
	BasedOnUnsaved []string     `json:"basedOnUnsaved,omitempty"`
	SHA256         string       `json:"sha256"` // the first 16 hexadecimal digits
	Diagnostics    []Diagnostic `json:"diagnostics"`
}

// Diagnostics returns the diagnostics of files for their current content on disk. It waits until the context is done, at most. If one of several files cannot be read, its
// report states why.
func (c *Client) Diagnostics(ctx context.Context, paths []string) (reports []Report, err error) {
	var readable []string
	for _, path := range paths {
		if _, err := (&document{path: path}).read(&c.files); err != nil && len(paths) > 1 {
			reports = append(reports, Unread(path, err))
			continue
		}
		readable = append(readable, path)
	}
	documents, err := c.sync(ctx, readable...)
	if err != nil {
		return nil, err
	}
	var calls []jsonrpc2.Waiter
	for i := range documents {
		params := map[string]any{"uri": uriOf(documents[i].path), "contentHash": lsp.ContentHash(documents[i].text)}
		if end, ok := ctx.Deadline(); ok {
			// The multiplexer stops waiting a little earlier, so that its answer arrives before the context ends.
			params["timeoutMs"] = max(1, (time.Until(end) - answerTime).Milliseconds())
		}
		call, err := c.conn.DispatchCall(ctx, lsp.MethodDiagnostics, params)
		if err != nil {
			return nil, err
		}
		calls = append(calls, call)
	}
	for i := range documents {
		d := &documents[i]
		report := Report{File: d.path, SHA256: lsp.ContentHash(d.text), Diagnostics: []Diagnostic{}}
		var answer lsp.Diagnosis
		switch err := explained(lsp.MethodDiagnostics, calls[i].Wait(ctx, &answer)); {
		case errors.Is(err, context.DeadlineExceeded):
			report.Reason = "the server has not answered in time"
		case err != nil:
			return nil, err
		default:
			report.Settled, report.Reason, report.Diagnostics = answer.Settled, answer.Reason, describe(answer.Diagnostics)
			report.BasedOnUnsaved = answer.BasedOnUnsaved
		}
		reports = append(reports, report)
	}
	return reports, nil
}

// Unread returns the report of a file that was not examined.
func Unread(path string, why error) Report {
	return Report{File: path, Reason: printable.Shorten(why.Error(), maxMessage), Diagnostics: []Diagnostic{}}
}

// answerTime is how much earlier than its client the multiplexer stops waiting.
const answerTime = 200 * time.Millisecond

var severities = []string{"error", "warning", "information", "hint"}

// describe converts the diagnostics of the protocol, and sorts them by position.
func describe(list json.RawMessage) []Diagnostic {
	var found []diagnostic
	_ = json.Unmarshal(list, &found) // what the server has sent wrongly is left out
	all := make([]Diagnostic, 0, len(found))
	for _, d := range found {
		severity := severities[0]
		if d.Severity >= 1 && d.Severity <= len(severities) {
			severity = severities[d.Severity-1]
		}
		var code string
		if json.Unmarshal(d.Code, &code) != nil {
			code = strings.TrimPrefix(string(d.Code), "null") // a number
		}
		all = append(all, Diagnostic{
			Line: d.Range.Start.Line + 1, Column: d.Range.Start.Character + 1, Severity: severity, Message: printable.Shorten(d.Message, maxMessage), Source: d.Source, Code: code,
		})
	}
	slices.SortStableFunc(all, func(a, b Diagnostic) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
	return all
}
