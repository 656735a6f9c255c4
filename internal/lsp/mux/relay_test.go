// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

func TestInitialize_IsSentOnceAndAnsweredFromCache(t *testing.T) {
	b := newFixture(t, lsp.Config{
		Folders: []string{"/src/a b", "/src/c"}, InitializationOptions: json.RawMessage(`{"deep":true}`), Settings: json.RawMessage(`{"gopls":{"x":1}}`),
	})
	early := b.connect()
	early.request("7", "textDocument/hover", hoverParams("file:///a.go"))
	b.Expect(early.awaitAnswer("7").Error.Code).To(Equal(wire.CodeNotInitialized))
	early.request("8", "initialize", `{"processId":1,"capabilities":{}}`)
	early.request("9", "textDocument/hover", hoverParams("file:///a.go"))
	b.Expect(early.awaitAnswer("9").Error.Code).To(Equal(wire.CodeNotInitialized))
	b.Expect(early.answers("8")).To(BeEmpty(), "no server is attached yet")

	s := b.serve(nil)
	b.Expect(string(early.awaitAnswer("8").Result)).To(Equal(fakeResult))
	var params struct {
		ProcessID             int             `json:"processId"`
		RootURI               string          `json:"rootUri"`
		InitializationOptions json.RawMessage `json:"initializationOptions"`
		WorkspaceFolders      []folder        `json:"workspaceFolders"`
		Capabilities          json.RawMessage `json:"capabilities"`
	}
	b.Expect(json.Unmarshal(b.await(s.peer, "initialize", 1).Params, &params)).To(Succeed())
	b.Expect(params.ProcessID).To(Equal(4711))
	b.Expect(params.RootURI).To(Equal("file:///src/a%20b"))
	b.Expect(params.WorkspaceFolders).To(Equal([]folder{{"file:///src/a%20b", "a b"}, {"file:///src/c", "c"}}))
	b.Expect(string(params.InitializationOptions)).To(Equal(`{"deep":true}`))
	b.Expect(capable(params.Capabilities, "window", "workDoneProgress")).To(BeTrue())
	b.Expect(capable(params.Capabilities, "workspace", "configuration")).To(BeTrue())
	b.Expect(capable(params.Capabilities, "workspace", "didChangeWatchedFiles", "dynamicRegistration")).To(BeTrue())
	b.Expect(capable(params.Capabilities, "textDocument", "formatting", "dynamicRegistration")).To(BeFalse(), "clients without registration would lack the feature")
	b.await(s.peer, methodPing, 1)
	b.Expect(s.methods()).To(Equal([]string{"initialize", "initialized", "workspace/didChangeConfiguration", methodPing}))
	r := b.report()
	b.Expect(r.ServerName).To(Equal("fake"))
	b.Expect(r.ServerVersion).To(Equal("1"))

	early.request(`"again"`, "initialize", `{}`)
	b.Expect(early.awaitAnswer(`"again"`).Error.Code).To(Equal(wire.CodeInvalidRequest))
	late := b.join()
	b.Expect(string(late.awaitAnswer(`"init"`).Result)).To(Equal(fakeResult))
	b.Expect(s.received("initialize")).To(HaveLen(1))
}

func TestShutdownAndExitEndOneSession(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	one, other := b.join(), b.join()
	one.request("1", "shutdown", "null")
	b.Expect(string(one.awaitAnswer("1").Result)).To(Equal("null"))
	one.request("2", "textDocument/hover", hoverParams("file:///a.go"))
	b.Expect(one.awaitAnswer("2").Error.Code).To(Equal(wire.CodeInvalidRequest))
	one.notify("exit", "null")
	b.Eventually(one.isClosed).Should(BeTrue())
	b.Eventually(func() int { return b.report().Clients }).Should(Equal(1))
	other.request("1", "textDocument/hover", hoverParams("file:///a.go"))
	s.answer(b.await(s.peer, "textDocument/hover", 1), `{"contents":"x"}`)
	b.Expect(string(other.awaitAnswer("1").Result)).To(Equal(`{"contents":"x"}`))
	b.Expect(s.received("shutdown")).To(BeEmpty())
	b.Expect(s.received("exit")).To(BeEmpty())
}

func TestRequest_AnswerCarriesOriginalID(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(func(s *fakeServer, m message) {
		if m.Method == "textDocument/hover" {
			s.answer(m, string(m.Params))
		}
	})
	clients := []*fakeClient{b.join(), b.join()}
	ids := []string{"1", `"1"`, `"a\"b"`, "-5", `"é"`}
	for _, c := range clients {
		for i, id := range ids {
			c.request(id, "textDocument/hover", fmt.Sprintf(`{"n":%d}`, i))
		}
	}
	for _, c := range clients {
		for i, id := range ids {
			b.Expect(string(c.awaitAnswer(id).Result)).To(Equal(fmt.Sprintf(`{"n":%d}`, i)))
		}
	}
	seen := map[string]bool{}
	for _, m := range s.received("textDocument/hover") {
		seen[string(m.ID)] = true
		_, ok := numberOf(m.ID)
		b.Expect(ok).To(BeTrue(), "%s", m.ID)
	}
	b.Expect(seen).To(HaveLen(10))
	b.Expect(b.report().Counters.Requests).To(BeNumerically(">=", 10))
	b.Expect(b.report().InFlight).To(BeZero())
}

