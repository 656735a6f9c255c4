// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/berth-dev/berth/internal/cli/code"
)

// codeWait is how long the tools of the toolset code wait for a language server by default. A server may first have to load its workspace.
const codeWait = 30 * time.Second

// maxFiles is the maximum number of files in one call of the tool diagnostics.
const maxFiles = 50

type diagnosticsInput struct {
	Files  []string `json:"files" jsonschema:"absolute paths"`
	Server string   `json:"server,omitempty" jsonschema:"default: by file"`
	patience
}

type diagnosticsOutput struct {
	Files []fileDiagnostics `json:"files"`
}

// fileDiagnostics is a code.Report whose diagnostics are marked, because they are text of the language server.
type fileDiagnostics struct {
	File                 string            `json:"file"`
	Settled              bool              `json:"settled"`
	Reason               string            `json:"reason,omitempty"`
	SHA256               string            `json:"sha256"`
	BasedOnUnsaved       []string          `json:"basedOnUnsaved,omitempty" jsonschema:"editors whose unsaved text of other files the server had, which can cause diagnostics"`
	UntrustedDiagnostics []code.Diagnostic `json:"untrustedDiagnostics"`
}

// codeInput selects a symbol in a file.
type codeInput struct {
	File   string `json:"file" jsonschema:"absolute path"`
	Line   int    `json:"line,omitempty" jsonschema:"from 1"`
	Symbol string `json:"symbol,omitempty" jsonschema:"identifier on the line or, without line, in the file"`
	Server string `json:"server,omitempty"`
	patience
}

// patience is how long a question may wait, for example for a server that is indexing.
type patience struct {
	TimeoutSeconds int `json:"timeoutSeconds,omitempty" jsonschema:"default 30"`
}

func (p patience) wait() time.Duration {
	if p.TimeoutSeconds <= 0 {
		return codeWait
	}
	return min(time.Duration(p.TimeoutSeconds)*time.Second, longestToolWait)
}

// page selects a part of a long list.
type page struct {
	Offset int `json:"offset,omitempty"`
	Limit  int `json:"limit,omitempty" jsonschema:"default 200, at most 1000"`
}

func (i codeInput) fileAndServer() (file, server string) { return i.File, i.Server }

type referencesInput struct {
	codeInput
	page
}

func (i codeInput) where() code.Where { return code.Where{Line: i.Line, Symbol: i.Symbol} }

type placesOutput struct {
	Places []code.Place `json:"places"`
	code.Extent
}

type hoverOutput struct {
	Text string `json:"untrustedText"`
}

type symbolsInput struct {
	File   string `json:"file,omitempty" jsonschema:"absolute path"`
	Query  string `json:"query,omitempty" jsonschema:"search the workspace instead"`
	Server string `json:"server,omitempty"`
	page
	patience
}

type symbolsOutput struct {
	Symbols []code.Symbol `json:"untrustedSymbols"`
	code.Extent
}

type renameInput struct {
	codeInput
	NewName string `json:"newName"`
	Apply   bool   `json:"apply,omitempty" jsonschema:"write the files"`
}

type editsOutput struct {
	Edits   []code.Edit `json:"edits"`
	Applied bool        `json:"applied"`
	code.Extent
}

type formatInput struct {
	File   string `json:"file" jsonschema:"absolute path"`
	Apply  bool   `json:"apply,omitempty" jsonschema:"write the file"`
	Server string `json:"server,omitempty"`
	patience
}

type formatOutput struct {
	Changed bool   `json:"changed"`
	Applied bool   `json:"applied"`
	Text    string `json:"untrustedText,omitempty"` // the formatted text, unless it was written
}

func (t *toolContext) addCodeTools(box *toolbox) {
	addTool(box, "diagnostics", reads, "Errors and warnings for exactly the content of files on disk; settled: false if that is not certain.", t.callDiagnostics)
	addTool(box, "definition", reads, "Where a symbol is defined.", onServer(t, func(ctx context.Context, client *languageClient, path string, input codeInput) (placesOutput, error) {
		places, extent, err := client.Definition(ctx, path, input.where())
		return placesOutput{places, extent}, client.explain(err)
	}))
	addTool(box, "references", reads, "Where a symbol is used.", onServer(t, func(ctx context.Context, client *languageClient, path string, input referencesInput) (placesOutput, error) {
		places, extent, err := client.References(ctx, path, input.where(), code.Page(input.page))
		return placesOutput{places, extent}, client.explain(err)
	}))
	addTool(box, "hover", reads, "Type and documentation of a symbol.", onServer(t, func(ctx context.Context, client *languageClient, path string, input codeInput) (hoverOutput, error) {
		text, err := client.Hover(ctx, path, input.where())
		return hoverOutput{text}, client.explain(err)
	}))
	addTool(box, "symbols", reads, "Symbols of a file or of the workspace.", t.symbols)
	addTool(box, "rename", destroys, "Rename a symbol in all files.", onServer(t, rename))
	addTool(box, "format", idempotent, "Format a file.", onServer(t, format))
}

