// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

// tsserverCommand is the command of typescript-language-server that sends a request to tsserver. tsserver processes requests in order, so its answer is for the
// content that was sent before. The diagnostics that typescript-language-server publishes have no version.
const tsserverCommand = "typescript.tsserverRequest"

// tsserverRequests are the requests that return the diagnostics of a file.
var tsserverRequests = []string{"syntacticDiagnosticsSync", "semanticDiagnosticsSync", "suggestionDiagnosticsSync"}

// tsserverSeverities are the severities for the categories of tsserver. An unused name is a suggestion.
var tsserverSeverities = map[string]string{"error": severities[0], "warning": severities[1], "message": severities[2], "suggestion": severities[3]}

// askTSServer returns reports with the diagnostics of the documents for their content.
func (c *Client) askTSServer(ctx context.Context, documents []document) ([]Report, error) {
	var reports []Report
	for i := range documents {
		d := &documents[i]
		report := newReport(d)
		found, err := c.tsserverDiagnostics(ctx, d.path)
		switch {
		case err != nil && ctx.Err() == nil:
			return nil, err
		case err != nil:
			report.Reason = "the server has not answered in time"
		case !c.unchanged(d):
			report.Reason = "the file changed while the server answered"
		}
		report.Diagnostics = append(report.Diagnostics, found...)
		report.Settled = report.Reason == ""
		reports = append(reports, report)
	}
	return reports, nil
}

func (c *Client) tsserverDiagnostics(ctx context.Context, path string) ([]Diagnostic, error) {
	var all []Diagnostic
	for _, request := range tsserverRequests {
		var answer struct {
			Success bool   `json:"success"`
			Message string `json:"message"`
			Body    []struct {
				Start    struct{ Line, Offset int } `json:"start"`
				Text     string                     `json:"text"`
				Category string                     `json:"category"`
				Code     int                        `json:"code"`
				Source   string                     `json:"source"`
			} `json:"body"`
		}
		params := map[string]any{"command": tsserverCommand, "arguments": []any{request, map[string]any{"file": path}}}
		var raw json.RawMessage
		if err := c.call(ctx, "workspace/executeCommand", params, &raw); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, &answer); err != nil {
			return nil, fmt.Errorf("%s of %s: the language server sent an invalid answer: %w", request, path, err)
		}
		if !answer.Success {
			return nil, fmt.Errorf("%s of %s: the language server answered: %s", request, path, answer.Message)
		}
		for _, d := range answer.Body {
			all = append(all, Diagnostic{
				Line: d.Start.Line, Column: d.Start.Offset, Severity: cmp.Or(tsserverSeverities[d.Category], severities[0]), Message: d.Text,
				Source: cmp.Or(d.Source, "typescript"), Code: fmt.Sprint(d.Code),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b Diagnostic) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
	return all, nil
}

// unchanged reports whether the server still has this content of a document.
func (c *Client) unchanged(d *document) bool {
	c.syncing.Lock()
	defer c.syncing.Unlock()
	now := c.documents[d.path]
	return now != nil && now.version == d.version
}