func TestRequest_DuplicateIDClosesClient(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.request("1", "textDocument/hover", "{}")
	c.request("1", "textDocument/hover", "{}")
	b.Eventually(c.isClosed).Should(BeTrue())
	b.Expect(c.answers("1")).To(BeEmpty())
	b.Expect(c.answers("null")[0].Error.Code).To(Equal(wire.CodeInvalidRequest))
	b.await(s.peer, "$/cancelRequest", 1)
}

func TestCancel_ReachesServerOrRemovesQueuedRequest(t *testing.T) {
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{InFlight: 1}})
	s := b.serve(nil)
	c := b.join()
	c.request("10", "textDocument/hover", "{}")
	c.request(`"second"`, "textDocument/hover", "{}")
	c.notify("$/cancelRequest", `{"id":"second"}`)
	b.Expect(c.awaitAnswer(`"second"`).Error.Code).To(Equal(wire.CodeRequestCancelled))
	first := b.await(s.peer, "textDocument/hover", 1)
	c.notify("$/cancelRequest", `{"id":10}`)
	var params struct{ ID json.RawMessage }
	b.Expect(json.Unmarshal(b.await(s.peer, "$/cancelRequest", 1).Params, &params)).To(Succeed())
	b.Expect(params.ID).To(Equal(first.ID))
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32800,"message":"cancelled"}}`, first.ID))
	b.Expect(c.awaitAnswer("10").Error.Code).To(Equal(wire.CodeRequestCancelled))
	c.request("11", "textDocument/hover", "{}")
	s.answer(b.await(s.peer, "textDocument/hover", 2), "null")
	c.awaitAnswer("11")
}

func TestDisconnect_CancelsRequestsAndClosesDocuments(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.openDocument("file:///a.go", "package a")
	c.request("1", "textDocument/hover", hoverParams("file:///a.go"))
	c.request("2", "workspace/executeCommand", "{}")
	b.await(s.peer, "workspace/executeCommand", 1)
	b.Expect(b.report().OpenDocuments).To(Equal(1))
	_ = c.conn.Close()
	b.await(s.peer, "$/cancelRequest", 2)
	b.await(s.peer, "textDocument/didClose", 1)
	b.Eventually(func() int { return b.report().Clients }).Should(BeZero())
	r := b.report()
	b.Expect(r.OpenDocuments).To(BeZero())
	b.Expect(r.InFlight).To(BeZero())
	b.Expect(r.IdleSince).To(Equal(b.clock.Now()))

	next := b.join()
	next.request("1", "workspace/executeCommand", "{}")
	b.Expect(s.received("workspace/executeCommand")).To(HaveLen(1), "an edit could belong to the command of the disconnected client")
	s.answer(s.received("textDocument/hover")[0], "null")
	s.answer(s.received("workspace/executeCommand")[0], "null")
	s.answer(b.await(s.peer, "workspace/executeCommand", 2), `"mine"`)
	b.Expect(string(next.awaitAnswer("1").Result)).To(Equal(`"mine"`))
}

func TestInFlight_IsBoundedAndKeepsOrder(t *testing.T) {
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{InFlight: 2}, Hold: lsp.Hold{Requests: 3}})
	s := b.serve(nil)
	c, other := b.join(), b.join()
	for i := range 6 {
		c.request(fmt.Sprint(i), "textDocument/hover", fmt.Sprintf(`{"n":%d}`, i))
	}
	busy := c.awaitAnswer("5")
	b.Expect(busy.Error.Data.Reason).To(Equal("Busy"))
	b.Expect(busy.Error.Data.Retriable).To(BeTrue())
	b.await(s.peer, "textDocument/hover", 2)
	other.request("1", "textDocument/definition", "{}")
	s.answer(b.await(s.peer, "textDocument/definition", 1), "null")
	other.awaitAnswer("1")
	for i := range 5 {
		b.await(s.peer, "textDocument/hover", min(i+2, 5))
		next := s.received("textDocument/hover")[i]
		b.Expect(string(next.Params)).To(Equal(fmt.Sprintf(`{"n":%d}`, i)))
		s.answer(next, "null")
		c.awaitAnswer(fmt.Sprint(i))
	}
}

func TestProgress_ReachesRequestingClientWithItsToken(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	one, other := b.join(), b.join()
	for _, c := range []*fakeClient{one, other} {
		c.request("1", "textDocument/references", `{"workDoneToken":"t","partialResultToken":3}`)
	}
	b.await(s.peer, "textDocument/references", 2)
	for _, asked := range s.received("textDocument/references") {
		var p struct{ WorkDoneToken, PartialResultToken json.RawMessage }
		b.Expect(json.Unmarshal(asked.Params, &p)).To(Succeed())
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":%s,"value":{"kind":"begin","title":"x"}}}`, p.WorkDoneToken))
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":%s,"value":[1]}}`, p.PartialResultToken))
		s.answer(asked, "[]")
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":%s,"value":[2]}}`, p.PartialResultToken))
	}
	for _, c := range []*fakeClient{one, other} {
		c.awaitAnswer("1")
		b.Expect(c.received("$/progress")).To(HaveLen(2))
		b.Expect(string(c.received("$/progress")[0].Params)).To(Equal(`{"token":"t","value":{"kind":"begin","title":"x"}}`))
		b.Expect(string(c.received("$/progress")[1].Params)).To(Equal(`{"token":3,"value":[1]}`))
	}
}

