// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

func TestClientNotifications_AreHeldDuringRestart(t *testing.T) {
	b := newFixture(t, lsp.Config{Hold: lsp.Hold{Requests: 3}})
	s := b.serve(echo)
	c := b.join()
	c.notify("$/setTrace", `{"value":"verbose"}`)
	c.notify("workspace/didChangeConfiguration", `{"settings":{"mine":1}}`)
	c.notify("workspace/didChangeWorkspaceFolders", `{"event":{}}`)
	c.notify("workspace/didChangeWatchedFiles", `{"changes":[1]}`)
	c.notify("vendor/notify", `{"n":0}`)
	b.await(s.peer, "vendor/notify", 1)
	b.await(s.peer, "workspace/didChangeWatchedFiles", 1)
	b.stopForRestart(s)

	c.notify("workspace/didChangeWatchedFiles", `{"changes":[2]}`)
	c.notify("vendor/notify", `{"n":1}`)
	c.request("1", "textDocument/hover", "{}")
	c.notify("vendor/notify", `{"n":2}`)
	c.notify("vendor/notify", `{"n":3}`) // exceeds the limit
	gone := b.join()
	gone.notify("vendor/notify", `{"n":4}`)
	gone.sync()
	_ = gone.conn.Close()
	b.Eventually(func() int { return b.report().Clients }).Should(Equal(1))
	c.sync()
	b.Expect(b.report().Held).To(Equal(1))
	b.Expect(b.report().Counters.Rejected).To(BeNumerically("==", 1))
	s = b.serve(echo)
	c.awaitAnswer("1")
	b.await(s.peer, "vendor/notify", 2)
	b.Expect(s.methods()).To(Equal([]string{"initialize", "initialized", methodPing, "vendor/notify", "textDocument/hover", "vendor/notify"}))

	b.stopForRestart(s)
	c.notify("vendor/notify", `{"n":5}`)
	c.sync()
	b.tick(time.Hour)
	s = b.serve(echo)
	c.request("2", "textDocument/hover", "{}")
	c.awaitAnswer("2")
	b.Expect(s.received("vendor/notify")).To(BeEmpty(), "the notification is too old")
}

func TestDocuments_RejectInvalidNotifications(t *testing.T) {
	b := newFixture(t, lsp.Config{Language: "go"})
	s := b.serve(nil)
	c := b.join()
	c.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a.go","version":1},"contentChanges":[{"text":"x"}]}`)
	b.await(c.peer, "window/logMessage", 1)
	c.notify("textDocument/didOpen", `{"textDocument":{"uri":"file:///a%20b.go","version":1,"text":"x"}}`)
	b.Expect(string(b.await(s.peer, "textDocument/didOpen", 1).Params)).To(ContainSubstring(`"languageId":"go"`))
	c.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a%20b.go","version":2},"contentChanges":[{"range":{"start":{"line":-1,"character":0},"end":{"line":1,"character":0}},"text":"x"}]}`)
	b.await(c.peer, "window/logMessage", 2)
	b.await(s.peer, "textDocument/didClose", 1)
	b.Expect(b.report().OpenDocuments).To(BeZero())
	for _, bad := range []string{
		`"textDocument/didOpen","params":{}`, `"textDocument/didOpen","params":{"textDocument":{"uri":"file:///a","version":"x"}}`,
		`"textDocument/didChange","params":[]`, `"textDocument/didSave","params":{"textDocument":{"uri":1}}`,
	} {
		one := b.join()
		one.send(`{"jsonrpc":"2.0","method":` + bad + `}`)
		b.Eventually(one.isClosed).Should(BeTrue(), bad)
		b.Expect(one.answers("null")).To(HaveLen(1), bad)
	}
	early := b.connect()
	early.notify("textDocument/didOpen", "[]") // ignored before initialize
	early.request("1", "initialize", "{}")
	early.awaitAnswer("1")
}

