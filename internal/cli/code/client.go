// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package code answers questions about files through a language server. Before each question, the server receives the content of the files on disk, so that no
// answer is older than the files.
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
	"k8s.io/utils/clock"
)

// Client is a connection to a language server. Its methods are safe for concurrent use.
type Client struct {
	conn     *jsonrpc2.Conn
	language string
	clock    clock.WithTicker
	// refreshes reports whether the server has the command that publishes the diagnostics of files before it returns.
	refreshes bool
	// asksTSServer reports whether the server has the command that sends requests to tsserver.
	asksTSServer bool

	syncing   sync.Mutex // held while documents are compared with the files
	documents map[string]*document
	changedAt time.Time // when the server was last sent a change of any document

	mu        sync.Mutex
	published map[string]publication
	heard     time.Time // when diagnostics or progress last arrived
	work      map[string]bool
	changed   chan struct{} // closed and replaced when one of the fields above has changed
}

// publication are the last diagnostics of a document.
type publication struct {
	version *int
	at      time.Time
	all     []Diagnostic
}

// refreshCommand is the command of gopls that publishes the diagnostics of files before it returns.
const refreshCommand = "gopls.diagnose_files"

// New initializes a connection to a language server. root is a folder of its workspace, and language the language of documents whose extension is unknown.
func New(ctx context.Context, conn io.ReadWriteCloser, root, language string, clock clock.WithTicker) (*Client, error) {
	c := &Client{
		language: language, clock: clock, documents: map[string]*document{}, published: map[string]publication{}, work: map[string]bool{}, changed: make(chan struct{}),
	}
	// The context of the connection must outlive the call of New.
	c.conn = jsonrpc2.NewConn(context.WithoutCancel(ctx), jsonrpc2.NewBufferedStream(conn, jsonrpc2.VSCodeObjectCodec{}), handler{c})
	var server struct {
		Capabilities struct {
			ExecuteCommandProvider struct {
				Commands []string `json:"commands"`
			} `json:"executeCommandProvider"`
		} `json:"capabilities"`
	}
	params := map[string]any{
		"processId": nil, "clientInfo": map[string]string{"name": "berth"}, "rootUri": uriOf(root),
		"workspaceFolders": []any{map[string]string{"uri": uriOf(root), "name": filepath.Base(root)}},
		"capabilities":     json.RawMessage(capabilities),
	}
	if err := c.conn.Call(ctx, "initialize", params, &server); err != nil {
		return nil, errors.Join(fmt.Errorf("initialize the language server: %w", err), c.conn.Close())
	}
	for _, command := range server.Capabilities.ExecuteCommandProvider.Commands {
		c.refreshes = c.refreshes || command == refreshCommand
		c.asksTSServer = c.asksTSServer || command == tsserverCommand
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
	"window": {"workDoneProgress": true},
	"textDocument": {
		"synchronization": {"didSave": true},
		"hover": {"contentFormat": ["plaintext", "markdown"]},
		"documentSymbol": {"hierarchicalDocumentSymbolSupport": true},
		"publishDiagnostics": {"versionSupport": true}
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
		return
	}
	switch request.Method {
	case "textDocument/publishDiagnostics":
		var p publishedDiagnostics
		if json.Unmarshal(params, &p) == nil {
			h.update(func() { h.published[pathOf(p.URI)] = publication{p.Version, h.heard, describe(p)} })
		}
	case "$/progress":
		var p struct {
			Token json.RawMessage `json:"token"`
			Value struct {
				Kind string `json:"kind"`
			} `json:"value"`
		}
		if json.Unmarshal(params, &p) == nil {
			h.update(func() {
				if p.Value.Kind == "end" {
					delete(h.work, string(p.Token))
				} else if len(h.work) < maxWork {
					h.work[string(p.Token)] = true
				}
			})
		}
	}
}

// maxWork is the maximum number of progress tokens that are tracked, because a server may never end them.
const maxWork = 1000

// update changes what has been heard from the server, and wakes the callers that wait for it.
func (c *Client) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = c.clock.Now()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
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

// call sends a request after the documents were made equal to the files on disk.
func (c *Client) call(ctx context.Context, method string, params, result any) error {
	if err := c.conn.Call(ctx, method, params, result); err != nil {
		var failed *jsonrpc2.Error
		if errors.As(err, &failed) {
			return fmt.Errorf("%s: the language server answered: %s", method, failed.Message)
		}
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}
