// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// requestFromServer sends a request as the server, and returns the response to it.
func (b *fixture) requestFromServer(s *fakeServer, id, method, params string) message {
	b.t.Helper()
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	b.Eventually(func() []message { return s.answers(id) }).Should(HaveLen(1), method)
	return s.answers(id)[0]
}

func TestServerRequest_IsAnsweredWithoutClient(t *testing.T) {
	b := newFixture(t, lsp.Config{Folders: []string{"/w"}, Settings: json.RawMessage(`{"go":{"lint":{"on":true}},"a.b":{"c":1},"n":null}`)})
	s := b.attach("", nil) // also before it has answered initialize
	for i, want := range []struct{ method, params, result string }{
		{"workspace/configuration", `{"items":[{"section":"go.lint"},{"section":"go.lint.on"},{"section":"a.b.c"},{"section":"x"},{"section":"n"},{}]}`,
			`[{"on":true},true,1,null,null,{"go":{"lint":{"on":true}},"a.b":{"c":1},"n":null}]`},
		{"workspace/workspaceFolders", "null", `[{"uri":"file:///w","name":"w"}]`},
		{"client/registerCapability", `{"registrations":[{"id":"1","method":"textDocument/hover"}]}`, "null"},
		{"client/unregisterCapability", `{"unregisterations":[{"id":"1","method":"textDocument/hover"}]}`, "null"},
		{"window/workDoneProgress/create", `{"token":1}`, "null"},
		{"workspace/codeLens/refresh", "null", "null"},
		{"workspace/applyEdit", `{"edit":{}}`, `{"applied":false,"failureReason":"no connected client requested it"}`},
		{"window/showMessageRequest", `{"type":1,"message":"?"}`, "null"},
		{"window/showDocument", `{"uri":"file:///a"}`, `{"success":false}`},
	} {
		answer := b.requestFromServer(s, fmt.Sprintf(`"s%d"`, i), want.method, want.params)
		b.Expect(answer.Error).To(BeNil(), want.method)
		b.Expect(string(answer.Result)).To(Equal(want.result), want.method)
	}
	b.Expect(b.requestFromServer(s, "99", "vendor/ask", "{}").Error.Code).To(Equal(wire.CodeMethodNotFound))
}

