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

// echo answers every request of a client with the name of its method.
func echo(s *fakeServer, m message) {
	if m.ID == nil || m.Method == "initialize" || m.Method == methodPing || m.Method == "shutdown" || m.Method == "" {
		return
	}
	s.answer(m, `"`+m.Method+`"`)
}

func TestRestart_IsTransparentToClients(t *testing.T) {
	b := newFixture(t, lsp.Config{Settings: json.RawMessage(`{"a":1}`)})
	old := b.serve(echo)
	c := b.join()
	c.openDocument("file:///a.go", "one")
	c.openDocument("file:///b.go", "two")
	b.await(old.peer, "textDocument/didOpen", 2)

	b.mux.Hold("Requested")
	c.request("1", "textDocument/hover", hoverParams("file:///a.go"))
	c.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///a.go","version":8},"contentChanges":[{"text":"three"}]}`)
	c.request("2", "workspace/executeCommand", "{}")
	c.sync()
	b.Expect(old.received("textDocument/hover")).To(BeEmpty())
	b.Expect(b.report().Held).To(Equal(2))
	old.closeStreams()
	b.mux.Detach(old.incarnation, lsp.Asked)
	b.Expect(b.urgent).To(Receive())
	newcomer := b.connect()
	newcomer.request("1", "initialize", "{}")
	newcomer.awaitAnswer("1")

	s := b.serve(echo)
	b.Expect(string(c.awaitAnswer("1").Result)).To(Equal(`"textDocument/hover"`))
	b.Expect(string(c.awaitAnswer("2").Result)).To(Equal(`"workspace/executeCommand"`))
	b.Expect(s.methods()).To(Equal([]string{"initialize", "initialized", "workspace/didChangeConfiguration", "textDocument/didOpen", "textDocument/didOpen",
		methodPing, "textDocument/hover", "workspace/executeCommand"}))
	b.Expect(string(s.received("textDocument/didOpen")[0].Params)).To(ContainSubstring("three"))
	b.Expect(string(s.received("textDocument/didOpen")[0].Params)).To(ContainSubstring(`"version":1`))
	r := b.report()
	b.Expect(r.Held).To(BeZero())
	b.Expect(r.Counters.HeldTotal).To(BeNumerically("==", 2))
	b.Expect(r.Counters.Failed).To(BeNumerically("==", 2), "the requests of sync, which are refused")
}

func TestCrash_ReplaysOnlySafeRequests(t *testing.T) {
	b := newFixture(t, lsp.Config{Replay: []string{"vendor/safe"}})
	old := b.serve(func(s *fakeServer, m message) {
		if m.Method == "textDocument/references" {
			var p struct{ PartialResultToken json.RawMessage }
			_ = json.Unmarshal(m.Params, &p)
			s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":%s,"value":[1]}}`, p.PartialResultToken))
		}
	})
	c := b.join()
	c.request("1", "textDocument/hover", `{"workDoneToken":"w"}`)
	c.request("2", "completionItem/resolve", "{}")
	c.request("3", "workspace/executeCommand", "{}")
	c.request("4", "vendor/unknown", "{}")
	c.request("5", "vendor/safe", "{}")
	c.request("6", "textDocument/references", `{"partialResultToken":"p"}`)
	c.request("7", "textDocument/diagnostic", `{"previousResultId":"x"}`)
	c.request("8", "textDocument/definition", "{}")
	b.await(c.peer, "$/progress", 1)
	b.await(old.peer, "textDocument/definition", 1)
	c.notify("$/cancelRequest", `{"id":8}`)
	c.sync()
	c.openDocument("file:///x.go", "")
	b.crash(old)
	b.Expect(b.urgent).To(Receive())
	for _, id := range []string{"2", "6", "7"} {
		b.Expect(c.awaitAnswer(id).Error.Code).To(Equal(wire.CodeContentModified), id)
	}
	for _, id := range []string{"3", "4"} {
		b.Expect(c.awaitAnswer(id).Error.Code).To(Equal(wire.CodeRequestFailed), id)
		b.Expect(c.awaitAnswer(id).Error.Data.Outcome).To(Equal("unknown"), id)
		b.Expect(c.awaitAnswer(id).Error.Data.Retriable).To(BeFalse(), id)
	}
	b.Expect(c.awaitAnswer("8").Error.Code).To(Equal(wire.CodeRequestCancelled))
	b.Expect(c.answers("1")).To(BeEmpty())

	s := b.serve(nil)
	// A late response: its ID does not belong to any request of this incarnation.
	s.send(`{"jsonrpc":"2.0","id":2147483647,"result":"late"}`)
	s.answer(b.await(s.peer, "textDocument/hover", 1), `"replayed"`)
	s.answer(b.await(s.peer, "vendor/safe", 1), `"replayed too"`)
	b.Expect(string(c.awaitAnswer("1").Result)).To(Equal(`"replayed"`))
	b.Expect(string(c.awaitAnswer("5").Result)).To(Equal(`"replayed too"`))
	b.Expect(s.received("workspace/executeCommand")).To(BeEmpty())
	b.Expect(s.received("vendor/unknown")).To(BeEmpty())
	b.Expect(b.report().Counters.Replayed).To(BeNumerically("==", 2))
}