func TestClient_ProtocolErrorClosesOnlyItsConnection(t *testing.T) {
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{ClientMessageBytes: 4096}})
	s := b.serve(nil)
	good := b.join()
	for _, bad := range []string{
		"Content-Length: 5000\r\n\r\n", "Content-Length: 7\r\n\r\n{\"id\":}", "Content-Length: 2\r\n\r\n[]", "nonsense: 1\r\n\r\n",
		"Content-Length: -1\r\n\r\n",
	} {
		c := b.join()
		_, _ = c.conn.Write([]byte(bad))
		b.Eventually(c.isClosed).Should(BeTrue(), bad)
		b.Expect(c.answers("null")).To(HaveLen(1), bad)
		b.Expect(c.answers("null")[0].Error.Code).To(Equal(wire.CodeParse))
	}
	b.Expect(b.report().Counters.Rejected).To(BeNumerically("==", 5))
	good.request("1", "textDocument/hover", "{}")
	s.answer(b.await(s.peer, "textDocument/hover", 1), "null")
	good.awaitAnswer("1")
	b.Expect(b.report().Unhealthy).To(BeEmpty())
}

func TestServe_RefusesClientsAboveLimit(t *testing.T) {
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{Clients: 2}})
	b.serve(nil)
	b.join()
	b.join()
	c := b.connect()
	b.Eventually(c.isClosed).Should(BeTrue())
	b.Expect(c.answers("null")).To(HaveLen(1))
	b.Expect(b.report().Clients).To(Equal(2))
}

func TestQuit_NotifiesAndClosesClients(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	b.serve(nil)
	c, waiting := b.join(), b.connect()
	c.request("1", "textDocument/hover", "{}")
	c.request("2", "workspace/executeCommand", "{}")
	c.sync()
	b.mux.Quit("the object was deleted")
	b.Eventually(c.isClosed).Should(BeTrue())
	b.Eventually(waiting.isClosed).Should(BeTrue())
	b.Expect(c.awaitAnswer("1").Error.Message).To(Equal("the object was deleted"))
	b.Expect(c.awaitAnswer("2").Error.Data.Outcome).To(Equal("unknown"))
	b.Expect(string(c.received("window/showMessage")[0].Params)).To(ContainSubstring("the object was deleted"))
	late := b.connect()
	b.Eventually(late.isClosed).Should(BeTrue())
}

func TestSlowClient_IsDroppedWithoutEffectOnOthers(t *testing.T) {
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{QueueBytes: 64 << 10}})
	s := b.serve(nil)
	good, slow := b.join(), b.join()
	// From here on the slow client does not read.
	stop := make(chan struct{})
	blocked := make(chan struct{})
	slow.mu.Lock() // its reader stops at the next message
	go func() { defer close(blocked); <-stop; slow.mu.Unlock() }()
	text := make([]byte, 2000)
	for i := range text {
		text[i] = 'x'
	}
	for i := range 100 {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":"file:///%d","diagnostics":[{"message":%q}]}}`, i, text))
		good.request(fmt.Sprint(i), "textDocument/hover", "{}")
		s.answer(b.await(s.peer, "textDocument/hover", i+1), "null")
		good.awaitAnswer(fmt.Sprint(i))
	}
	b.Eventually(func() int { return b.report().Clients }).Should(Equal(1))
	b.Expect(b.report().Counters.SlowClients).To(BeNumerically("==", 1))
	b.Expect(good.received("textDocument/publishDiagnostics")).To(HaveLen(100))
	close(stop)
	<-blocked
	b.Eventually(slow.isClosed).Should(BeTrue())
}

func TestNew_TicksWithRealClock(t *testing.T) {
	g := NewWithT(t)
	changed := make(chan struct{}, 1000)
	m := New(Options{Config: lsp.Config{}, Changed: func() { changed <- struct{}{} }})
	defer m.Quit("over")
	b := &fixture{WithT: g, t: t, mux: m, urgent: nil}
	b.attach(fakeResult, nil)
	g.Eventually(func() bool { return b.report().Indexed }).Should(BeTrue())
	g.Eventually(changed).Should(Receive())
	g.Expect(b.report().IndexedBy).To(Equal("Settled"))
	g.Expect(b.report().Counters.StartupNanos).To(BeNumerically("<", time.Minute))
}