func TestApplyEdit_GoesToClientOfRunningCommand(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	one, other := b.join(), b.join()
	one.request("1", "workspace/executeCommand", "{}")
	first := b.await(s.peer, "workspace/executeCommand", 1)
	other.request("1", "workspace/executeCommand", "{}")
	other.request("2", "textDocument/hover", "{}")
	other.sync()
	b.Expect(s.received("workspace/executeCommand")).To(HaveLen(1), "commands are executed one at a time")

	s.send(`{"jsonrpc":"2.0","id":"e1","method":"workspace/applyEdit","params":{"edit":{"documentChanges":[{"textDocument":{"uri":"file:///a","version":3},"edits":[]}]}}}`)
	asked := b.await(one.peer, "workspace/applyEdit", 1)
	b.Expect(string(asked.Params)).To(ContainSubstring(`"version":null`), "the versions of the server differ from those of the client")
	one.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"applied":true}}`, asked.ID))
	b.Eventually(func() []message { return s.answers(`"e1"`) }).Should(HaveLen(1))
	b.Expect(string(s.answers(`"e1"`)[0].Result)).To(Equal(`{"applied":true}`))

	s.answer(first, "null")
	second := b.await(s.peer, "workspace/executeCommand", 2)
	s.send(`{"jsonrpc":"2.0","id":"e2","method":"workspace/applyEdit","params":{"edit":{}}}`)
	b.await(other.peer, "workspace/applyEdit", 1)
	b.Expect(s.answers(`"e2"`)).To(BeEmpty())
	b.tick(questionPatience)
	b.Eventually(func() []message { return s.answers(`"e2"`) }).Should(HaveLen(1))
	b.Expect(string(s.answers(`"e2"`)[0].Result)).To(ContainSubstring(`"applied":false`))
	s.answer(second, "null")
	other.awaitAnswer("1")
	s.send(`{"jsonrpc":"2.0","id":"e3","method":"workspace/applyEdit","params":{"edit":{}}}`)
	b.await(other.peer, "workspace/applyEdit", 2) // an edit after the answer to the command
	b.Expect(one.received("workspace/applyEdit")).To(HaveLen(1))

	// A question goes to the client that has requests in flight, if only one client has any.
	s.send(`{"jsonrpc":"2.0","id":"q","method":"window/showMessageRequest","params":{"message":"?"}}`)
	b.await(other.peer, "window/showMessageRequest", 1)
	_ = other.conn.Close()
	b.Eventually(func() []message { return s.answers(`"q"`) }).Should(HaveLen(1))
	b.Expect(string(s.answers(`"q"`)[0].Result)).To(Equal("null"))
}

func TestAnswer_ClearsDocumentVersions(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.request("1", "textDocument/rename", "{}")
	s.answer(b.await(s.peer, "textDocument/rename", 1), `{"documentChanges":[{"textDocument":{"uri":"file:///<a>","version":12},"edits":[{"newText":"&","n":1e400}]},{"kind":"create"}]}`)
	b.Expect(string(c.awaitAnswer("1").Result)).To(MatchJSON(
		`{"documentChanges":[{"edits":[{"newText":"&","n":1e400}],"textDocument":{"uri":"file:///<a>","version":null}},{"kind":"create"}]}`))
}

func TestRegistrationsReachCapableClients(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	register := `{"registrations":[{"id":"1","method":"textDocument/hover","registerOptions":{"a":1}},{"id":"2","method":"textDocument/rename"}]}`
	b.requestFromServer(s, "1", "client/registerCapability", register)
	b.Expect(string(b.await(c.peer, "client/registerCapability", 1).Params)).To(MatchJSON(
		`{"registrations":[{"id":"1","method":"textDocument/hover","registerOptions":{"a":1}}]}`))
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":1,"message":"I don't want to"}}`, c.received("client/registerCapability")[0].ID))
	late := b.join()
	b.await(late.peer, "client/registerCapability", 1)

	b.stopForRestart(s)
	s = b.serve(nil)
	b.requestFromServer(s, "1", "client/registerCapability", register)
	b.Expect(c.received("client/registerCapability")).To(HaveLen(1), "the client already knows the registration")
	b.stopForRestart(s)
	s = b.serve(nil)
	b.Eventually(func() bool { b.tick(time.Second); return b.report().Indexed }).Should(BeTrue())
	b.Expect(string(b.await(c.peer, "client/unregisterCapability", 1).Params)).To(MatchJSON(
		`{"unregisterations":[{"id":"1","method":"textDocument/hover"}]}`), "the new server has not registered it again")
	b.await(c.peer, "workspace/codeLens/refresh", 1)
	b.Expect(s.received("")).To(BeEmpty(), "responses of clients are not forwarded to the server")
}

func TestServerProgress_ReachesOnlyCapableClients(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c, plain := b.join(), b.connect()
	plain.request("1", "initialize", `{"capabilities":{}}`)
	plain.awaitAnswer("1")
	plain.notify("initialized", "{}")
	plain.sync()
	b.requestFromServer(s, "1", "window/workDoneProgress/create", `{"token":"load"}`)
	b.await(c.peer, "window/workDoneProgress/create", 1)
	for _, kind := range []string{"begin", "report", "end", "report"} {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":"load","value":{"kind":%q}}}`, kind))
	}
	s.send(`{"jsonrpc":"2.0","method":"window/logMessage","params":{"message":"behind it"}}`)
	b.await(c.peer, "window/logMessage", 1)
	b.await(plain.peer, "window/logMessage", 1)
	b.Expect(c.received("$/progress")).To(HaveLen(3), "a token is invalid after its end")
	b.Expect(plain.received("$/progress")).To(BeEmpty())
	c.notify("window/workDoneProgress/cancel", `{"token":"load"}`)
	b.requestFromServer(s, "2", "window/workDoneProgress/create", `{"token":2}`)
	c.notify("window/workDoneProgress/cancel", `{"token":2}`)
	b.Expect(string(b.await(s.peer, "window/workDoneProgress/cancel", 1).Params)).To(Equal(`{"token":2}`))
}

