// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sourcegraph/jsonrpc2"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/internal/lsp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const timeout = 30 * time.Second

// server is a language server in memory.
type server struct {
	mu      sync.Mutex
	conn    *jsonrpc2.Conn
	texts   map[string]string
	version map[string]int
	log     []string
	answer  func(method string, params json.RawMessage) any
	state   func() any // the answer to lsp.MethodState; nil: the server is idle
}

func (s *server) Handle(ctx context.Context, conn *jsonrpc2.Conn, request *jsonrpc2.Request) {
	var p struct {
		TextDocument struct {
			URI     string `json:"uri"`
			Version int    `json:"version"`
			Text    string `json:"text"`
		} `json:"textDocument"`
		ContentChanges []struct {
			Text string `json:"text"`
		} `json:"contentChanges"`
	}
	_ = json.Unmarshal(*request.Params, &p)
	s.mu.Lock()
	s.conn = conn
	s.log = append(s.log, request.Method+" "+filepath.Base(p.TextDocument.URI))
	s.mu.Unlock()
	switch request.Method {
	case "textDocument/didOpen", "textDocument/didChange":
		text := p.TextDocument.Text
		if len(p.ContentChanges) > 0 {
			text = p.ContentChanges[0].Text
		}
		s.mu.Lock()
		s.texts[p.TextDocument.URI], s.version[p.TextDocument.URI] = text, p.TextDocument.Version
		s.mu.Unlock()
	}
	if request.Notif {
		return
	}
	var result any
	if request.Method == lsp.MethodState {
		result = lsp.State{Incarnation: 1, Serving: true, Indexed: true}
		if s.state != nil {
			result = s.state()
		}
	}
	if s.answer != nil && result == nil {
		result = s.answer(request.Method, *request.Params)
	}
	if request.Method == "initialize" && result == nil {
		result = map[string]any{"capabilities": map[string]any{}}
	}
	if failure, failed := result.(*jsonrpc2.Error); failed {
		_ = conn.ReplyWithError(ctx, request.ID, failure)
		return
	}
	_ = conn.Reply(ctx, request.ID, result)
}

func (s *server) journal() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.log, "\n")
}

// connect connects a client to a server. Without folders, the workspace contains all temporary directories of the test.
func connect(t *testing.T, s *server, folders ...string) *Client {
	t.Helper()
	if folders == nil {
		folders = []string{filepath.Dir(t.TempDir())}
	}
	s.texts, s.version = map[string]string{}, map[string]int{}
	near, far := net.Pipe()
	served := jsonrpc2.NewConn(context.Background(), jsonrpc2.NewBufferedStream(far, jsonrpc2.VSCodeObjectCodec{}), s)
	c, err := New(t.Context(), near, folders, "go")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	c.equalAfter = 20 * time.Millisecond
	t.Cleanup(func() {
		_ = c.Close()
		_ = served.Close()
		<-served.DisconnectNotify()
		<-c.Done()
	})
	return c
}

func write(t *testing.T, path, text string) {
	t.Helper()
	NewWithT(t).Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
}

// inquiry are the parameters of lsp.MethodDiagnostics.
type inquiry struct {
	URI         string
	ContentHash string
	TimeoutMs   int64
}

