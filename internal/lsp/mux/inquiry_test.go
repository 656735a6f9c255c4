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

const symbols = "textDocument/documentSymbol"

// publishFor sends diagnostics with one message. version is "null" or the server's version.
func (s *fakeServer) publishFor(uri, version, message string) {
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":%q,"version":%s,"diagnostics":[{"message":%q}]}}`, uri, version, message))
}

func (c *fakeClient) inquire(id, uri, more string) {
	c.request(id, lsp.MethodDiagnostics, fmt.Sprintf(`{"uri":%q%s}`, uri, more))
}

// diagnosis waits for the answer to an inquiry. It advances the clock by step until then.
func (c *fakeClient) diagnosis(id string, step time.Duration) (d lsp.Diagnosis, text string) {
	c.b.t.Helper()
	c.b.Eventually(func() []message {
		if step > 0 {
			c.b.tick(step)
		}
		return c.answers(id)
	}).Should(HaveLen(1), "answer to "+id)
	answer := c.answers(id)[0]
	c.b.Expect(answer.Error).To(BeNil())
	c.b.Expect(json.Unmarshal(answer.Result, &d)).To(Succeed())
	return d, string(d.Diagnostics)
}

// shows waits until a client has received diagnostics with a message, so that the multiplexer has processed them.
func (c *fakeClient) shows(uri, message string) {
	c.b.t.Helper()
	c.b.Eventually(func() []string { return shown(c, uri) }).Should(ContainElement(ContainSubstring(message)))
}

func TestInquiry_WaitsForTheDiagnosticsOfTheText(t *testing.T) {
	const uri = "file:///a.go"
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.openDocument(uri, "one")
	s.publishFor(uri, "1", "of one")
	c.shows(uri, "of one")
	c.changeDocument(uri, 8, "two")
	c.inquire("1", uri, `,"contentHash":"`+lsp.ContentHash("two")+`"`)
	s.answer(b.await(s.peer, symbols, 1), "[]")
	c.sync()
	b.tick(time.Second)
	b.Expect(c.answers("1")).To(BeEmpty(), "the diagnostics are those of the earlier text")
	s.publishFor(uri, "2", "of two")
	c.shows(uri, "of two")
	b.Expect(c.answers("1")).To(BeEmpty(), "the server may send more")
	d, text := c.diagnosis("1", quiet)
	b.Expect(d.Settled).To(BeTrue(), d.Reason)
	b.Expect(d.Version).To(BeEquivalentTo(8))
	b.Expect(d.ContentHash).To(Equal(lsp.ContentHash("two")))
	b.Expect(text).To(ContainSubstring("of two"))
	b.Expect(s.received(lsp.MethodDiagnostics)).To(BeEmpty(), "the server does not know the method")
}

func TestInquiry_IsNotSettledWithoutProof(t *testing.T) {
	const uri = "file:///a.go"
	for name, test := range map[string]struct {
		publish func(s *fakeServer)
		reason  string
	}{
		"nothing":     {func(*fakeServer) {}, "has sent no diagnostics for this file"},
		"no version":  {func(s *fakeServer) { s.publishFor(uri, "null", "x") }, "does not state for which content"},
		"old version": {func(s *fakeServer) { s.publishFor(uri, "0", "x") }, "no diagnostics for this content in time"},
		"work": {func(s *fakeServer) {
			s.publishFor(uri, "1", "x")
			s.send(`{"jsonrpc":"2.0","id":"w","method":"window/workDoneProgress/create","params":{"token":"t"}}`)
		}, "still working (1 tasks"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, lsp.Config{})
			s := b.serve(func(s *fakeServer, m message) {
				if m.Method == symbols {
					test.publish(s)
					s.answer(m, "[]")
				}
			})
			c := b.join()
			c.openDocument(uri, "one")
			c.inquire("1", uri, `,"timeoutMs":5000`)
			b.Eventually(func() []message { return s.received(symbols) }).Should(HaveLen(1))
			d, _ := c.diagnosis("1", 100*time.Millisecond)
			b.Expect(d.Settled).To(BeFalse())
			b.Expect(d.Reason).To(ContainSubstring(test.reason))
		})
	}
}

func TestInquiry_EndsWithoutAnAnswerOfTheServer(t *testing.T) {
	const uri = "file:///a.go"
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.openDocument(uri, "one")
	c.inquire("1", uri, `,"timeoutMs":1000`)
	late := b.await(s.peer, symbols, 1)
	d, _ := c.diagnosis("1", time.Second)
	b.Expect(d.Reason).To(ContainSubstring("has not processed the content in time"))
	s.answer(late, "[]")

	c.inquire("2", uri, "")
	b.await(s.peer, symbols, 2)
	c.changeDocument(uri, 8, "two")
	d, _ = c.diagnosis("2", time.Second)
	b.Expect(d.Reason).To(ContainSubstring("has changed the document"))

	c.inquire("3", uri, `,"contentHash":"`+lsp.ContentHash("one")+`"`)
	d, _ = c.diagnosis("3", 0)
	b.Expect(d.Reason).To(ContainSubstring("another text"))

	c.inquire("4", "file:///other.go", "")
	b.Expect(c.awaitAnswer("4").Error.Message).To(ContainSubstring("is not open in this client"))
	c.inquire("5", uri, "")
	b.await(s.peer, symbols, 3)
	c.notify("$/cancelRequest", `{"id":5}`)
	s.answer(s.received(symbols)[2], "[]")
	b.Expect(c.awaitAnswer("5").Error.Code).To(Equal(wire.CodeRequestCancelled))
	c.inquire("6", uri, "")
	b.await(s.peer, symbols, 4)
	b.Expect(c.conn.Close()).To(Succeed())
	b.Eventually(func() int { b.mux.lock(); defer b.mux.unlock(); return len(b.mux.inquiries) }).Should(BeZero())
}