// TestDocuments_QuestionsDoNotDisturbUnsavedText checks that the server can finish the diagnostics of an unsaved text while another client asks questions.
func TestDocuments_QuestionsDoNotDisturbUnsavedText(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	one, other := b.join(), b.join()
	one.openDocument("file:///a.go", "text")
	one.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a.go","version":8},"contentChanges":[{"text":"unsaved"}]}`)
	b.await(s.peer, "textDocument/didChange", 1)

	other.request("1", "textDocument/documentSymbol", hoverParams("file:///b.go"))
	s.answer(b.await(s.peer, "textDocument/documentSymbol", 1), "[]")
	other.awaitAnswer("1")
	b.Expect(s.received("textDocument/didClose")).To(BeEmpty(), "the answer does not depend on other documents")

	other.request("2", "textDocument/references", hoverParams("file:///b.go"))
	first := b.await(s.peer, "textDocument/references", 1)
	b.await(s.peer, "textDocument/didClose", 1)
	other.request("3", "textDocument/references", hoverParams("file:///b.go"))
	second := b.await(s.peer, "textDocument/references", 2)
	s.answer(first, "[]")
	other.awaitAnswer("2")
	b.Expect(s.received("textDocument/didOpen")).To(HaveLen(1), "a question is pending")
	s.answer(second, "[]")
	other.awaitAnswer("3")
	b.Expect(string(b.await(s.peer, "textDocument/didOpen", 2).Params)).To(ContainSubstring("unsaved"))
}

func TestDocuments_EachClientSeesItsOwnText(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(echo)
	one, other := b.join(), b.join()
	const uri = "file:///a.go"
	one.openDocument(uri, "text")
	other.openDocument(uri, "text")
	other.request("1", "textDocument/hover", hoverParams(uri))
	other.awaitAnswer("1")
	b.Expect(s.received("textDocument/didOpen")).To(HaveLen(1))
	b.Expect(s.received("textDocument/didChange")).To(BeEmpty())

	one.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a.go","version":8},"contentChanges":[{"text":"unsaved"}]}`)
	b.await(s.peer, "textDocument/didChange", 1)
	other.request("2", "textDocument/hover", hoverParams(uri))
	other.awaitAnswer("2")
	switched := string(s.received("textDocument/didChange")[1].Params)
	b.Expect(switched).To(ContainSubstring(`"text"`))
	b.Expect(switched).NotTo(ContainSubstring("unsaved"), "no client gets a response about unsaved text of another")
	b.Expect(string(b.await(s.peer, "textDocument/didChange", 3).Params)).To(ContainSubstring("unsaved"), "after the answer the server has the newest text again")
	b.Expect(b.report().Counters.ViewSwitches).To(BeNumerically("==", 2))

	one.notify("textDocument/didSave", `{"textDocument":{"uri":"file:///a.go"}}`)
	b.await(s.peer, "textDocument/didSave", 1)
	one.notify("textDocument/didClose", `{"textDocument":{"uri":"file:///a.go"}}`)
	one.sync()
	b.Expect(b.report().OpenDocuments).To(Equal(1))
	other.notify("textDocument/didClose", `{"textDocument":{"uri":"file:///a.go"}}`)
	b.await(s.peer, "textDocument/didClose", 1)
	b.Expect(b.report().OpenDocuments).To(BeZero())
}

func TestDocumentsAreBounded(t *testing.T) {
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{OpenDocuments: 1}})
	s := b.serve(nil)
	c := b.join()
	c.openDocument("file:///a.go", "text")
	c.openDocument("file:///b.go", "text")
	b.await(c.peer, "window/logMessage", 1)
	b.await(s.peer, "textDocument/didOpen", 1)
	b.Expect(b.report().OpenDocuments).To(Equal(1))
}

// TestDiagnostics_OfEarlierServerAreNotSentForNewText changes a text while no server runs. The new server gives it the version that the old text had.
func TestDiagnostics_OfEarlierServerAreNotSentForNewText(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	one := b.join()
	one.openDocument("file:///a.go", "old")
	b.await(s.peer, "textDocument/didOpen", 1)
	s.send(`{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":"file:///a.go","version":1,"diagnostics":[{"message":"old"}]}}`)
	b.await(one.peer, "textDocument/publishDiagnostics", 1)
	b.crash(s)
	one.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a.go","version":8},"contentChanges":[{"text":"new"}]}`)
	one.sync()
	s = b.serve(nil)
	b.await(s.peer, "textDocument/didOpen", 1)
	late := b.join()
	late.openDocument("file:///a.go", "new")
	late.sync()
	b.Expect(late.received("textDocument/publishDiagnostics")).To(BeEmpty())
}