func TestDiagnostics_AreThoseOfTheContentOnDisk(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "a.go")
	var asked inquiry
	s := &server{}
	s.answer = func(method string, params json.RawMessage) any {
		if method != lsp.MethodDiagnostics {
			return nil
		}
		_ = json.Unmarshal(params, &asked)
		text, _ := json.Marshal(s.texts[asked.URI])
		return lsp.Diagnosis{Settled: true, Diagnostics: fmt.Appendf(nil, `[{"message":%s,"code":42,"range":{}}]`, text)}
	}
	c := connect(t, s)
	for _, text := range []string{"one", "two", "three"} {
		write(t, file, text)
		g.Expect(os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0))).To(Succeed()) // like cp -p and rsync
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		reports, err := c.Diagnostics(ctx, []string{file})
		cancel()
		g.Expect(err).NotTo(HaveOccurred())
		sum := sha256.Sum256([]byte(text))
		g.Expect(asked.ContentHash).To(Equal(hex.EncodeToString(sum[:8])))
		g.Expect(asked.TimeoutMs).To(And(BeNumerically(">", 30_000), BeNumerically("<", 60_000)), "the server stops waiting before the client does")
		g.Expect(reports).To(Equal([]Report{{
			File: file, Settled: true, SHA256: asked.ContentHash, Diagnostics: []Diagnostic{{Line: 1, Column: 1, Severity: "error", Message: text, Code: "42"}},
		}}))
	}
	g.Expect(s.journal()).To(ContainSubstring("didOpen a.go"))
	g.Expect(strings.Count(s.journal(), "didChange a.go")).To(Equal(2))
	g.Expect(strings.Count(s.journal(), "didSave a.go")).To(Equal(2))
}

func TestDiagnostics_AreNotSettledWithoutAnAnswer(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "a.go")
	write(t, file, "text")
	released := make(chan struct{})
	c := connect(t, &server{answer: func(method string, _ json.RawMessage) any {
		if method == lsp.MethodDiagnostics {
			<-released
		}
		return nil
	}})
	defer close(released)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	reports, err := c.Diagnostics(ctx, []string{file})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reports).To(HaveLen(1))
	g.Expect(reports[0].Settled).To(BeFalse())
	g.Expect(reports[0].Reason).To(Equal("the server has not answered in time"))
}