// serverInput is the input of a tool that asks a language server.
type serverInput interface {
	fileAndServer() (file, server string)
	wait() time.Duration
}

// onServer returns the function of a tool that asks the language server of a file. It connects to the server before it calls ask.
func onServer[In serverInput, Out any](
	t *toolContext, ask func(ctx context.Context, client *languageClient, path string, input In) (Out, error),
) func(context.Context, *mcp.CallToolRequest, In) (Out, error) {
	return func(ctx context.Context, _ *mcp.CallToolRequest, input In) (output Out, err error) {
		ctx, cancel := context.WithTimeout(ctx, input.wait())
		defer cancel()
		file, server := input.fileAndServer()
		client, path, err := t.code.find(ctx, t, file, server)
		if err != nil {
			return output, err
		}
		return ask(ctx, client, path, input)
	}
}

func (t *toolContext) callDiagnostics(ctx context.Context, _ *mcp.CallToolRequest, input diagnosticsInput) (diagnosticsOutput, error) {
	output := diagnosticsOutput{Files: []fileDiagnostics{}}
	reports, err := t.diagnostics(ctx, input)
	for _, r := range reports {
		output.Files = append(output.Files, fileDiagnostics{r.File, r.Settled, r.Reason, r.SHA256, r.BasedOnUnsaved, r.Diagnostics})
	}
	return output, err
}

// diagnostics returns the diagnostics of files, for berth mcp and berth lsp diagnostics.
func (t *toolContext) diagnostics(ctx context.Context, input diagnosticsInput) ([]code.Report, error) {
	if len(input.Files) == 0 || len(input.Files) > maxFiles {
		return nil, fmt.Errorf("files has %d paths: pass 1 to %d", len(input.Files), maxFiles)
	}
	// Files of several languages have several servers.
	byServer := map[*languageClient][]string{}
	var order []*languageClient
	var all []code.Report
	for _, file := range input.Files {
		client, path, err := t.code.find(ctx, t, file, input.Server)
		if err != nil && len(input.Files) > 1 {
			all = append(all, code.Unread(file, err)) // one wrong path does not fail the others
			continue
		}
		if err != nil {
			return nil, err
		}
		if byServer[client] == nil {
			order = append(order, client)
		}
		byServer[client] = append(byServer[client], path)
	}
	for _, client := range order {
		limited, cancel := context.WithTimeout(ctx, input.wait())
		reports, err := client.Diagnostics(limited, byServer[client])
		cancel()
		if err != nil {
			return all, client.explain(err)
		}
		all = append(all, reports...)
	}
	return all, nil
}

func (i symbolsInput) fileAndServer() (file, server string) { return i.File, i.Server }

func (t *toolContext) symbols(ctx context.Context, call *mcp.CallToolRequest, input symbolsInput) (symbolsOutput, error) {
	if (input.File == "") == (input.Query == "") {
		return symbolsOutput{}, errors.New("set either file or query")
	}
	return onServer(t, func(ctx context.Context, client *languageClient, path string, _ symbolsInput) (output symbolsOutput, err error) {
		if input.File != "" {
			output.Symbols, output.Extent, err = client.FileSymbols(ctx, path, code.Page(input.page))
		} else {
			output.Symbols, output.Extent, err = client.WorkspaceSymbols(ctx, input.Query, code.Page(input.page))
		}
		return output, client.explain(err)
	})(ctx, call, input)
}

func rename(ctx context.Context, client *languageClient, path string, input renameInput) (editsOutput, error) {
	edits, extent, err := client.Rename(ctx, path, input.where(), input.NewName)
	output := editsOutput{Edits: edits, Extent: extent}
	switch {
	case err != nil:
		return output, client.explain(err)
	case !input.Apply:
		return output, nil
	case !extent.Complete:
		return output, fmt.Errorf("languageserver/%s: the rename may miss some uses, so nothing was written: %s; call rename again, with a longer timeoutSeconds", client.name, extent.Reason)
	}
	err = client.Apply(ctx, edits)
	output.Applied = err == nil
	return output, err
}

func (i formatInput) fileAndServer() (file, server string) { return i.File, i.Server }

func format(ctx context.Context, client *languageClient, path string, input formatInput) (formatOutput, error) {
	edit, err := client.Format(ctx, path)
	if err != nil || edit == nil {
		return formatOutput{}, client.explain(err)
	}
	if input.Apply {
		err := client.Apply(ctx, []code.Edit{*edit})
		return formatOutput{Changed: true, Applied: err == nil}, err
	}
	text := edit.After()
	if len(text) > maxLogText {
		return formatOutput{}, fmt.Errorf("the formatted text of %s has %d bytes: set apply to write it", filepath.Base(path), len(text))
	}
	return formatOutput{Changed: true, Text: text}, nil
}