func TestHoldIsBounded(t *testing.T) {
	b := newFixture(t, lsp.Config{Hold: lsp.Hold{Requests: 2, Bytes: 1000, Timeout: 10 * time.Second}})
	s := b.serve(nil)
	c, big := b.join(), b.join()
	b.stopForRestart(s)
	c.request("1", "textDocument/hover", "{}")
	c.sync()
	b.tick(5 * time.Second)
	c.request("2", "textDocument/hover", "{}")
	c.request("3", "textDocument/hover", "{}")
	restarting := func(m message) {
		b.t.Helper()
		b.Expect(m.Result).To(BeNil())
		b.Expect(m.Error.Code).To(Equal(wire.CodeRequestFailed))
		b.Expect(m.Error.Data).To(Equal(detail{Reason: "Restarting", Incarnation: s.incarnation, Retriable: true, RetryAfterMs: 2000}))
	}
	restarting(c.awaitAnswer("3"))
	big.request("1", "textDocument/hover", fmt.Sprintf(`{"x":"%01000d"}`, 1))
	restarting(big.awaitAnswer("1"))
	b.tick(5 * time.Second)
	restarting(c.awaitAnswer("1"))
	b.Expect(c.answers("2")).To(BeEmpty())
	b.Expect(b.report().Counters.HeldNanos).To(BeNumerically("==", 10*time.Second))
	b.tick(5 * time.Second)
	restarting(c.awaitAnswer("2"))
	b.Expect(b.report().Held).To(BeZero())
}

func TestHold_NegativeTimeoutDisablesHolding(t *testing.T) {
	b := newFixture(t, lsp.Config{Hold: lsp.Hold{Timeout: -1}})
	s := b.serve(nil)
	c := b.join()
	c.request("1", "textDocument/hover", "{}")
	b.await(s.peer, "textDocument/hover", 1)
	b.stopForRestart(s)
	b.Expect(c.awaitAnswer("1").Error.Data.Reason).To(Equal("Restarting"))
	c.request("2", "textDocument/hover", "{}")
	b.Expect(c.awaitAnswer("2").Error.Data.Reason).To(Equal("Restarting"))
}

func TestInitialize_WaitsForFirstServer(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	c := b.connect()
	c.request("1", "initialize", "{}")
	b.Eventually(func() int { return b.report().Clients }).Should(Equal(1))
	for _, r := range c.all() {
		t.Fatalf("unexpected %v", r)
	}
	b.Eventually(func() []message { b.tick(time.Minute); return c.answers("1") }).Should(HaveLen(1))
	b.Expect(c.answers("1")[0].Error.Data.Retriable).To(BeTrue())
	c.request("2", "initialize", "{}")
	s := b.serve(nil)
	c.awaitAnswer("2")
	b.Expect(s.received("initialize")).To(HaveLen(1))
}

func TestQuarantine_StopsRequestThatCrashedServerTwice(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	poison := hoverParams("file:///poison.go")
	c.request("1", "textDocument/hover", poison)
	for range 2 {
		b.await(s.peer, "textDocument/hover", 1)
		b.Expect(c.answers("1")).To(BeEmpty())
		b.crash(s)
		s = b.serve(nil)
	}
	b.Expect(c.awaitAnswer("1").Error.Data.Reason).To(Equal("Quarantined"))
	c.request("2", "textDocument/hover", poison)
	b.Expect(c.awaitAnswer("2").Error.Data.Reason).To(Equal("Quarantined"))
	r := b.report()
	b.Expect(r.Unhealthy).To(Equal(lsp.ReasonQuarantined))
	b.Expect(r.Restart).To(BeFalse())
	c.request("3", "textDocument/definition", poison)
	c.request("4", "textDocument/hover", hoverParams("file:///other.go"))
	s.answer(b.await(s.peer, "textDocument/definition", 1), "null")
	s.answer(b.await(s.peer, "textDocument/hover", 1), "null")
	c.awaitAnswer("3")
	c.awaitAnswer("4")
	b.tick(quarantineTime)
	c.request("5", "textDocument/hover", poison)
	b.await(s.peer, "textDocument/hover", 2)
	b.Expect(b.report().Unhealthy).To(BeEmpty())
}