func TestInquiry_ContinuesAtTheNextServer(t *testing.T) {
	const uri = "file:///a.go"
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.openDocument(uri, "one")
	c.inquire("1", uri, "")
	c.inquire("2", uri, "")
	s.answer(b.await(s.peer, symbols, 2), "[]") // the first one waits for its answer, the second for diagnostics
	c.sync()
	b.crash(s)
	next := b.serve(func(s *fakeServer, m message) {
		if m.Method == symbols {
			s.answer(m, "[]")
			s.publishFor(uri, "1", "of the next server")
		}
	})
	b.await(next.peer, symbols, 2)
	for _, id := range []string{"1", "2"} {
		d, text := c.diagnosis(id, quiet)
		b.Expect(d.Settled).To(BeTrue(), d.Reason)
		b.Expect(text).To(ContainSubstring("of the next server"))
	}
}

func TestInquiry_AboutAContestedDocument(t *testing.T) {
	const uri = "file:///a.go"
	b := newFixture(t, lsp.Config{})
	var newest atomic.Int64
	b.serve(func(s *fakeServer, m message) { // like a server that sends the diagnostics of a text a little later, unless it receives another text first
		var p struct {
			TextDocument   struct{ Version int64 }
			ContentChanges []struct{ Text string }
		}
		_ = json.Unmarshal(m.Params, &p)
		switch m.Method {
		case "textDocument/didChange":
			newest.Store(p.TextDocument.Version)
			time.AfterFunc(20*time.Millisecond, func() {
				if newest.Load() == p.TextDocument.Version {
					s.publishFor(uri, fmt.Sprint(p.TextDocument.Version), "of "+p.ContentChanges[0].Text)
				}
			})
		case symbols:
			s.answer(m, "[]")
		}
	})
	one, two := b.join(), b.join()
	one.openDocument(uri, "start")
	two.openDocument(uri, "start")
	two.changeDocument(uri, 8, "two")
	two.shows(uri, "of two")
	one.changeDocument(uri, 8, "one")
	one.shows(uri, "of one")
	two.inquire("1", uri, "")
	one.inquire("1", uri, "")
	for c, want := range map[*fakeClient]string{one: "of one", two: "of two"} {
		d, text := c.diagnosis("1", time.Millisecond)
		b.Expect(d.Settled).To(BeTrue(), d.Reason)
		b.Expect(text).To(ContainSubstring(want))
	}
}

