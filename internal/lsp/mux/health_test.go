// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// serveIndexed returns a server that has indexed its workspace.
func (b *fixture) serveIndexed(more func(*fakeServer, message)) *fakeServer {
	b.t.Helper()
	s := b.serve(more)
	b.Eventually(func() bool { b.mux.lock(); defer b.mux.unlock(); return b.mux.server.health.responsive }).Should(BeTrue())
	b.tick(settleTime)
	b.Expect(b.report().Indexed).To(BeTrue())
	return s
}

// attachSilent returns a server that answers only initialize.
func (b *fixture) attachSilent() *fakeServer {
	b.t.Helper()
	s := b.attach("", func(s *fakeServer, m message) {
		if m.Method == "initialize" {
			s.answer(m, fakeResult)
		}
	})
	b.Eventually(func() bool { return b.report().Initialized }).Should(BeTrue())
	return s
}

// freeze blocks the output of the server. The server still reads its input.
func (s *fakeServer) freeze() { s.writing.Lock() }

func (s *fakeServer) thaw() { s.writing.Unlock() }

func (b *fixture) expectRestart(reason string) {
	b.t.Helper()
	r := b.report()
	b.Expect(r.Restart).To(BeTrue())
	b.Expect(r.Unhealthy).To(Equal(reason), r.Message)
	b.Expect(r.Message).NotTo(BeEmpty())
	b.Eventually(b.urgent).Should(Receive())
}

