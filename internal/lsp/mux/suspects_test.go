// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
)

func TestWithheld_DocumentThatCrashesServer(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	c.openDocument("file:///poison.go", "x")
	b.await(s.peer, "textDocument/didOpen", 1)
	for range 3 {
		b.await(s.peer, "textDocument/didOpen", 1)
		b.crash(s)
		s = b.serve(nil)
	}
	c.request("1", "textDocument/hover", hoverParams("file:///poison.go"))
	b.Expect(c.awaitAnswer("1").Error.Data.Reason).To(Equal("Quarantined"), "the server would respond with the text on disk")
	b.Expect(string(b.await(c.peer, "window/showMessage", 1).Params)).To(ContainSubstring("poison.go"))
	b.Expect(string(b.await(c.peer, "textDocument/publishDiagnostics", 1).Params)).To(ContainSubstring("withholds the document"))
	c.openDocument("file:///good.go", "x")
	b.await(s.peer, "textDocument/didOpen", 1)
	b.Expect(b.report().Unhealthy).To(Equal(lsp.ReasonQuarantined))
	b.Expect(b.report().Message).To(ContainSubstring("poison.go"))
	b.Expect(b.report().Restart).To(BeFalse())
	b.stopForRestart(s)
	s = b.serve(nil)
	b.await(s.peer, "textDocument/didOpen", 2)
	b.Expect(b.report().Unhealthy).To(BeEmpty(), "a requested restart ends it")
	b.Expect(string(b.await(c.peer, "textDocument/publishDiagnostics", 2).Params)).To(ContainSubstring(`"diagnostics":[]`))

	for range 3 { // crashes long after the server received the texts do not count against them
		b.tick(soon + time.Second)
		b.crash(s)
		s = b.serve(nil)
	}
	b.await(s.peer, "textDocument/didOpen", 2)
}

func TestWithheld_EndsWithTimeOrNewText(t *testing.T) {
	for name, end := range map[string]func(*fixture, *fakeClient){
		"time": func(b *fixture, _ *fakeClient) { b.tick(quarantineTime) },
		"new text": func(b *fixture, c *fakeClient) {
			c.notify("textDocument/didChange", `{"textDocument":{"uri":"file:///poison.go","version":2},"contentChanges":[{"text":"y"}]}`)
			b.Eventually(func() bool { b.tick(soon); return b.report().Unhealthy == "" }).Should(BeTrue())
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, lsp.Config{})
			s := b.serve(nil)
			c := b.join()
			c.openDocument("file:///poison.go", "x")
			for range 3 {
				b.await(s.peer, "textDocument/didOpen", 1)
				b.crash(s)
				s = b.serve(nil)
			}
			b.Expect(b.report().Unhealthy).To(Equal(lsp.ReasonQuarantined))
			end(b, c)
			b.await(s.peer, "textDocument/didOpen", 1)
			b.Expect(b.report().Unhealthy).To(BeEmpty())
			b.crash(s)
			b.serve(nil)
			b.Expect(b.report().Unhealthy).To(Equal(lsp.ReasonQuarantined), "one more crash suffices")
		})
	}
}

// TestWithheld_NothingAfterKillsFromOutside kills a server with open documents and a request many times, as pkill or the kernel do.
func TestWithheld_NothingAfterKillsFromOutside(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	for i := range 50 {
		c.openDocument(fmt.Sprintf("file:///%d.go", i), "x")
	}
	c.request("1", "textDocument/hover", hoverParams("file:///1.go"))
	for range requestKills {
		b.await(s.peer, "textDocument/didOpen", 50)
		b.await(s.peer, "textDocument/hover", 1)
		s.closeStreams()
		b.mux.Detach(s.incarnation, lsp.Killed)
		s = b.serve(nil)
	}
	b.await(s.peer, "textDocument/didOpen", 50)
	s.answer(b.await(s.peer, "textDocument/hover", 1), `{"contents":"ok"}`)
	b.Expect(c.awaitAnswer("1").Error).To(BeNil())
	b.Expect(b.report().Unhealthy).To(BeEmpty())
}

// TestSuspects_FindCause opens documents of which one crashes the server, and checks that only that document is withheld in the end, after few crashes.
func TestSuspects_FindCause(t *testing.T) {
	for _, count := range []int{1, 2, 3, 7, 50} {
		for cause := range count {
			g := NewWithT(t)
			s, now := newSuspects(), time.Unix(0, 0)
			key := func(i int) string { return fmt.Sprintf("%02d", i) }
			for i := range count {
				s.changed(key(i), now)
			}
			crashes := 0
			for steps := 0; len(s.alone()) == 0; steps++ {
				g.Expect(steps).To(BeNumerically("<", 100), "%d of %d: %d crashes, fresh %v, crashes %v, withheld %v", cause, count, crashes, s.fresh, s.crashes, s.withheld)
				now = now.Add(time.Second)
				if s.withheld[key(cause)] == nil {
					crashes++
					s.crashed(now)
					s.started(now)
				} else {
					now = now.Add(soon)
					s.next(now)
				}
			}
			g.Expect(s.alone()).To(Equal([]string{key(cause)}))
			g.Expect(crashes).To(BeNumerically("<=", 3+6), "%d of %d", cause, count)
			for range 10 { // the other documents return
				now = now.Add(soon)
				s.next(now)
			}
			g.Expect(s.withheld).To(HaveLen(1))
		}
	}
}

func TestSuspects_TrustTextsThatServerHasHadForLong(t *testing.T) {
	g := NewWithT(t)
	s, now := newSuspects(), time.Unix(0, 0)
	s.changed("old", now)
	now = now.Add(soon)
	s.trust(now)
	s.changed("new", now)
	for range poisonCrashes - 1 {
		g.Expect(s.crashed(now)).To(BeEmpty())
		s.started(now)
	}
	g.Expect(s.crashed(now)).To(Equal("new"))
	s.changed("new", now)
	g.Expect(s.due(now)).To(BeEmpty(), "changes are tried together")
	g.Expect(s.due(now.Add(soon))).To(Equal([]string{"new"}))
	s.closed("new")
	g.Expect(s.crashed(now)).To(BeEmpty())
	g.Expect(s.withheld).To(BeEmpty())
	g.Expect(s.crashes).To(BeEmpty())
}