func TestConfigure_AppliesToNextIncarnation(t *testing.T) {
	b := newFixture(t, lsp.Config{Settings: json.RawMessage(`{"a":1}`)})
	s := b.serve(nil)
	b.mux.Configure(lsp.Config{Settings: json.RawMessage(`{"a":2}`), Folders: []string{"/new"}})
	b.stopForRestart(s)
	s = b.serve(nil)
	b.Expect(string(b.await(s.peer, "workspace/didChangeConfiguration", 1).Params)).To(Equal(`{"settings":{"a":2}}`))
	b.Expect(string(b.await(s.peer, "initialize", 1).Params)).To(ContainSubstring("file:///new"))
}

func TestProgressCancel_UsesServerToken(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.request("1", "textDocument/references", `{"workDoneToken":"mine"}`)
	var p struct{ WorkDoneToken json.RawMessage }
	b.Expect(json.Unmarshal(b.await(s.peer, "textDocument/references", 1).Params, &p)).To(Succeed())
	for _, kind := range []string{"begin", "report", "end", "report"} {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":%s,"value":{"kind":%q}}}`, p.WorkDoneToken, kind))
		if kind == "begin" {
			b.await(c.peer, "$/progress", 1)
			c.notify("window/workDoneProgress/cancel", `{"token":"mine"}`)
			b.Expect(string(b.await(s.peer, "window/workDoneProgress/cancel", 1).Params)).To(Equal(fmt.Sprintf(`{"token":%s}`, p.WorkDoneToken)))
		}
	}
	s.answer(s.received("textDocument/references")[0], "[]")
	c.awaitAnswer("1")
	b.Expect(c.received("$/progress")).To(HaveLen(3), "a token is invalid after its end")
}

func TestRegistrations_ChangesReachClients(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	b.requestFromServer(s, "1", "client/registerCapability", `{"registrations":[{"id":"1","method":"textDocument/hover","registerOptions":{"a":1}},null]}`)
	b.await(c.peer, "client/registerCapability", 1)
	b.requestFromServer(s, "2", "client/registerCapability", `{"registrations":[{"id":"1","method":"textDocument/hover","registerOptions":{"a":2}}]}`)
	b.await(c.peer, "client/unregisterCapability", 1)
	b.Expect(string(b.await(c.peer, "client/registerCapability", 2).Params)).To(ContainSubstring(`"a":2`))
	b.requestFromServer(s, "3", "client/unregisterCapability", `{"unregisterations":[{"id":"1","method":"textDocument/rename"},{"id":"1","method":"textDocument/hover"}]}`)
	b.await(c.peer, "client/unregisterCapability", 2)
	b.requestFromServer(s, "4", "client/unregisterCapability", `{"unregisterations":7}`)
	b.requestFromServer(s, "5", "client/registerCapability", `[]`)
	late := b.join()
	b.Expect(late.received("client/registerCapability")).To(BeEmpty())
	for method, path := range map[string][]string{
		"textDocument/didSave": {"textDocument", "synchronization"}, "textDocument/prepareCallHierarchy": {"textDocument", "callHierarchy"},
		"workspace/willRenameFiles": {"workspace", "fileOperations"}, "textDocument/semanticTokens/full": {"textDocument", "semanticTokens"},
		"workspace/didChangeWatchedFiles": {"workspace", "didChangeWatchedFiles"}, "vendor": {"vendor"},
	} {
		b.Expect(featurePath(method)).To(Equal(path))
	}
}

func TestCanary_ThreeTimeoutsRequestRestart(t *testing.T) {
	b := newFixture(t, lsp.Config{Health: lsp.Health{Canary: lsp.Canary{Method: "workspace/symbol"}, HangTimeout: time.Hour}})
	s := b.serveIndexed(nil)
	for i := range 3 {
		b.Expect(b.report().Restart).To(BeFalse())
		b.await(s.peer, "workspace/symbol", i+1)
		b.tick(119 * time.Second)
		b.Expect(b.report().Counters.CanaryFailed).To(BeNumerically("==", i))
		b.tick(time.Second)
		b.Expect(b.report().Counters.CanaryFailed).To(BeNumerically("==", i+1))
		b.tick(time.Second)
	}
	b.expectRestart(lsp.ReasonCanaryFailed)
}

