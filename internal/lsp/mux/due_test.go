// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
)

// lastText returns the text and version that a server received last for a document.
func lastText(s *fakeServer) (text string, version int64) {
	for _, m := range s.all() {
		var p struct {
			TextDocument struct {
				Text    string
				Version int64
			}
			ContentChanges []struct{ Text string }
		}
		if m.Method != "textDocument/didOpen" && m.Method != "textDocument/didChange" {
			continue
		}
		_ = json.Unmarshal(m.Params, &p)
		text, version = p.TextDocument.Text, p.TextDocument.Version
		if len(p.ContentChanges) > 0 {
			text = p.ContentChanges[0].Text
		}
	}
	return text, version
}

// conflict returns a server, and two clients that have changed the same document in different ways before the server has sent diagnostics for any text.
func conflict(b *fixture) (s *fakeServer, one, two *fakeClient) {
	s = b.serve(nil)
	one, two = b.join(), b.join()
	for i, c := range []*fakeClient{one, two} {
		c.openDocument("file:///a.go", "disk")
		c.changeDocument("file:///a.go", 10+i, fmt.Sprintf("text %d", i))
		c.sync()
	}
	return s, one, two
}

func awaitText(b *fixture, s *fakeServer, want string) {
	b.t.Helper()
	b.Eventually(func() string { text, _ := lastText(s); return text }).Should(Equal(want))
}

// publishLast publishes diagnostics for the newest text.
func publishLast(s *fakeServer) {
	text, version := lastText(s)
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":"file:///a.go","version":%d,"diagnostics":[{"message":%q}]}}`, version, text))
}

func TestDiagnostics_OfEachTextArrive(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s, one, two := conflict(b)
	awaitText(b, s, "text 1")
	publishLast(s)
	awaitText(b, s, "text 0")
	publishLast(s)
	awaitText(b, s, "text 1")
	b.Eventually(func() []string { return shown(one, "file:///a.go") }).Should(Equal([]string{"10 [{text 0}]"}))
	b.Eventually(func() []string { return shown(two, "file:///a.go") }).Should(Equal([]string{"11 [{text 1}]"}))
	publishLast(s)
	b.Eventually(func() []string { return shown(two, "file:///a.go") }).Should(HaveLen(2))
	b.tick(diagnosticsPatience)
	awaitText(b, s, "text 1")
}

func TestDiagnostics_ThatDoNotArriveAreNotAwaitedForever(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s, one, _ := conflict(b)
	awaitText(b, s, "text 1")
	publishLast(s)
	awaitText(b, s, "text 0")
	b.tick(0)
	b.tick(diagnosticsPatience)
	awaitText(b, s, "text 1")
	publishLast(s)
	one.sync()
	awaitText(b, s, "text 1")
}

// TestDiagnostics_WithoutVersionDoNotSwitchTexts tests what happens if the diagnostics for the first text arrive after a client has changed the text, and the server
// states no version: Berth cannot know that they are late, and must not take the new text away from the server.
func TestDiagnostics_WithoutVersionDoNotSwitchTexts(t *testing.T) {
	const uri = "file:///a.ts"
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	one, two := b.join(), b.join()
	one.openDocument(uri, "text")
	two.openDocument(uri, "text")
	two.sync()
	one.changeDocument(uri, 8, "mistake")
	awaitText(b, s, "mistake")
	s.publishFor(uri, "null", "of the first text")
	one.shows(uri, "of the first text")
	one.sync()
	text, _ := lastText(s)
	b.Expect(text).To(Equal("mistake"))
	s.publishFor(uri, "null", "of the mistake")
	one.shows(uri, "of the mistake")
	b.Expect(shown(two, uri)).NotTo(ContainElement(ContainSubstring("of the mistake")))
}

func TestDiagnostics_WithoutVersionAreRequestedWhileTextsDiffer(t *testing.T) {
	const uri = "file:///a.go"
	b := newFixture(t, lsp.Config{})
	s := b.attach(fmt.Sprintf(`{"capabilities":{"executeCommandProvider":{"commands":[%q]}}}`, commands[byTSServer]), func(s *fakeServer, m message) {
		if m.Method == methodExecute { // tsserver answers with the diagnostics of the text that it has
			text, _ := lastText(s)
			s.answer(m, fmt.Sprintf(`{"success":true,"body":[{"start":{"line":1,"offset":1},"end":{"line":1,"offset":2},"text":%q,"category":"error","code":1}]}`, text))
		}
	})
	one, two := b.join(), b.join()
	one.openDocument(uri, "same")
	two.openDocument(uri, "same")
	two.sync()
	s.publishFor(uri, "null", "published")
	one.shows(uri, "published")
	two.shows(uri, "published")
	b.Expect(s.received(methodExecute)).To(BeEmpty(), "all clients have the same text")

	one.changeDocument(uri, 8, "of one")
	one.shows(uri, "8 [{of one}")
	two.changeDocument(uri, 8, "of two")
	two.shows(uri, "8 [{of two}")
	s.publishFor(uri, "null", "of an unknown text")
	one.changeDocument(uri, 9, "of one again")
	one.shows(uri, "9 [{of one again}")
	for _, c := range []*fakeClient{one, two} {
		b.Expect(shown(c, uri)).NotTo(ContainElement(ContainSubstring("unknown")))
	}
	b.Expect(shown(two, uri)).NotTo(ContainElement(ContainSubstring("of one")))

	two.changeDocument(uri, 9, "of one again")
	two.shows(uri, "9 [{of one again}")
	one.sync()
	before := len(s.received(methodExecute))
	one.changeDocument(uri, 10, "equal")
	two.changeDocument(uri, 10, "equal")
	b.Eventually(func() string { all := shown(one, uri); return all[len(all)-1] }).Should(ContainSubstring("equal"))
	b.Eventually(func() int { b.mux.lock(); defer b.mux.unlock(); return len(b.mux.server.pull.replaced) }).Should(BeZero())
	b.Expect(len(s.received(methodExecute))).To(BeNumerically(">", before))
}

func TestDiagnostics_FailedCommandIsSentAgain(t *testing.T) {
	const uri = "file:///a.go"
	b := newFixture(t, lsp.Config{})
	s := b.attach(fmt.Sprintf(`{"capabilities":{"executeCommandProvider":{"commands":[%q]}}}`, commands[byTSServer]), nil)
	one, two := b.join(), b.join()
	one.openDocument(uri, "same")
	two.openDocument(uri, "same")
	two.sync()
	one.changeDocument(uri, 8, "different")
	s.answer(b.await(s.peer, methodExecute, 1), `{"success":false,"message":"No content available."}`)
	b.Eventually(func() bool { b.mux.lock(); defer b.mux.unlock(); return b.mux.server.pull.paused }).Should(BeTrue())
	two.changeDocument(uri, 8, "different")
	two.sync()
	b.Expect(s.received(methodExecute)).To(HaveLen(1), "not immediately, because it may always fail")
	b.tick(0)
	for i := range 3 {
		s.answer(b.await(s.peer, methodExecute, i+2), `{"success":true,"body":[]}`)
	}
	one.shows(uri, "8 []")
	two.shows(uri, "8 []")
}
