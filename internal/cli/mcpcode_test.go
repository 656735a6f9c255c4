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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
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
			output, err := rename(ctx, &languageClient{Client: client, name: "gopls", broken: func() error { return nil }}, file, input)
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

func TestMCPCode_StatesThatTheBreakerIsOpen(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	server := &v1alpha1.LanguageServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gopls"},
		Spec:       v1alpha1.LanguageServerSpec{Language: "go", Workspace: v1alpha1.Workspace{Folders: []string{dir}}},
	}
	server.Status.Breaker = &v1alpha1.BreakerStatus{State: v1alpha1.BreakerOpen}
	server.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCircuitOpen, LastTransitionTime: metav1.Now(),
		Message: "Incarnation 5 ended with signal SIGKILL. Too many failures; restarts at 2026-11-29T21:10:05Z. To retry now, run \"berth restart languageserver/gopls\".",
	}}
	c := newToolClient(t, newFixture(server), mcpFlags{})
	for tool, arguments := range map[string]map[string]any{
		"diagnostics": {"files": []string{filepath.Join(dir, "a.go")}}, "hover": {"file": filepath.Join(dir, "a.go"), "symbol": "x"}, "symbols": {"query": "x"},
	} {
		text := c.call(tool, arguments, nil)
		g.Expect(text).To(And(ContainSubstring("circuit breaker is open"), ContainSubstring("restarts at 2026-11-29T21:10:05Z"), ContainSubstring("call restart")), tool)
	}
}