func TestInitialize_OffersNoPullOfDiagnostics(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	b.attach(`{"capabilities":{"diagnosticProvider":{"interFileDependencies":false},"hoverProvider":true},"serverInfo":{"name":"css"}}`, nil)
	c := b.join()
	b.Expect(string(c.awaitAnswer(`"init"`).Result)).To(MatchJSON(`{"capabilities":{"hoverProvider":true},"serverInfo":{"name":"css"}}`))
}

func TestDiagnostics_ReachOnlyClientsWithThatText(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	one, other := b.join(), b.join()
	publish := func(uri string, version int, what string) {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":%q,"version":%d,"diagnostics":[%s]}}`, uri, version, what))
	}
	const uri = "file:///a.go"
	version := func(m message) int {
		var p struct {
			TextDocument struct{ Version int }
		}
		b.Expect(json.Unmarshal(m.Params, &p)).To(Succeed())
		return p.TextDocument.Version
	}
	one.openDocument(uri, "text")
	publish(uri, version(b.await(s.peer, "textDocument/didOpen", 1)), `{"message":"wrong"}`)
	b.Expect(string(b.await(one.peer, "textDocument/publishDiagnostics", 1).Params)).To(MatchJSON(`{"uri":"file:///a.go","version":7,"diagnostics":[{"message":"wrong"}]}`))
	b.Expect(string(b.await(other.peer, "textDocument/publishDiagnostics", 1).Params)).To(MatchJSON(`{"uri":"file:///a.go","diagnostics":[{"message":"wrong"}]}`))

	late := b.join()
	late.openDocument(uri, "text")
	b.await(late.peer, "textDocument/publishDiagnostics", 2) // once on connect, and once on didOpen

	one.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a.go","version":8},"contentChanges":[{"text":"unsaved"}]}`)
	publish(uri, version(b.await(s.peer, "textDocument/didChange", 1)), `{"message":"of unsaved"}`)
	b.Expect(string(b.await(one.peer, "textDocument/publishDiagnostics", 2).Params)).To(ContainSubstring(`"version":8`), "the client's version, not the server's")
	publish("file:///closed.go", 0, `{"message":"all"}`)
	b.await(one.peer, "textDocument/publishDiagnostics", 3)
	b.Eventually(func() int { return len(late.received("textDocument/publishDiagnostics")) }).Should(Equal(3))
	b.Expect(string(late.received("textDocument/publishDiagnostics")[2].Params)).To(ContainSubstring("all"), "not the diagnostics of the unsaved text")
	b.Eventually(func() int { return len(other.received("textDocument/publishDiagnostics")) }).Should(Equal(2))
	b.Expect(string(other.received("textDocument/publishDiagnostics")[1].Params)).To(ContainSubstring("all"))

	b.stopForRestart(s)
	s = b.serve(nil)
	publish("file:///new.go", 0, `{"message":"new"}`)
	b.await(one.peer, "textDocument/publishDiagnostics", 4)
	b.tick(staleDiagnostics)
	b.Eventually(func() string {
		all := other.received("textDocument/publishDiagnostics")
		return string(all[len(all)-1].Params)
	}).Should(MatchJSON(`{"uri":"file:///closed.go","diagnostics":[]}`), "the new server has not published them again")
	b.mux.lock()
	defer b.mux.unlock()
	b.Expect(b.mux.published).To(HaveLen(1))
}

// The server sends no versions and publishes empty diagnostics for the text of one client. When another client changes its own text back, so that both clients
// have the same text, the other client must receive these diagnostics too.
func TestDiagnostics_ReachClientWhoseTextMatchesAgain(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	editor, agent := b.join(), b.join()
	const uri = "file:///a.go"
	publish := func(uri, what string) {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":%q,"diagnostics":[%s]}}`, uri, what))
	}
	editor.openDocument(uri, "text")
	agent.openDocument(uri, "text")
	editor.sync()
	agent.sync()
	editor.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a.go","version":8},"contentChanges":[{"text":"mistake"}]}`)
	b.await(s.peer, "textDocument/didChange", 1)
	publish(uri, `{"message":"wrong"}`)
	b.await(editor.peer, "textDocument/publishDiagnostics", 1)
	agent.request("1", "textDocument/hover", `{"textDocument":{"uri":"file:///a.go"},"position":{"line":0,"character":0}}`)
	b.await(s.peer, "textDocument/didChange", 2)
	publish(uri, "")
	publish("file:///other.go", `{"message":"all"}`)
	b.Expect(string(b.await(editor.peer, "textDocument/publishDiagnostics", 2).Params)).To(ContainSubstring("all"), "not the diagnostics of the other text")
	editor.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a.go","version":9},"contentChanges":[{"text":"text"}]}`)
	editor.sync()
	b.tick(11 * time.Second) // until then, the server may still send diagnostics of the other text
	b.await(s.peer, "textDocument/didChange", 4)
	publish(uri, "")
	b.Expect(string(b.await(editor.peer, "textDocument/publishDiagnostics", 3).Params)).To(MatchJSON(`{"uri":"file:///a.go","diagnostics":[]}`))
}

