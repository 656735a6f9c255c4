// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package code is a client of a language server for berth mcp and berth lsp diagnostics: definitions, references, symbols, diagnostics and renames. Before each
// request, the server receives the content of the files on disk, so that no answer is older than the files.
package code

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/sourcegraph/jsonrpc2"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/printable"
)

// Client is a connection to a language server. Its methods are safe for concurrent use.
type Client struct {
	conn     *jsonrpc2.Conn
	files    files
	language string

	syncing   sync.Mutex // held while documents are compared with the files
	documents map[string]*document
	uses      int // how often documents were compared

	projectsMu sync.Mutex
	projects   map[project]bool // true: the server has read the project
	equalAfter time.Duration    // the constant of this name; tests shorten it
}

// New initializes a connection to a language server. folders are those of its workspace, of which there is at least one; the client reads and writes no files outside
// of them, except libraries. language is the language of documents whose extension is unknown.
func New(ctx context.Context, conn io.ReadWriteCloser, folders []string, language string) (*Client, error) {
	root := folders[0]
	c := &Client{files: files{workspace: folders, libraries: libraries()}, language: language, documents: map[string]*document{}, projects: map[project]bool{}, equalAfter: equalAfter}
	// The context of the connection must outlive the call of New.
	c.conn = jsonrpc2.NewConn(context.WithoutCancel(ctx), jsonrpc2.NewBufferedStream(conn, jsonrpc2.VSCodeObjectCodec{}), handler{c})
	params := map[string]any{
		"processId": nil, "clientInfo": map[string]string{"name": "berth"}, "rootUri": uriOf(root),
		"workspaceFolders": []any{map[string]string{"uri": uriOf(root), "name": filepath.Base(root)}},
		"capabilities":     json.RawMessage(capabilities),
	}
	if err := c.conn.Call(ctx, "initialize", params, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("initialize the language server: %w", err), c.conn.Close())
	}
	if err := c.conn.Notify(ctx, "initialized", struct{}{}); err != nil {
		return nil, errors.Join(fmt.Errorf("initialize the language server: %w", err), c.conn.Close())
	}
	return c, nil
}

// capabilities are those of this client.
const capabilities = `{
	"general": {"positionEncodings": ["utf-16"]},
	"workspace": {"workspaceFolders": true, "configuration": true, "workspaceEdit": {"documentChanges": true}},
	"textDocument": {
		"synchronization": {"didSave": true},
		"hover": {"contentFormat": ["plaintext", "markdown"]},
		"documentSymbol": {"hierarchicalDocumentSymbolSupport": true}
	}
}`

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Done returns a channel that is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.conn.DisconnectNotify() }

// handler handles the messages of a server, in the order of their arrival.
type handler struct{ *Client }

// Handle implements jsonrpc2.Handler.
func (h handler) Handle(ctx context.Context, conn *jsonrpc2.Conn, request *jsonrpc2.Request) {
	params := json.RawMessage("null")
	if request.Params != nil {
		params = *request.Params
	}
	if !request.Notif {
		_ = conn.Reply(ctx, request.ID, answerFor(request.Method, params)) // a lost connection fails the pending calls
	}
}

// answerFor returns the answer to a request of the server.
func answerFor(method string, params json.RawMessage) any {
	switch method {
	case "workspace/configuration":
		var p struct {
			Items []json.RawMessage `json:"items"`
		}
		_ = json.Unmarshal(params, &p) // no items
		return make([]any, min(len(p.Items), 1000))
	case "workspace/applyEdit":
		return map[string]any{"applied": false, "failureReason": "this client applies no edits"}
	}
	return nil
}

// call sends a request after the documents were made equal to the files on disk, and after the server has been told which files have changed.
func (c *Client) call(ctx context.Context, method string, params, result any) error {
	var refused *jsonrpc2.Error // by a multiplexer of an earlier version, or without one
	if err := c.conn.Call(ctx, lsp.MethodSync, struct{}{}, nil); err != nil && !errors.As(err, &refused) {
		return explained(lsp.MethodSync, err)
	}
	return explained(method, c.conn.Call(ctx, method, params, result))
}

// maxMessage is the maximum length of one message of a language server in a result, in bytes.
const maxMessage = 2 << 10

// explained returns the error of a call with the method, or nil.
func explained(method string, err error) error {
	var failed *jsonrpc2.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed):
		// The message is text of the server, so it is quoted and shortened.
		return &answerError{fmt.Sprintf("%s: the language server answered %q", method, printable.Shorten(failed.Message, maxMessage)), failed}
	}
	return fmt.Errorf("%s: %w", method, err)
}

// answerError is an error that a language server or the multiplexer has answered.
type answerError struct {
	message string
	answer  *jsonrpc2.Error
}

// Error implements error.
func (e *answerError) Error() string { return e.message }

// Unwrap returns the error of the protocol.
func (e *answerError) Unwrap() error { return e.answer }