func TestCancel_UnansweredRequestFailsAfterTimeout(t *testing.T) {
	b := newFixture(t, lsp.Config{Health: lsp.Health{HangTimeout: time.Hour}})
	s := b.serveIndexed(nil)
	c := b.join()
	c.request("1", "textDocument/hover", "{}")
	c.notify("$/cancelRequest", `{"id":1}`)
	b.await(s.peer, "$/cancelRequest", 1)
	b.tick(120 * time.Second)
	b.tick(cancelPatience)
	b.Expect(c.awaitAnswer("1").Error.Code).To(Equal(wire.CodeRequestCancelled))
}

func TestHungServer_RequestsFailWhenNoRestartHappens(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serveIndexed(nil)
	c := b.join()
	c.request("1", "textDocument/hover", "{}")
	b.await(s.peer, "textDocument/hover", 1)
	b.mux.Hold("Requested")
	c.request("2", "textDocument/hover", "{}")
	c.sync()
	b.tick(120 * time.Second)
	b.tick(cancelPatience)
	b.Expect(c.awaitAnswer("1").Error.Data.Reason).To(Equal("Timeout"))
	b.Expect(c.awaitAnswer("2").Error.Data.Reason).To(Equal("Restarting"))
}

func TestAttach_ReplacesUndetachedIncarnation(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	old := b.serve(nil)
	c := b.join()
	c.request("1", "textDocument/hover", "{}")
	asked := b.await(old.peer, "textDocument/hover", 1)
	s := b.serve(nil)
	go old.answer(asked, `"of the old one"`) // perhaps nothing reads this response; the write then blocks
	s.answer(b.await(s.peer, "textDocument/hover", 1), `"of the new one"`)
	b.Expect(string(c.awaitAnswer("1").Result)).To(Equal(`"of the new one"`))
	b.mux.Detach(old.incarnation, lsp.Crashed) // too late: the old server is not the current one
	b.Expect(b.report().Initialized).To(BeTrue())
	b.Expect(b.report().Counters.Incarnations).To(BeNumerically("==", 2))
}

func TestShutdown_BeforeInitializeSendsOnlyExit(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.attach("", nil)
	b.await(s.peer, "initialize", 1)
	b.Expect(b.mux.Shutdown(context.Background())).To(Succeed())
	b.await(s.peer, "exit", 1)
	b.Expect(s.received("shutdown")).To(BeEmpty(), "the server is not initialized")
	s.answer(s.received("initialize")[0], fakeResult)
	s.closeStreams()
	b.mux.Detach(s.incarnation, lsp.Asked)
	b.Expect(b.report().Initialized).To(BeFalse())
}

func TestConfigure_NewLimitsApplyToConnectedClients(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	c := b.connect()
	c.request("1", "initialize", "{}")
	b.Eventually(func() int { return b.report().Clients }).Should(Equal(1))
	b.mux.Configure(lsp.Config{Limits: lsp.Limits{OpenDocuments: 1, ClientMessageBytes: 1000, QueueBytes: 4 << 10}})
	s := b.serve(nil)
	c.awaitAnswer("1")
	c.notify("initialized", "{}")
	c.openDocument("file:///a.go", "x")
	c.openDocument("file:///b.go", "x")
	b.await(c.peer, "window/logMessage", 1)
	b.await(s.peer, "textDocument/didOpen", 1)
	b.mux.lock()
	for _, s := range b.mux.clients.sessions {
		b.Expect(s.out.limit).To(Equal(4 << 10))
	}
	b.mux.unlock()
	go c.request("2", "textDocument/hover", fmt.Sprintf(`{"x":"%01000d"}`, 1)) // the request is not read completely
	b.Eventually(c.isClosed).Should(BeTrue())
	b.Expect(c.answers("null")).To(HaveLen(1))
}
