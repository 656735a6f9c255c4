// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/document"
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

// publishing is a server that publishes the diagnostics of each text without its version.
func publishing(s *fakeServer, m message) {
	if m.Method == "textDocument/didOpen" || m.Method == "textDocument/didChange" {
		text, _ := lastText(s)
		s.publishFor("file:///a.yaml", "null", strings.TrimSuffix(text, "\n"))
	}
	if m.Method == "textDocument/documentSymbol" {
		s.answer(m, "[]")
	}
}

// An agent asks about the text on disk while an editor has unsaved text. The editor receives the diagnostics of each edit while the agent stays connected, and each
// client only those of its own text.
func TestDiagnostics_WithoutVersionByTurns(t *testing.T) {
	const uri = "file:///a.yaml"
	b := newFixture(t, lsp.Config{})
	b.serve(publishing)
	editor, agent := b.join(), b.join()
	awaitShown := func(c *fakeClient, text string) {
		t.Helper()
		b.Eventually(func() string {
			b.tick(busyRest)
			all := shown(c, uri)
			if len(all) == 0 {
				return ""
			}
			return all[len(all)-1]
		}).Should(ContainSubstring(text))
	}
	editor.openDocument(uri, "disk")
	awaitShown(editor, "disk")
	for i := range 4 {
		text := fmt.Sprintf("edit %d", i)
		editor.changeDocument(uri, 10+i, text)
		awaitShown(editor, text)
		switch i {
		case 0:
			agent.openDocument(uri, "of the agent")
			agent.request("1", "textDocument/documentSymbol", hoverParams(uri))
			agent.awaitAnswer("1")
			awaitShown(agent, "of the agent")
		case 1: // without a pause before the next edit
			agent.request("2", "textDocument/documentSymbol", hoverParams(uri))
			agent.awaitAnswer("2")
		case 2:
			agent.notify("textDocument/didClose", hoverParams(uri))
			agent.sync()
		}
	}
	b.Expect(shown(editor, uri)).NotTo(ContainElement(ContainSubstring("of the agent")))
	b.Expect(shown(agent, uri)).NotTo(ContainElement(ContainSubstring("edit")))
	editor.sync()
	b.tick(time.Minute)
	b.mux.lock()
	defer b.mux.unlock()
	b.Expect(b.mux.documents.Unattributed()).To(BeFalse())
}

// A server computes its answer some time after it has read the question, like svelte-language-server. While the question of one client is pending, it keeps the text
// of this client, and receives the text of another client after the answer.
func TestTexts_WaitForTheAnswerToAnotherClient(t *testing.T) {
	const uri = "file:///a.svelte"
	for _, differ := range []bool{true, false} {
		t.Run(fmt.Sprintf("different texts before: %v", differ), func(t *testing.T) {
			b := newFixture(t, lsp.Config{})
			s := b.serve(nil)
			one, two := b.join(), b.join()
			one.openDocument(uri, "disk")
			two.openDocument(uri, "disk")
			two.sync()
			if differ {
				two.changeDocument(uri, 8, "of two")
				two.sync()
			}
			one.request("1", "textDocument/documentSymbol", hoverParams(uri))
			asked := b.await(s.peer, "textDocument/documentSymbol", 1)
			awaitText(b, s, "disk")
			two.changeDocument(uri, 9, "of two again")
			two.request("2", "textDocument/hover", hoverParams(uri))
			two.sync()
			text, _ := lastText(s)
			b.Expect(text).To(Equal("disk"), "the server answers from this text")
			b.Expect(s.received("textDocument/hover")).To(BeEmpty())
			s.answer(asked, "[]")
			one.awaitAnswer("1")
			awaitText(b, s, "of two again")
			s.answer(b.await(s.peer, "textDocument/hover", 1), "null")
			two.awaitAnswer("2")
		})
	}
}

// A text and a question wait for a bounded time.
func TestTexts_WaitForABoundedTime(t *testing.T) {
	const uri = "file:///a.svelte"
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	one, two := b.join(), b.join()
	one.openDocument(uri, "disk")
	two.openDocument(uri, "of two")
	two.sync()
	one.request("1", "textDocument/documentSymbol", hoverParams(uri))
	b.await(s.peer, "textDocument/documentSymbol", 1)
	two.changeDocument(uri, 9, "of two again")
	two.request("2", "textDocument/hover", hoverParams(uri))
	two.sync()
	b.tick(document.MaxHold / 2)
	text, _ := lastText(s)
	b.Expect(text).To(Equal("disk"))
	b.tick(document.MaxHold)
	b.await(s.peer, "textDocument/hover", 1)
	awaitText(b, s, "of two again")
	b.mux.lock()
	defer b.mux.unlock()
	b.Expect(b.mux.documents.Defers()).To(BeFalse())
}
