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
	Files          []string `json:"files" jsonschema:"absolute paths"`
	Server         string   `json:"server,omitempty" jsonschema:"default: by file"`
	TimeoutSeconds int      `json:"timeoutSeconds,omitempty" jsonschema:"default 30"`
}

type diagnosticsOutput struct {
	Files []code.Report `json:"files"`
}

// codeInput selects a symbol in a file.
type codeInput struct {
	File   string `json:"file" jsonschema:"absolute path"`
	Line   int    `json:"line,omitempty" jsonschema:"from 1"`
	Symbol string `json:"symbol,omitempty" jsonschema:"identifier on the line or, without line, in the file"`
	Server string `json:"server,omitempty"`
}

func (i *codeInput) where() code.Where { return code.Where{Line: i.Line, Symbol: i.Symbol} }

type placesOutput struct {
	Places []code.Place `json:"places"`
}

type hoverOutput struct {
	Text string `json:"text"`
}

type symbolsInput struct {
	File   string `json:"file,omitempty" jsonschema:"absolute path"`
	Query  string `json:"query,omitempty" jsonschema:"search the workspace instead"`
	Server string `json:"server,omitempty"`
}

type symbolsOutput struct {
	Symbols []code.Symbol `json:"symbols"`
}

type renameInput struct {
	codeInput
	NewName string `json:"newName"`
	Apply   bool   `json:"apply,omitempty" jsonschema:"write the files"`
}

type editsOutput struct {
	Edits   []code.Edit `json:"edits"`
	Applied bool        `json:"applied"`
}

type formatInput struct {
	File   string `json:"file" jsonschema:"absolute path"`
	Apply  bool   `json:"apply,omitempty" jsonschema:"write the file"`
	Server string `json:"server,omitempty"`
}

type formatOutput struct {
	Changed bool   `json:"changed"`
	Applied bool   `json:"applied"`
	Text    string `json:"text,omitempty"` // the formatted text, unless it was written
}

func (t *toolContext) addCodeTools(box *toolbox) {
	addTool(box, "diagnostics", reads, "Errors and warnings for exactly the content of files on disk; settled: false if that is not certain.", t.diagnostics)
	addTool(box, "definition", reads, "Where a symbol is defined.", func(ctx context.Context, _ *mcp.CallToolRequest, input codeInput) (placesOutput, error) {
		return t.places(ctx, input, (*code.Client).Definition)
	})
	addTool(box, "references", reads, "Where a symbol is used.", func(ctx context.Context, _ *mcp.CallToolRequest, input codeInput) (placesOutput, error) {
		return t.places(ctx, input, (*code.Client).References)
	})
	addTool(box, "hover", reads, "Type and documentation of a symbol.", t.hover)
	addTool(box, "symbols", reads, "Symbols of a file or of the workspace.", t.symbols)
	addTool(box, "rename", destroys, "Rename a symbol in all files.", t.rename)
	addTool(box, "format", idempotent, "Format a file.", t.format)
}

func (t *toolContext) diagnostics(ctx context.Context, _ *mcp.CallToolRequest, input diagnosticsInput) (diagnosticsOutput, error) {
	if len(input.Files) == 0 || len(input.Files) > maxFiles {
		return diagnosticsOutput{}, fmt.Errorf("files has %d paths: pass 1 to %d", len(input.Files), maxFiles)
	}
	patience := codeWait
	if input.TimeoutSeconds > 0 {
		patience = min(time.Duration(input.TimeoutSeconds)*time.Second, longestToolWait)
	}
	// Files of several languages have several servers.
	byServer := map[*languageClient][]string{}
	var order []*languageClient
	for _, file := range input.Files {
		client, path, err := t.code.find(ctx, t, file, input.Server)
		if err != nil {
			return diagnosticsOutput{}, err
		}
		if byServer[client] == nil {
			order = append(order, client)
		}
		byServer[client] = append(byServer[client], path)
	}
	output := diagnosticsOutput{Files: []code.Report{}}
	for _, client := range order {
		limited, cancel := context.WithTimeout(ctx, patience)
		reports, err := client.Diagnostics(limited, byServer[client])
		cancel()
		if err != nil {
			return output, client.explain(err)
		}
		output.Files = append(output.Files, reports...)
	}
	return output, nil
}

func (t *toolContext) places(
	ctx context.Context, input codeInput, ask func(*code.Client, context.Context, string, code.Where) ([]code.Place, error),
) (placesOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, codeWait)
	defer cancel()
	client, path, err := t.code.find(ctx, t, input.File, input.Server)
	if err != nil {
		return placesOutput{}, err
	}
	places, err := ask(client.Client, ctx, path, input.where())
	return placesOutput{Places: places}, client.explain(err)
}

func (t *toolContext) hover(ctx context.Context, _ *mcp.CallToolRequest, input codeInput) (hoverOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, codeWait)
	defer cancel()
	client, path, err := t.code.find(ctx, t, input.File, input.Server)
	if err != nil {
		return hoverOutput{}, err
	}
	text, err := client.Hover(ctx, path, input.where())
	return hoverOutput{Text: text}, client.explain(err)
}

func (t *toolContext) symbols(ctx context.Context, _ *mcp.CallToolRequest, input symbolsInput) (symbolsOutput, error) {
	if (input.File == "") == (input.Query == "") {
		return symbolsOutput{}, errors.New("set either file or query")
	}
	ctx, cancel := context.WithTimeout(ctx, codeWait)
	defer cancel()
	client, path, err := t.code.find(ctx, t, input.File, input.Server)
	if err != nil {
		return symbolsOutput{}, err
	}
	var symbols []code.Symbol
	if input.File != "" {
		symbols, err = client.FileSymbols(ctx, path)
	} else {
		symbols, err = client.WorkspaceSymbols(ctx, input.Query)
	}
	return symbolsOutput{Symbols: symbols}, client.explain(err)
}

func (t *toolContext) rename(ctx context.Context, _ *mcp.CallToolRequest, input renameInput) (editsOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, codeWait)
	defer cancel()
	client, path, err := t.code.find(ctx, t, input.File, input.Server)
	if err != nil {
		return editsOutput{}, err
	}
	edits, err := client.Rename(ctx, path, input.where(), input.NewName)
	if err != nil {
		return editsOutput{}, client.explain(err)
	}
	for i := range edits {
		if !client.contains(edits[i].File) {
			return editsOutput{}, fmt.Errorf("the language server wants to change %s, which is outside its workspace", edits[i].File)
		}
	}
	if input.Apply {
		err = code.Apply(edits)
	}
	return editsOutput{Edits: edits, Applied: input.Apply && err == nil}, err
}

func (t *toolContext) format(ctx context.Context, _ *mcp.CallToolRequest, input formatInput) (formatOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, codeWait)
	defer cancel()
	client, path, err := t.code.find(ctx, t, input.File, input.Server)
	if err != nil {
		return formatOutput{}, err
	}
	edit, err := client.Format(ctx, path)
	if err != nil || edit == nil {
		return formatOutput{}, client.explain(err)
	}
	if input.Apply {
		err := code.Apply([]code.Edit{*edit})
		return formatOutput{Changed: true, Applied: err == nil}, err
	}
	text := edit.After()
	if len(text) > maxLogText {
		return formatOutput{}, fmt.Errorf("the formatted text of %s has %d bytes: set apply to write it", filepath.Base(path), len(text))
	}
	return formatOutput{Changed: true, Text: text}, nil
}