func TestInitializeResult_ExtractsServerVersion(t *testing.T) {
	g := NewWithT(t)
	r := &initializeResult{}
	for said, want := range map[string]string{
		"1.2": "1.2", "": "", `{"GoVersion":"go1.26","Main":{"Version":"v0.23.0"},"Deps":[]}`: "v0.23.0", `{"a":1}`: `{"a":1}`,
	} {
		r.ServerInfo.Version = said
		g.Expect(r.version()).To(Equal(want))
	}
}

// Without a limit, a server could request large settings any number of times in one request.
func TestConfiguration_IsBounded(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	b := newFixture(t, lsp.Config{Settings: json.RawMessage(`{"large":"` + large + `","small":1}`)})
	s := b.serve(nil)
	items := func(n int, name string) string {
		return `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"section":"`+name+`"},`, n), ",") + `]}`
	}
	b.Expect(b.requestFromServer(s, `"1"`, "workspace/configuration", items(configurationItems, "small")).Error).To(BeNil())
	b.Expect(b.requestFromServer(s, `"2"`, "workspace/configuration", items(3, "large")).Error).To(BeNil())
	for id, params := range map[string]string{`"3"`: items(configurationItems+1, "small"), `"4"`: items(4, "large")} {
		answer := b.requestFromServer(s, id, "workspace/configuration", params)
		b.Expect(answer.Error).NotTo(BeNil())
		b.Expect(answer.Error.Code).To(Equal(wire.CodeInvalidParams))
	}
}

func withUnreadBytes(limit int) func(*Options) {
	return func(o *Options) { o.UnreadBytes = limit }
}

func TestServer_UnreadInputRequestsRestart(t *testing.T) {
	const limit = 4 << 20
	large := strings.Repeat("x", 1<<18)
	b := newFixture(t, lsp.Config{Settings: json.RawMessage(`{"large":"` + large + `"}`), Limits: lsp.Limits{DocumentBytes: 1}}, withUnreadBytes(limit))
	reads := make(chan struct{})
	var stop sync.Once
	defer stop.Do(func() { close(reads) })
	s := b.serve(func(_ *fakeServer, m message) {
		if m.Method == "" && string(m.ID) == `"stop"` {
			<-reads
		}
	})
	s.send(`{"jsonrpc":"2.0","id":"stop","method":"workspace/workspaceFolders"}`)
	for i := range 3 * limit >> 18 {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"c%d","method":"workspace/configuration","params":{"items":[{"section":"large"}]}}`, i))
	}
	b.Eventually(func() bool { return b.report().Restart }).Should(BeTrue())
	b.expectRestart(lsp.ReasonHung)
	b.mux.lock()
	backlog := b.mux.server.out.backlog()
	b.mux.unlock()
	b.Expect(backlog).To(BeNumerically("<=", limit+2<<18))
	stop.Do(func() { close(reads) })
}

// A new server receives the documents of all clients at once. A long queue at that time does not mean that the server does not read.
func TestServer_ReplayedDocumentsMayExceedQueueLimit(t *testing.T) {
	b := newFixture(t, lsp.Config{}, withUnreadBytes(1<<20))
	first := b.serve(nil)
	text := strings.Repeat("x", 1<<20)
	const clients = 4
	for i := range clients {
		c := b.join()
		c.openDocument(fmt.Sprintf("file:///%d", i), text)
		c.sync()
	}
	b.await(first.peer, "textDocument/didOpen", clients)
	b.crash(first)
	reads := make(chan struct{})
	second := b.attach(fakeResult, func(_ *fakeServer, m message) {
		if m.Method == "initialized" {
			<-reads
		}
	})
	b.Eventually(func() bool { return b.report().Initialized }).Should(BeTrue())
	b.tick(0)
	restart := b.report().Restart
	close(reads)
	b.Expect(restart).To(BeFalse())
	b.await(second.peer, "textDocument/didOpen", clients)
}