func TestIndexing_EndsAfterLastProgress(t *testing.T) {
	b := newFixture(t, lsp.Config{WhileIndexing: lsp.IndexingHold})
	s := b.attach(fakeResult, func(s *fakeServer, m message) {
		if m.Method == "initialized" {
			s.send(`{"jsonrpc":"2.0","id":1,"method":"window/workDoneProgress/create","params":{"token":"load"}}`)
			s.send(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":"load","value":{"kind":"begin"}}}`)
		}
	})
	b.Eventually(func() []message { return s.answers("1") }).Should(HaveLen(1))
	c := b.join()
	c.request("1", "textDocument/hover", "{}")
	c.sync()
	for range 15 {
		b.tick(time.Second)
	}
	b.Expect(b.report().Indexed).To(BeFalse(), "progress is still reported")
	b.Expect(b.report().Held).To(Equal(1))
	b.Expect(s.received("textDocument/hover")).To(BeEmpty())
	s.send(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":"load","value":{"kind":"end"}}}`)
	s.send(`{"jsonrpc":"2.0","method":"window/logMessage","params":{}}`)
	b.await(c.peer, "window/logMessage", 1)
	b.tick(settleTime / 2)
	b.Expect(b.report().Indexed).To(BeFalse())
	b.tick(settleTime / 2)
	b.Expect(b.report().Indexed).To(BeTrue())
	b.Expect(b.report().IndexedBy).To(Equal("Settled"))
	b.await(s.peer, "textDocument/hover", 1)

	c.request("2", "textDocument/hover", "{}")
	b.await(s.peer, "textDocument/hover", 2)
}

func TestIndexing_HoldIsBounded(t *testing.T) {
	b := newFixture(t, lsp.Config{WhileIndexing: lsp.IndexingHold})
	s := b.attach(fakeResult, nil)
	c := b.join()
	b.requestFromServer(s, "1", "window/workDoneProgress/create", `{"token":"load"}`)
	c.request("1", "textDocument/hover", "{}")
	c.sync()
	b.tick(30 * time.Second)
	b.Expect(c.awaitAnswer("1").Error.Data.Reason).To(Equal("Indexing"))
	b.tick(5 * time.Minute)
	b.Expect(b.report().IndexedBy).To(Equal("ProgressTimeout"))
}

func TestIndexing_EndsAfterGraceWithoutProgress(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	b.attachSilent()
	b.tick(progressGrace - time.Millisecond)
	b.Expect(b.report().Indexed).To(BeFalse())
	b.tick(time.Millisecond)
	b.Expect(b.report().IndexedBy).To(Equal("ProgressTimeout"))
}

func TestIndexing_EndsWhenServerIsQuiescent(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.attach(fakeResult, func(s *fakeServer, m message) {
		if m.Method == "initialized" {
			s.send(`{"jsonrpc":"2.0","method":"experimental/serverStatus","params":{"health":"ok","quiescent":false}}`)
		}
	})
	b.Eventually(func() bool { b.mux.lock(); defer b.mux.unlock(); return b.mux.server.health.busyStatus }).Should(BeTrue())
	b.tick(time.Minute)
	b.Expect(b.report().Indexed).To(BeFalse())
	s.send(`{"jsonrpc":"2.0","method":"experimental/serverStatus","params":{"health":"ok","quiescent":true}}`)
	b.Eventually(func() bool { b.tick(settleTime); return b.report().Indexed }).Should(BeTrue())
}

func TestHealth_UnansweredPingsRequestRestart(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serveIndexed(nil)
	b.Expect(s.received(methodPing)).To(HaveLen(1))
	for i := range 5 { // idle, but answers pings
		b.tick(10 * time.Second)
		b.await(s.peer, methodPing, i+2)
		b.Eventually(func() int { b.mux.lock(); defer b.mux.unlock(); return len(b.mux.server.flight.pending) }).Should(BeZero())
	}
	s.freeze()
	b.tick(10 * time.Second) // the ping is sent now
	b.tick(49 * time.Second)
	b.Expect(b.report().Unhealthy).To(BeEmpty(), "the server has been silent for only 59 s")
	b.tick(time.Second)
	b.expectRestart(lsp.ReasonHung)
	s.thaw()
	c := b.join()
	c.request("1", "textDocument/hover", "{}")
	c.sync()
	b.Expect(s.received("textDocument/hover")).To(BeEmpty(), "a server that hangs receives no more requests")
	b.mux.Hold("Hung")
	s.closeStreams()
	b.mux.Detach(s.incarnation, lsp.Asked)
	s = b.serve(nil)
	b.await(s.peer, "textDocument/hover", 1)
	b.Expect(b.report().Restart).To(BeFalse())
}

func TestHealth_AnyOutputCountsAsLife(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serveIndexed(nil)
	s.freeze()
	defer s.thaw()
	for _, c := range []byte("Content-Length: 100") { // a message that never ends
		b.tick(30 * time.Second)
		_, _ = s.to.Write([]byte{c})
		b.Eventually(func() bool { b.mux.lock(); defer b.mux.unlock(); return b.mux.server.heard().Equal(b.clock.Now()) }).Should(BeTrue())
		b.Expect(b.report().Unhealthy).To(BeEmpty())
	}
	b.tick(30 * time.Second)
	b.tick(30 * time.Second)
	b.expectRestart(lsp.ReasonHung)
}

func TestHealth_BusyServerMayStaySilentLonger(t *testing.T) {
	var cpu atomic.Int64
	b := newFixture(t, lsp.Config{}, func(o *Options) { o.CPU = func() time.Duration { return time.Duration(cpu.Load()) } })
	s := b.serveIndexed(nil)
	s.freeze()
	defer s.thaw()
	for range 29 {
		b.tick(10 * time.Second)
		cpu.Add(int64(5 * time.Second))
		b.Expect(b.report().Unhealthy).To(BeEmpty())
	}
	b.tick(10 * time.Second)
	b.expectRestart(lsp.ReasonHung)
}

func TestHealth_IdleServerGetsNoExtraTime(t *testing.T) {
	b := newFixture(t, lsp.Config{}, func(o *Options) { o.CPU = func() time.Duration { return time.Hour } })
	s := b.serveIndexed(nil)
	s.freeze()
	defer s.thaw()
	for range 5 {
		b.tick(10 * time.Second)
		b.Expect(b.report().Unhealthy).To(BeEmpty())
	}
	b.tick(10 * time.Second)
	b.expectRestart(lsp.ReasonHung)
}

func TestHealth_HangTimeoutIsNotProlongedByThePing(t *testing.T) {
	b := newFixture(t, lsp.Config{Health: lsp.Health{PingAfter: 10 * time.Second, HangTimeout: 10 * time.Second}})
	s := b.serveIndexed(nil)
	s.freeze()
	defer s.thaw()
	b.tick(5 * time.Second)
	b.tick(4 * time.Second)
	b.Expect(b.report().Unhealthy).To(BeEmpty())
	b.tick(time.Second)
	b.expectRestart(lsp.ReasonHung)
}

func TestHealth_SuspendedMachineDoesNotCountAsSilence(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serveIndexed(nil)
	s.freeze()
	defer s.thaw()
	b.tick(8 * time.Hour)
	b.Expect(b.report().Unhealthy).To(BeEmpty(), "the server is pinged only now")
	b.tick(50 * time.Second)
	b.expectRestart(lsp.ReasonHung)
}

func TestHealth_DoesNotPingBeforeInitialize(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.attach("", nil)
	b.await(s.peer, "initialize", 1)
	b.tick(4 * time.Minute)
	b.Expect(b.report().Unhealthy).To(BeEmpty())
	b.Expect(s.received(methodPing)).To(BeEmpty())
	b.tick(time.Minute)
	b.expectRestart(lsp.ReasonHung)
}

func TestHealth_StartWithProgressMayTakeLonger(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.attach("", nil)
	for range 7 {
		s.send(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":"x","value":{"kind":"report"}}}`)
		b.Eventually(func() bool { b.mux.lock(); defer b.mux.unlock(); return b.mux.server.heard().Equal(b.clock.Now()) }).Should(BeTrue())
		b.Expect(b.report().Unhealthy).To(BeEmpty())
		b.tick(257 * time.Second)
	}
	b.Expect(b.report().Unhealthy).To(BeEmpty())
	b.tick(time.Second)
	b.expectRestart(lsp.ReasonHung)
}

func TestInitialize_ServerRefusalIsReported(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	b.attach("", func(s *fakeServer, m message) {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":1,"message":"no TypeScript"}}`, m.ID))
	})
	b.Eventually(b.urgent).Should(Receive())
	r := b.report()
	b.Expect(r.Unhealthy).To(Equal(lsp.ReasonProtocolError))
	b.Expect(r.Message).To(ContainSubstring("no TypeScript"))
}

func TestRequestTimeout_RepeatedTimeoutsRequestRestart(t *testing.T) {
	b := newFixture(t, lsp.Config{Health: lsp.Health{HangTimeout: time.Hour}})
	s := b.serveIndexed(nil)
	c := b.join()
	old := func(id, method string) message {
		b.t.Helper()
		c.request(id, method, "{}")
		c.sync()
		b.tick(120 * time.Second)
		b.tick(cancelPatience)
		return c.awaitAnswer(id)
	}
	answer := old("1", "textDocument/hover")
	b.Expect(answer.Error.Code).To(Equal(wire.CodeRequestFailed))
	b.Expect(answer.Error.Data.Reason).To(Equal("Timeout"))
	b.await(s.peer, "$/cancelRequest", 1)
	s.answer(s.received("textDocument/hover")[0], `"far too late"`)
	b.Expect(old("2", "workspace/executeCommand").Error.Data.Outcome).To(Equal("unknown"))
	c.request("3", "textDocument/definition", "{}")
	s.answer(b.await(s.peer, "textDocument/definition", 1), "null")
	c.awaitAnswer("3") // a success resets the count
	old("4", "textDocument/hover")
	old("5", "textDocument/hover")
	old("6", "textDocument/definition")
	b.Expect(b.report().Unhealthy).To(BeEmpty(), "timeouts of two different methods do not add up")

	c.request("7", "textDocument/references", "{}")
	c.sync()
	b.tick(120 * time.Second)
	b.await(s.peer, "$/cancelRequest", 6)
	asked := s.received("textDocument/references")[0]
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32800,"message":"cancelled"}}`, asked.ID))
	b.Expect(c.awaitAnswer("7").Error.Data.Reason).To(Equal("Timeout"), "the client did not cancel the request")
	b.tick(time.Second)
	b.expectRestart(lsp.ReasonHung)
	b.Expect(c.answers("1")).To(HaveLen(1))
	b.Expect(b.report().Counters.Cancelled).To(BeNumerically("==", 6))
}

func TestServer_ProtocolErrorRequestsRestart(t *testing.T) {
	for _, bad := range []string{
		"Content-Length: 99999\r\n\r\n", "Content-Length: 1\r\n\r\n{", "Content-Length: 2\r\n\r\n{}", "Content-Length: x\r\n\r\n",
	} {
		b := newFixture(t, lsp.Config{Limits: lsp.Limits{MessageBytes: 5000}})
		s := b.serve(nil)
		c := b.join()
		c.request("1", "textDocument/hover", "{}")
		b.await(s.peer, "textDocument/hover", 1)
		_, _ = s.to.Write([]byte(bad))
		b.Eventually(func() bool { return b.report().Restart }).Should(BeTrue(), bad)
		b.expectRestart(lsp.ReasonProtocolError)
		_, _ = s.to.Write([]byte("a server must be able to write while it is being stopped"))
		s.closeStreams()
		b.mux.Detach(s.incarnation, lsp.Asked)
		b.Eventually(b.urgent).Should(Receive())
		b.serve(echo)
		c.awaitAnswer("1")
	}
}

func TestServer_ClosedOutputRequestsRestart(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	_ = s.stdout.Close()
	b.Eventually(func() bool { b.mux.lock(); defer b.mux.unlock(); return !b.mux.server.health.endedAt.IsZero() }).Should(BeTrue())
	b.tick(0)
	b.Expect(b.report().Restart).To(BeFalse(), "the server is probably exiting")
	b.tick(outputPatience)
	b.expectRestart(lsp.ReasonProtocolError)
}

func TestCanary_ConsecutiveFailuresRequestRestart(t *testing.T) {
	var answer atomic.Value
	answer.Store(`"result":[{"name":"main"}]`)
	canary := lsp.Canary{Method: "workspace/symbol", Params: json.RawMessage(`{"query":"main"}`), Period: time.Minute}
	b := newFixture(t, lsp.Config{Health: lsp.Health{Canary: canary}})
	s := b.serveIndexed(func(s *fakeServer, m message) {
		if m.Method == "workspace/symbol" {
			s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, answer.Load()))
		}
	})
	asked := 1
	answered := func() {
		b.t.Helper()
		b.await(s.peer, "workspace/symbol", asked)
		b.Eventually(func() int { b.mux.lock(); defer b.mux.unlock(); return len(b.mux.server.flight.pending) }).Should(BeZero())
	}
	answered()
	next := func(with string) {
		b.t.Helper()
		answer.Store(with)
		asked++
		b.tick(time.Minute)
		answered()
	}
	for range 2 {
		next(`"result":[{"name":"main"}]`)
		b.Expect(b.report().Unhealthy).To(BeEmpty())
		for _, bad := range []string{`"result":null`, `"error":{"code":1,"message":"no"}`} {
			next(bad)
			b.Expect(b.report().Unhealthy).To(Equal(lsp.ReasonCanaryFailed))
			b.Expect(b.report().Restart).To(BeFalse())
		}
	}
	next(`"result":[ ]`)
	b.expectRestart(lsp.ReasonCanaryFailed)
	b.Expect(b.report().Counters.CanaryFailed).To(BeNumerically("==", 5))
	for _, empty := range []string{"", "null", "[]", "{ }", `{"isIncomplete":false,"items":[]}`} {
		b.Expect(isEmpty([]byte(empty))).To(BeTrue(), empty)
	}
	for _, full := range []string{"[1]", `{"contents":"x"}`, `{"items":[1]}`, "7"} {
		b.Expect(isEmpty([]byte(full))).To(BeFalse(), full)
	}
}

func TestChanged_IsCalledForReportChanges(t *testing.T) {
	var told atomic.Int64
	b := newFixture(t, lsp.Config{}, func(o *Options) { o.Changed = func() { told.Add(1) } })
	b.serveIndexed(echo)
	before := told.Load()
	c := b.join()
	b.Expect(told.Load()).To(BeNumerically(">", before))
	c.request("1", "textDocument/hover", "{}")
	c.awaitAnswer("1")
	before = told.Load()
	b.tick(time.Second)
	b.Expect(told.Load()).To(Equal(before+1), "counters alone are reported with the next tick")
	b.tick(time.Second)
	b.Expect(told.Load()).To(Equal(before + 1))
}

func TestServer_OtherPositionEncodingIsRefused(t *testing.T) {
	for _, answer := range []string{`{"capabilities":{"positionEncoding":"utf-8"}}`, `{"capabilities":{},"offsetEncoding":"utf-8"}`} {
		b := newFixture(t, lsp.Config{})
		b.attach(answer, nil)
		b.Eventually(func() bool { return b.report().Restart }).Should(BeTrue())
		b.expectRestart(lsp.ReasonProtocolError)
		b.Expect(b.report().Message).To(ContainSubstring("remove the option that selects another encoding"))
	}
}
