// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sourcegraph/jsonrpc2"

	"github.com/berth-dev/berth/internal/lsp"
)

// counting returns a server that answers references with as many places as answers states for the number of the question, from 0, and a file to ask about.
func counting(t *testing.T, answers func(question int) int) (s *server, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "a.go")
	write(t, file, "func Old() {}\n")
	asked := 0
	return &server{answer: func(method string, _ json.RawMessage) any {
		if method != "textDocument/references" {
			return nil
		}
		var all []any
		for i := range answers(asked) {
			all = append(all, map[string]any{"uri": uriOf(file), "range": span{position{i, 0}, position{i, 1}}})
		}
		asked++
		return all
	}}, file
}

func idle(incarnation int64) lsp.State {
	return lsp.State{Incarnation: incarnation, Serving: true, Indexed: true}
}

// references asks a question with a timeout.
func references(t *testing.T, c *Client, file string, timeout time.Duration, page Page) (int, Extent, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	places, extent, err := c.References(ctx, file, Where{Symbol: "Old"}, page)
	return len(places), extent, err
}

func TestReferences_FirstAnswersGrowUntilTwoAreEqual(t *testing.T) {
	g := NewWithT(t)
	s, file := counting(t, func(question int) int { return min(1+question, 3) })
	c := connect(t, s)
	found, extent, err := references(t, c, file, timeout, Page{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(Equal(3))
	g.Expect(extent).To(Equal(Extent{Complete: true, Total: 3}))
	g.Expect(s.journal()).To(ContainSubstring(lsp.MethodDiagnostics), "the server loads the project first")
}

func TestReferences_StateThatTheAnswersStillChange(t *testing.T) {
	g := NewWithT(t)
	s, file := counting(t, func(question int) int { return 1 + question })
	found, extent, err := references(t, connect(t, s), file, 2*time.Second, Page{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(extent).To(Equal(Extent{Total: found, Reason: "the language server has just begun to read this project, and its answers still change"}))
}

func TestReferences_WaitForAServerThatIsBusy(t *testing.T) {
	for name, test := range map[string]struct {
		states []lsp.State // the last one remains
		reason string
	}{
		"idle":                  {[]lsp.State{idle(1)}, ""},
		"indexing for a while":  {[]lsp.State{{Incarnation: 1, Serving: true}, {Incarnation: 1, Serving: true}, idle(1)}, ""},
		"working for a while":   {[]lsp.State{{Incarnation: 1, Serving: true, Indexed: true, Working: true}, idle(1)}, ""},
		"restarting meanwhile":  {[]lsp.State{idle(1), {Incarnation: 2}, idle(2)}, ""},
		"restarted unnoticed":   {[]lsp.State{idle(1), idle(2)}, ""},
		"indexing for too long": {[]lsp.State{{Incarnation: 1, Serving: true}}, "the language server is still indexing its workspace"},
		"working for too long":  {[]lsp.State{{Incarnation: 1, Serving: true, Indexed: true, Working: true}}, "the language server is still working"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s, file := counting(t, func(int) int { return 2 })
			var asked atomic.Int64
			s.state = func() any {
				return test.states[min(int(asked.Add(1))-1, len(test.states)-1)]
			}
			patience := 3 * time.Second
			if test.reason == "" {
				patience = timeout
			}
			found, extent, err := references(t, connect(t, s), file, patience, Page{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(Equal(2))
			g.Expect(extent).To(Equal(Extent{Complete: test.reason == "", Total: 2, Reason: test.reason}))
		})
	}
}

func TestReferences_FailIfTheServerDoesNotServe(t *testing.T) {
	g := NewWithT(t)
	s, file := counting(t, func(int) int { return 2 })
	s.state = func() any { return lsp.State{Incarnation: 1, Reason: "the server has crashed"} }
	_, _, err := references(t, connect(t, s), file, time.Second, Page{})
	g.Expect(err).To(MatchError(ContainSubstring("does not serve requests: the server has crashed")))
}

// A multiplexer that was started by an earlier version forwards the request for the state to the server, which does not know it.
func TestReferences_NeedTwoEqualAnswersWithoutAState(t *testing.T) {
	g := NewWithT(t)
	s, file := counting(t, func(question int) int { return min(1+question, 3) })
	s.state = func() any { return &jsonrpc2.Error{Code: jsonrpc2.CodeMethodNotFound, Message: "unknown"} }
	c := connect(t, s)
	for range 2 {
		found, extent, err := references(t, c, file, timeout, Page{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(Equal(3))
		g.Expect(extent.Complete).To(BeTrue())
	}
}

func TestReferences_AreCutIntoPages(t *testing.T) {
	const total = 1234
	s, file := counting(t, func(int) int { return total })
	c := connect(t, s)
	for _, test := range []struct {
		page   Page
		found  int
		reason string
	}{
		{Page{}, 200, "only 200 of 1234 are listed: set offset to 200 for the next ones"},
		{Page{Offset: 200}, 200, "only 200 of 1234 are listed: set offset to 400 for the next ones"},
		{Page{Limit: 2000}, 1000, "only 1000 of 1234 are listed: set offset to 1000 for the next ones"},
		{Page{Offset: 1000, Limit: 1000}, 234, "the first 1000 are left out"},
		{Page{Offset: 5000}, 0, "the first 1234 are left out"},
		{Page{Offset: -5, Limit: -5}, 200, "only 200 of 1234 are listed: set offset to 200 for the next ones"},
	} {
		g := NewWithT(t)
		found, extent, err := references(t, c, file, timeout, test.page)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(Equal(test.found), "%+v", test.page)
		g.Expect(extent).To(Equal(Extent{Total: total, Reason: test.reason}), "%+v", test.page)
	}
}

// gopls and clangd return at most 100 symbols, and clangd at most 1000 references, without a word.
func TestReferences_DoubtRoundNumbers(t *testing.T) {
	for total, doubted := range map[int]bool{99: false, 100: true, 101: false, 256: true, 300: true, 64: false, 1000: true} {
		g := NewWithT(t)
		s, file := counting(t, func(int) int { return total })
		_, extent, err := references(t, connect(t, s), file, timeout, Page{Limit: 1000})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(extent.Complete).To(Equal(!doubted), "%d", total)
		if doubted {
			g.Expect(extent.Reason).To(Equal(fmt.Sprintf("the language server returned exactly %d entries, which may be its own limit", total)))
		}
	}
}

// The edits of a rename are positions in files that can change while the server answers.
func TestRename_IsAskedAgainUntilTheFilesAreStill(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	file, other := filepath.Join(dir, "a.go"), filepath.Join(dir, "b.go")
	write(t, file, "func Old() {}\n")
	write(t, other, "Old 0\n")
	asked := 0
	s := &server{answer: func(method string, _ json.RawMessage) any {
		if method != "textDocument/rename" {
			return nil
		}
		if asked++; asked == 3 || asked == 4 {
			write(t, other, fmt.Sprintf("Old %d\n", asked)) // another program changes a file that is not open at the server
		}
		return map[string]any{"changes": map[string]any{uriOf(other): []any{map[string]any{"newText": "New", "range": span{position{0, 0}, position{0, 3}}}}}}
	}}
	c := connect(t, s, dir)
	for _, want := range []string{"New 0\n", "New 4\n"} {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		edits, extent, err := c.Rename(ctx, file, Where{Symbol: "Old"}, "New")
		cancel()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(extent).To(Equal(Extent{Complete: true, Total: 1}))
		g.Expect(edits[0].After()).To(Equal(want))
	}
	g.Expect(asked).To(Equal(5))
}
