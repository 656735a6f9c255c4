// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sourcegraph/jsonrpc2"

	"github.com/berth-dev/berth/internal/cli/code"
	"github.com/berth-dev/berth/internal/lsp"
)

// renamer is a language server that renames Old in a file, and is in a state.
type renamer struct {
	file  string
	state lsp.State
}

func (r renamer) Handle(ctx context.Context, conn *jsonrpc2.Conn, request *jsonrpc2.Request) {
	if request.Notif {
		return
	}
	var result any
	switch request.Method {
	case "initialize":
		result = map[string]any{"capabilities": map[string]any{}}
	case lsp.MethodState:
		result = r.state
	case "textDocument/rename":
		uri := (&url.URL{Scheme: "file", Path: r.file}).String()
		result = json.RawMessage(`{"changes":{"` + uri + `":[{"newText":"New","range":{"start":{"line":0,"character":5},"end":{"line":0,"character":8}}}]}}`)
	}
	_ = conn.Reply(ctx, request.ID, result)
}

func TestRename_IsAppliedOnlyIfTheAnswerIsComplete(t *testing.T) {
	const before, after = "func Old() {}\n", "func New() {}\n"
	for name, test := range map[string]struct {
		state lsp.State
		want  string
	}{
		"idle":     {lsp.State{Incarnation: 1, Serving: true, Indexed: true}, after},
		"indexing": {lsp.State{Incarnation: 1, Serving: true}, before},
		"working":  {lsp.State{Incarnation: 1, Serving: true, Indexed: true, Working: true}, before},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			file := filepath.Join(t.TempDir(), "a.go")
			g.Expect(os.WriteFile(file, []byte(before), 0o600)).To(Succeed())
			near, far := net.Pipe()
			served := jsonrpc2.NewConn(t.Context(), jsonrpc2.NewBufferedStream(far, jsonrpc2.VSCodeObjectCodec{}), renamer{file, test.state})
			client, err := code.New(t.Context(), near, []string{filepath.Dir(file)}, "go")
			g.Expect(err).NotTo(HaveOccurred())
			defer func() {
				_ = client.Close()
				<-served.DisconnectNotify()
			}()
			limit := 4 * time.Second
			if test.want == after {
				limit = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			input := renameInput{codeInput: codeInput{File: file, Symbol: "Old"}, NewName: "New", Apply: true}
			output, err := rename(ctx, &languageClient{Client: client, name: "gopls"}, file, input)
			g.Expect(os.ReadFile(file)).To(BeEquivalentTo(test.want))
			g.Expect(output.Applied).To(Equal(test.want == after))
			g.Expect(output.Complete).To(Equal(test.want == after))
			if test.want == before {
				g.Expect(err).To(MatchError(ContainSubstring("languageserver/gopls: the rename may miss some uses, so nothing was written: the language server is still " + name)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}