func TestInquiry_OfServersWithCommands(t *testing.T) {
	const uri = "file:///a.ts"
	capabilities := func(command string) string {
		return fmt.Sprintf(`{"capabilities":{"executeCommandProvider":{"commands":["other",%q]}}}`, command)
	}
	t.Run("gopls publishes before it answers", func(t *testing.T) {
		b := newFixture(t, lsp.Config{})
		s := b.attach(capabilities(commands[byGopls]), nil)
		c := b.join()
		c.openDocument(uri, "one")
		c.inquire("1", uri, "")
		command := b.await(s.peer, methodExecute, 1)
		b.Expect(string(command.Params)).To(MatchJSON(`{"command":"gopls.diagnose_files","arguments":[{"Files":["file:///a.ts"]}]}`))
		s.publishFor(uri, "1", "of one")
		s.answer(command, "null")
		d, text := c.diagnosis("1", 0)
		b.Expect(d.Settled).To(BeTrue(), d.Reason)
		b.Expect(text).To(ContainSubstring("of one"))
	})
	t.Run("tsserver answers with the diagnostics", func(t *testing.T) {
		b := newFixture(t, lsp.Config{})
		s := b.attach(capabilities(commands[byTSServer]), nil)
		c := b.join()
		c.openDocument(uri, "one")
		c.inquire("1", uri, "")
		b.Expect(string(b.await(s.peer, methodExecute, 1).Params)).To(MatchJSON(
			`{"command":"typescript.tsserverRequest","arguments":["syntacticDiagnosticsSync",{"file":"/a.ts"}]}`))
		s.answer(s.received(methodExecute)[0], `{"success":true,"body":[]}`)
		s.answer(b.await(s.peer, methodExecute, 2), `{"success":true,"body":[
			{"start":{"line":3,"offset":2},"end":{"line":3,"offset":4},"text":"first","category":"error","code":1},
			{"start":{"line":1,"offset":7},"end":{"line":1,"offset":9},"text":"second","category":"suggestion","code":2,"reportsUnnecessary":true}]}`)
		s.answer(b.await(s.peer, methodExecute, 3), `{"success":true}`)
		d, text := c.diagnosis("1", 0)
		b.Expect(d.Settled).To(BeTrue(), d.Reason)
		b.Expect(text).To(MatchJSON(`[
			{"range":{"start":{"line":2,"character":1},"end":{"line":2,"character":3}},"severity":1,"code":1,"source":"typescript","message":"first"},
			{"range":{"start":{"line":0,"character":6},"end":{"line":0,"character":8}},"severity":4,"code":2,"source":"typescript","message":"second","tags":[1]}]`))
		c.inquire("2", uri, "")
		s.answer(b.await(s.peer, methodExecute, 4), `{"success":false,"message":"No content available."}`)
		d, _ = c.diagnosis("2", 0)
		b.Expect(d.Reason).To(Equal("tsserver has answered: No content available."))
	})
	t.Run("requested diagnostics", func(t *testing.T) {
		b := newFixture(t, lsp.Config{})
		s := b.attach(pullResult, func(s *fakeServer, m message) {
			if m.Method == symbols {
				s.answer(m, "[]")
			}
		})
		c := b.join()
		c.openDocument(uri, "one")
		c.inquire("1", uri, "")
		request := b.await(s.peer, methodPull, 1)
		b.await(s.peer, symbols, 1)
		b.Expect(c.answers("1")).To(BeEmpty())
		s.answer(request, items("of one"))
		d, text := c.diagnosis("1", 0)
		b.Expect(d.Settled).To(BeTrue(), d.Reason)
		b.Expect(text).To(ContainSubstring("of one"))
	})
}

func TestInquiry_OtherDocumentsMayChangeTheDiagnostics(t *testing.T) {
	const uri = "file:///a.go"
	b := newFixture(t, lsp.Config{})
	s := b.serve(func(s *fakeServer, m message) {
		if m.Method == symbols {
			s.answer(m, "[]")
		}
	})
	one, two := b.join(), b.join()
	one.openDocument(uri, "one")
	s.publishFor(uri, "1", "before")
	one.shows(uri, "before")
	b.tick(time.Minute)
	two.openDocument("file:///b.go", "b")
	two.sync()
	one.inquire("1", uri, "")
	b.await(s.peer, symbols, 1)
	one.sync()
	b.tick(quietAfterOthers - time.Millisecond)
	b.Expect(one.answers("1")).To(BeEmpty())
	s.publishFor(uri, "1", "because of b")
	one.shows(uri, "because of b")
	d, text := one.diagnosis("1", quiet)
	b.Expect(d.Settled).To(BeTrue(), d.Reason)
	b.Expect(text).To(ContainSubstring("because of b"))
}

func TestInquiry_ThatEndsInFlightLeavesRoomForOtherRequests(t *testing.T) {
	const uri = "file:///a.go"
	b := newFixture(t, lsp.Config{Limits: lsp.Limits{InFlight: 1}})
	s := b.serve(nil)
	c := b.join()
	c.openDocument(uri, "one")
	c.inquire("1", uri, `,"timeoutMs":1000`)
	b.await(s.peer, symbols, 1)
	d, _ := c.diagnosis("1", time.Second)
	b.Expect(d.Settled).To(BeFalse())
	c.request("2", "textDocument/hover", hoverParams(uri))
	s.answer(b.await(s.peer, "textDocument/hover", 1), "null")
	c.awaitAnswer("2")
}

func TestInquiry_DoesNotMixAnswersOfTwoServers(t *testing.T) {
	const uri = "file:///a.ts"
	capabilities := fmt.Sprintf(`{"capabilities":{"executeCommandProvider":{"commands":[%q]}}}`, commands[byTSServer])
	answer := func(message string) string {
		return fmt.Sprintf(`{"success":true,"body":[{"start":{"line":1,"offset":1},"end":{"line":1,"offset":2},"text":%q,"category":"error","code":1}]}`, message)
	}
	b := newFixture(t, lsp.Config{})
	s := b.attach(capabilities, nil)
	c := b.join()
	c.openDocument(uri, "one")
	c.inquire("1", uri, "")
	s.answer(b.await(s.peer, methodExecute, 1), answer("of the lost server"))
	b.await(s.peer, methodExecute, 2)
	b.crash(s)
	next := b.attach(capabilities, func(s *fakeServer, m message) {
		if m.Method == methodExecute {
			s.answer(m, answer("of the next server"))
		}
	})
	d, text := c.diagnosis("1", 0)
	b.Expect(d.Settled).To(BeTrue(), d.Reason)
	b.Expect(text).NotTo(ContainSubstring("lost"))
	b.Expect(next.received(methodExecute)).To(HaveLen(3))
	b.Expect(b.report().Counters.Replayed).To(BeEquivalentTo(1), "the second and third request were not sent before")
}
