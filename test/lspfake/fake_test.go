// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/test/lspclient"
	"github.com/berth-dev/berth/test/lspfake/script"
)

// TestMain runs the server itself when a test starts this binary with LSPFAKE_SERVER.
func TestMain(m *testing.M) {
	if os.Getenv("LSPFAKE_SERVER") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// startServer starts a server with this script.
func startServer(t *testing.T, dir string, plan script.Script) (*lspclient.Program, *lspclient.Client) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(plan.Write(dir, "fake")).To(Succeed())
	cmd := exec.Command(os.Args[0], "-dir", dir)
	cmd.Env = append(os.Environ(), "LSPFAKE_SERVER=1")
	program, err := lspclient.Start(cmd)
	g.Expect(err).NotTo(HaveOccurred())
	client := lspclient.New(program, lspclient.Options{})
	t.Cleanup(func() {
		_ = program.Kill()
		client.Close()
	})
	return program, client
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestServer_AnswersFromOpenDocuments(t *testing.T) {
	g, ctx, dir := NewWithT(t), testContext(t), t.TempDir()
	_, c := startServer(t, dir, script.Script{Diagnostics: true})
	_, err := c.Initialize(ctx, dir)
	g.Expect(err).NotTo(HaveOccurred())
	uri := lspclient.URI(dir, "a.txt")
	text := "first 😀 line\nfunc greet\ngreet again, error\n"
	g.Expect(c.Open(uri, "fake", 1, text)).To(Succeed())
	g.Expect(c.Hover(ctx, uri, lspclient.Find(text, "greet", 2))).To(HavePrefix("greet in first 😀 line by "))
	g.Expect(c.References(ctx, uri, lspclient.Find(text, "greet", 1))).To(HaveLen(2))
	g.Expect(c.Definition(ctx, uri, lspclient.Find(text, "greet", 2))).To(HaveLen(1))
	g.Expect(c.Notify("textDocument/didChange", map[string]any{
		"textDocument": map[string]any{"uri": uri, "version": 2},
		"contentChanges": []any{map[string]any{
			"text": "second", "range": lspclient.Range{Start: lspclient.Position{Character: 6}, End: lspclient.Position{Character: 8}},
		}},
	})).To(Succeed())
	g.Expect(c.Hover(ctx, uri, lspclient.Position{Character: 1})).To(HavePrefix("first in first second line by "))
	_, err = c.WaitForDiagnostics(ctx, uri, func(d lspclient.Diagnostics) bool { return len(d.All) == 1 && *d.Version == 2 })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.CloseDocument(uri)).To(Succeed())
	g.Expect(c.CloseDocument(uri)).To(Succeed())
	g.Expect(c.Shutdown(ctx)).To(Succeed())
	lines, err := script.Journal(dir, "fake")
	g.Expect(err).NotTo(HaveOccurred())
	var events []string
	for _, line := range lines {
		if line.URI == uri {
			events = append(events, line.What)
		}
	}
	g.Expect(strings.Join(events, " ")).To(Equal("open request request request change request close close violation"))
	g.Expect(lines[len(lines)-1].What).To(Equal(script.Exit))
	g.Expect(c.UnexpectedResponses()).To(BeEmpty())
}

func TestServer_CountsEffects(t *testing.T) {
	g, ctx, dir := NewWithT(t), testContext(t), t.TempDir()
	_, c := startServer(t, dir, script.Script{})
	_, err := c.Initialize(ctx, dir)
	g.Expect(err).NotTo(HaveOccurred())
	for range 2 {
		g.Expect(c.Call(ctx, "workspace/executeCommand", map[string]any{"command": "effect", "arguments": []string{"one"}}, nil)).To(Succeed())
	}
	g.Expect(script.Effects(dir, "fake")).To(Equal(map[string]int{"one": 2}))
	var answer struct{ Result any }
	g.Expect(c.Call(ctx, "workspace/executeCommand", map[string]any{
		"command": "ask", "arguments": []string{"workspace/configuration", `{"items":[{"section":"a"},{"section":"b"}]}`},
	}, &answer)).To(Succeed())
	g.Expect(answer.Result).To(Equal([]any{nil, nil}))
}

func TestServer_InjectsFaults(t *testing.T) {
	for _, do := range []string{script.Die, script.Kill, script.DieMidFrame, script.LieShort, script.Negative} {
		t.Run(do, func(t *testing.T) {
			g, ctx, dir := NewWithT(t), testContext(t), t.TempDir()
			_, c := startServer(t, dir, script.Script{Faults: []script.Fault{{Method: "textDocument/hover", Nth: 2, Do: do}}})
			_, err := c.Initialize(ctx, dir)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.Open("file:///a", "fake", 1, "hello")).To(Succeed())
			g.Expect(c.Hover(ctx, "file:///a", lspclient.Position{})).To(HavePrefix("hello in hello"))
			_, err = c.Hover(ctx, "file:///a", lspclient.Position{})
			g.Expect(err).To(MatchError(lspclient.ErrClosed))
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		g, ctx, dir := NewWithT(t), testContext(t), t.TempDir()
		_, c := startServer(t, dir, script.Script{})
		_, err := c.Initialize(ctx, dir)
		g.Expect(err).NotTo(HaveOccurred())
		params := map[string]any{"textDocument": map[string]any{"uri": "file:///a"}, "fake": script.Fault{Do: script.Delay, MS: 3_600_000}}
		call, err := c.StartCall("textDocument/hover", params)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.Notify("$/cancelRequest", map[string]any{"id": call.ID})).To(Succeed())
		g.Expect(call.Wait(ctx, nil)).To(MatchError(ContainSubstring("-32800")))
	})
}

func TestServer_FailsOnlyPlannedStarts(t *testing.T) {
	for _, where := range []string{script.StartExit, script.StartError, script.StartLogFirst, script.StartInitExit, script.StartOversize, script.StartGarbage} {
		t.Run(where, func(t *testing.T) {
			g, ctx, dir := NewWithT(t), testContext(t), t.TempDir()
			_, c := startServer(t, dir, script.Script{Start: where, Fails: 1})
			_, err := c.Initialize(ctx, dir)
			if where == script.StartInitExit {
				g.Eventually(c.Done()).WithTimeout(time.Minute).Should(BeClosed())
			} else {
				g.Expect(err).To(HaveOccurred())
			}
			_, c = startServer(t, dir, script.Script{Start: where, Fails: 1})
			_, err = c.Initialize(ctx, dir)
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}