// Other programs may have changed files that the client has not opened.
func TestClient_LetsTheServerLearnOfChangedFilesBeforeEachQuestion(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "a.go")
	write(t, file, "package a")
	s := &server{}
	c := connect(t, s)
	for range 2 {
		_, _, err := c.FileSymbols(t.Context(), file, Page{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	const question, barrier = "textDocument/documentSymbol a.go", "berth/sync ."
	g.Expect(strings.Count(s.journal(), question)).To(BeNumerically(">=", 2))
	g.Expect(strings.Count(s.journal(), barrier+"\n"+question)).To(Equal(strings.Count(s.journal(), question)))
}

func TestClient_KeepsDocumentsEqualToFiles(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "a.go")
	s := &server{}
	c := connect(t, s)
	write(t, file, "package a\n\nfunc Old() {}\n")
	_, _, err := c.FileSymbols(t.Context(), file, Page{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Remove(file)).To(Succeed())
	_, _, err = c.FileSymbols(t.Context(), file, Page{})
	g.Expect(err).To(MatchError(ContainSubstring("does not exist")))
	g.Eventually(s.journal).WithTimeout(timeout).Should(ContainSubstring("didClose a.go"))
	for i := range maxOpen + 3 {
		path := filepath.Join(dir, "many", strings.Repeat("x", i+1)+".go")
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o700)).To(Succeed())
		write(t, path, "package many\n")
		_, _, err := c.FileSymbols(t.Context(), path, Page{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Eventually(func() int {
		journal := s.journal()
		return strings.Count(journal, "didOpen ") - strings.Count(journal, "didClose ")
	}).WithTimeout(timeout).Should(Equal(maxOpen))
}

func TestClient_FailsWhenTheServerIsGone(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "a.go")
	write(t, file, "x")
	s := &server{}
	c := connect(t, s)
	_, _, err := c.FileSymbols(t.Context(), file, Page{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.conn.Close()).To(Succeed())
	g.Eventually(c.Done()).WithTimeout(timeout).Should(BeClosed())
	_, err = c.Diagnostics(t.Context(), []string{file})
	g.Expect(err).To(HaveOccurred())
}

func TestRename_AppliesEditsOnlyToUnchangedFiles(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.go"), filepath.Join(dir, "b.go")
	write(t, a, "func Old() {}\nvar x, y = Old, Old\n")
	write(t, b, "// äöü 😀 Old\n")
	s := &server{answer: func(method string, _ json.RawMessage) any {
		if method != "textDocument/rename" {
			return nil
		}
		at := func(line, from, to int) map[string]any {
			return map[string]any{"newText": "Renewed", "range": span{position{line, from}, position{line, to}}}
		}
		return map[string]any{
			"documentChanges": []any{
				map[string]any{"textDocument": map[string]any{"uri": uriOf(a)}, "edits": []any{at(0, 5, 8), at(1, 16, 19), at(1, 11, 14)}},
				map[string]any{"textDocument": map[string]any{"uri": uriOf(b)}, "edits": []any{at(0, 10, 13)}},
			},
		}
	}}
	c := connect(t, s)
	edits, _, err := c.Rename(t.Context(), a, Where{Symbol: "Old"}, "Renewed")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(edits).To(HaveLen(2))
	write(t, b, "// changed\n")
	g.Expect(c.Apply(t.Context(), edits)).To(MatchError(ContainSubstring("has changed in the meantime")))
	g.Expect(os.ReadFile(a)).To(BeEquivalentTo("func Old() {}\nvar x, y = Old, Old\n"), "no file is changed")
	write(t, b, "// äöü 😀 Old\n")
	g.Expect(c.Apply(t.Context(), edits)).To(Succeed())
	g.Expect(os.ReadFile(a)).To(BeEquivalentTo("func Renewed() {}\nvar x, y = Renewed, Renewed\n"))
	g.Expect(os.ReadFile(b)).To(BeEquivalentTo("// äöü 😀 Renewed\n"))
}

func TestMakeEdit_KeepsLineEndings(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "a.txt")
	write(t, file, "one\r\ntwo\r\n")
	in := &files{workspace: []string{filepath.Dir(file)}}
	edit, err := makeEdit(in, file, []textEdit{{Range: span{position{0, 0}, position{0, 99}}, NewText: "1"}, {Range: span{position{1, 1}, position{1, 3}}, NewText: "oo"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(edit.After()).To(Equal("1\r\ntoo\r\n"))
	_, err = makeEdit(in, file, []textEdit{{Range: span{position{0, 0}, position{0, 2}}}, {Range: span{position{0, 1}, position{0, 3}}}})
	g.Expect(err).To(MatchError(ContainSubstring("overlap")))
}

func TestWhere_FindsWholeWords(t *testing.T) {
	text := "package p\n\tgopher, go := 1, 2 // 😀 go\n"
	for _, test := range []struct {
		where Where
		want  position
		err   string
	}{
		{Where{Symbol: "go"}, position{1, 9}, ""},
		{Where{Line: 2}, position{1, 1}, ""},
		{Where{Line: 2, Symbol: "gopher"}, position{1, 1}, ""},
		{Where{Line: 1, Symbol: "go"}, position{}, `line 1 does not contain "go"`},
		{Where{Line: 9}, position{}, "has only 3 lines"},
		{Where{}, position{}, "set line, symbol or both"},
	} {
		g := NewWithT(t)
		got, err := test.where.locate(text, "go")
		if test.err != "" {
			g.Expect(err).To(MatchError(ContainSubstring(test.err)))
			continue
		}
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(test.want))
	}
}

func TestLanguage(t *testing.T) {
	g := NewWithT(t)
	for name, want := range map[string]string{
		"a.mts": "typescript", "a.cts": "typescript", "a.vue": "vue", "a.svelte": "svelte", "a.astro": "astro", "a.less": "less", "a.scss": "scss", "a.jsonc": "jsonc", "a.mdx": "mdx",
		"a.TSX": "typescriptreact", "a.json": "json", "tsconfig.json": "jsonc", "tsconfig.build.json": "jsonc", "jsconfig.json": "jsonc", "a.tsconfig.json": "json", "Makefile": "",
	} {
		g.Expect(Language("/src/"+name)).To(Equal(want), name)
	}
}