func TestQuarantine_AppliesToRequestsWithEffects(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	c := (*fakeClient)(nil)
	for i := range 2 {
		s := b.serve(nil)
		if c == nil {
			c = b.join()
		}
		c.request(fmt.Sprint(i), "vendor/effect", hoverParams("file:///poison.go"))
		b.await(s.peer, "vendor/effect", 1)
		b.crash(s)
		b.Expect(c.awaitAnswer(fmt.Sprint(i)).Error.Data.Outcome).To(Equal("unknown"))
	}
	s := b.serve(nil)
	c.request("5", "vendor/effect", hoverParams("file:///poison.go"))
	b.Expect(c.awaitAnswer("5").Error.Data.Reason).To(Equal("Quarantined"))
	b.stopForRestart(s)
	s = b.serve(nil)
	c.request("6", "vendor/effect", hoverParams("file:///poison.go"))
	b.await(s.peer, "vendor/effect", 1)
	b.Expect(b.report().Unhealthy).To(BeEmpty(), "a requested restart clears the quarantine")
}

func TestShutdown_CancelsReadsAndCompletesCommands(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.request("1", "textDocument/hover", "{}")
	c.request("2", "workspace/executeCommand", "{}")
	b.await(s.peer, "workspace/executeCommand", 1)
	done := make(chan error, 1)
	go func() { done <- b.mux.Shutdown(context.Background()) }()
	b.await(s.peer, "$/cancelRequest", 1)
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32800,"message":"cancelled"}}`, s.received("textDocument/hover")[0].ID))
	s.answer(s.received("workspace/executeCommand")[0], `"done"`)
	b.Expect(string(c.awaitAnswer("2").Result)).To(Equal(`"done"`), "requests that have effects are completed")
	b.Eventually(done).Should(Receive(BeNil()))
	b.await(s.peer, "exit", 1)
	names := s.methods()
	b.Expect(names[len(names)-2:]).To(Equal([]string{"shutdown", "exit"}))
	s.closeStreams()
	b.mux.Detach(s.incarnation, lsp.Asked)
	b.Expect(c.answers("1")).To(BeEmpty())
	next := b.serve(echo)
	b.Expect(string(c.awaitAnswer("1").Result)).To(Equal(`"textDocument/hover"`))
	b.Expect(next.received("workspace/executeCommand")).To(BeEmpty())
}

func TestShutdown_ReturnsErrorWithoutAnswer(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	b.Expect(b.mux.Shutdown(context.Background())).To(MatchError(ContainSubstring("no server is running")))
	s := b.serve(nil)
	s.closeStreams() // the server no longer reads its input
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	b.Expect(b.mux.Shutdown(ctx)).To(MatchError(context.DeadlineExceeded))
}

func TestProgress_EndsWhenServerCrashes(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	s.send(`{"jsonrpc":"2.0","id":1,"method":"window/workDoneProgress/create","params":{"token":"load"}}`)
	b.await(c.peer, "window/workDoneProgress/create", 1)
	s.send(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":"load","value":{"kind":"begin","title":"x"}}}`)
	c.request("1", "textDocument/hover", `{"workDoneToken":5}`)
	var p struct{ WorkDoneToken json.RawMessage }
	b.Expect(json.Unmarshal(b.await(s.peer, "textDocument/hover", 1).Params, &p)).To(Succeed())
	begin := `{"jsonrpc":"2.0","method":"$/progress","params":{"token":%s,"value":{"kind":"begin","title":"x"}}}`
	s.send(fmt.Sprintf(begin, p.WorkDoneToken))
	b.await(c.peer, "$/progress", 2)
	b.crash(s)
	b.await(c.peer, "$/progress", 4)
	ended := map[string]bool{}
	for _, m := range c.received("$/progress")[2:] {
		var p struct {
			Token json.RawMessage
			Value struct{ Kind string }
		}
		b.Expect(json.Unmarshal(m.Params, &p)).To(Succeed())
		b.Expect(p.Value.Kind).To(Equal("end"))
		ended[string(p.Token)] = true
	}
	b.Expect(ended).To(HaveKey("5"))
	b.Expect(ended).To(HaveKey(`"load"`))
	s = b.serve(nil)
	again := b.await(s.peer, "textDocument/hover", 1)
	b.Expect(json.Unmarshal(again.Params, &p)).To(Succeed())
	s.send(fmt.Sprintf(begin, p.WorkDoneToken))
	s.answer(again, "null")
	c.awaitAnswer("1")
	b.Expect(c.received("$/progress")).To(HaveLen(4), "a token begins only once")
}

func TestRestart_ReportsLostCapabilities(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	b.join()
	b.stopForRestart(s)
	s = b.attach(`{"capabilities":{"hoverProvider":false}}`, nil)
	b.Eventually(func() bool { return b.report().Initialized }).Should(BeTrue())
	r := b.report()
	b.Expect(r.Unhealthy).To(Equal(lsp.ReasonCapabilityLost))
	b.Expect(r.Message).To(HaveSuffix("hoverProvider, renameProvider"))
	b.Expect(r.Restart).To(BeFalse())
	b.stopForRestart(s)
	b.serve(nil)
	b.Expect(b.report().Unhealthy).To(BeEmpty())
}
