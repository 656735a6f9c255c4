// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const pullResult = `{"capabilities":{"hoverProvider":true,"diagnosticProvider":{"interFileDependencies":true}}}`

// items returns a report with one diagnostic.
func items(message string) string {
	return fmt.Sprintf(`{"kind":"full","items":[{"message":%q}]}`, message)
}

// shown returns the messages and versions of the diagnostics that a client has received for a document.
func shown(c *fakeClient, uri string) (all []string) {
	for _, m := range c.received("textDocument/publishDiagnostics") {
		var p struct {
			URI         string
			Version     int64
			Diagnostics []struct{ Message string }
		}
		_ = json.Unmarshal(m.Params, &p)
		if p.URI == uri {
			all = append(all, fmt.Sprint(p.Version, p.Diagnostics))
		}
	}
	return all
}

func (c *fakeClient) changeDocument(uri string, version int, text string) {
	c.notify("textDocument/didChange", fmt.Sprintf(`{"textDocument":{"uri":%q,"version":%d},"contentChanges":[{"text":%q}]}`, uri, version, text))
}

func TestPull_DiagnosticsAreRequestedAndPublished(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.attach(pullResult, nil)
	c := b.join()
	b.Expect(string(c.answers(`"init"`)[0].Result)).NotTo(ContainSubstring("diagnosticProvider"))
	c.openDocument("file:///a.go", "one")
	first := b.await(s.peer, methodPull, 1)
	b.Expect(string(first.Params)).To(Equal(`{"textDocument":{"uri":"file:///a.go"}}`))
	c.changeDocument("file:///a.go", 8, "two")
	c.sync()
	b.Expect(s.received(methodPull)).To(HaveLen(1), "one request at a time")
	s.answer(first, items("one"))
	second := b.await(s.peer, methodPull, 2)
	s.answer(second, items("two"))
	b.Eventually(func() []string { return shown(c, "file:///a.go") }).Should(Equal([]string{"8 [{two}]"}), "diagnostics of an earlier text are not shown")

	c.openDocument("file:///b.go", "other")
	third := b.await(s.peer, methodPull, 3)
	b.Expect(string(third.Params)).To(ContainSubstring("b.go"), "the changed document comes first")
	s.answer(third, items("b"))
	fourth := b.await(s.peer, methodPull, 4)
	b.Expect(string(fourth.Params)).To(ContainSubstring("a.go"), "a change of one document changes the diagnostics of the others")
	s.answer(fourth, items("because of b"))
	b.Eventually(func() []string { return shown(c, "file:///a.go") }).Should(HaveLen(2))

	s.send(`{"jsonrpc":"2.0","id":"r","method":"workspace/diagnostic/refresh"}`)
	s.answer(b.await(s.peer, methodPull, 5), items("refreshed"))
	s.answer(b.await(s.peer, methodPull, 6), items("refreshed"))
	b.Eventually(func() []string { return shown(c, "file:///b.go") }).Should(HaveLen(2))
}

func TestPull_RefusedRequestIsSentAgain(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.attach(pullResult, nil)
	c := b.join()
	c.openDocument("file:///a.go", "one")
	first := b.await(s.peer, methodPull, 1)
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"busy"}}`, first.ID, wire.CodeServerCancelled))
	b.Eventually(func() bool { b.mux.lock(); defer b.mux.unlock(); return b.mux.server.pull.paused }).Should(BeTrue())
	b.Expect(s.received(methodPull)).To(HaveLen(1), "not at once, because the server may refuse forever")
	b.tick(0)
	s.answer(b.await(s.peer, methodPull, 2), items("one"))
	b.Eventually(func() []string { return shown(c, "file:///a.go") }).Should(HaveLen(1))
}

func TestPull_ServerWithoutAnswerIsAskedAgain(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.attach(pullResult, nil)
	c := b.join()
	c.openDocument("file:///a.go", "one")
	b.await(s.peer, methodPull, 1)
	c.changeDocument("file:///a.go", 8, "two")
	c.sync()
	for range 9 { // the server answers other requests meanwhile, so that it does not count as hung
		s.send(`{"jsonrpc":"2.0","method":"telemetry/event"}`)
		b.tick(lsp.Config{}.WithDefaults().Limits.RequestTimeout / 8)
	}
	b.await(s.peer, methodPull, 2)
}

func TestPull_EndsForServersThatPublish(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.attach(pullResult, nil)
	c := b.join()
	c.openDocument("file:///a.go", "one")
	first := b.await(s.peer, methodPull, 1)
	s.send(`{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":"file:///a.go","diagnostics":[{"message":"published"}]}}`)
	s.answer(first, items("requested"))
	c.changeDocument("file:///a.go", 8, "two")
	c.openDocument("file:///b.go", "other")
	second := b.await(s.peer, methodPull, 2)
	b.Expect(string(second.Params)).To(ContainSubstring("b.go"))
	b.Eventually(func() []string { return shown(c, "file:///a.go") }).Should(Equal([]string{"0 [{published}]"}))
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"no"}}`, second.ID, wire.CodeMethodNotFound))
	c.changeDocument("file:///b.go", 8, "two")
	c.request("1", "textDocument/hover", hoverParams("file:///b.go"))
	b.await(s.peer, "textDocument/hover", 1)
	b.Expect(s.received(methodPull)).To(HaveLen(2), "the server does not know the request")
}
