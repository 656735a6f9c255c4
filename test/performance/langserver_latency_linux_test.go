// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
	"github.com/berth-dev/berth/test/lspfake/script"
)

const (
	// latencyRequests is the number of requests that a round sends in each of the three ways: directly, through a program that only copies, and through the
	// multiplexer. requestsPerTurn is the number of consecutive requests that are sent in one way before the next way follows.
	latencyRequests = 1000
	requestsPerTurn = 100
)

// TestMultiplexer_AddedLatency compares a request through the multiplexer with the same request sent directly to a server. It also measures a request
// through a program that only copies: on a machine whose processes wake up slowly, most of the difference is the cost of any additional process.
func TestMultiplexer_AddedLatency(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(script.Script{Quiet: true}.Write(dir, "direct")).To(Succeed())
	g.Expect(script.Script{Quiet: true}.Write(dir, "shared")).To(Succeed())
	g.Expect(script.Script{Quiet: true}.Write(dir, "copied")).To(Succeed())
	m := startMultiplexer(t)
	m.serve(1, lsp.Config{Language: "fake", Folders: []string{dir}}, dir, fakePath(t), "-dir", dir, "-name", "shared")
	direct, shared := newPipeClient(t, fakePath(t), "-dir", dir, "-name", "direct"), newSocketClient(t, m)
	copied := newPipeClient(t, workloadPath, "through", fakePath(t), "-dir", dir, "-name", "copied")
	uri := lspclient.URI(dir, "one.txt")
	for _, c := range []wireClient{direct, copied, shared} {
		c.request(t, frame(t, 1, "initialize", map[string]any{"processId": nil, "rootUri": nil, "capabilities": map[string]any{}}), 1)
		for _, notification := range [][]byte{
			frame(t, 0, "initialized", map[string]any{}),
			frame(t, 0, "textDocument/didOpen", map[string]any{
				"textDocument": map[string]any{"uri": uri, "languageId": "fake", "version": 1, "text": "hello world\n"},
			}),
		} {
			_, err := c.Write(notification)
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	for name, size := range map[string]struct{ question, answer int }{"300 B": {}, "question of 32 KiB": {question: 32 << 10}, "answer of 32 KiB": {answer: 32 << 10}} {
		params := lspclient.PositionParams(uri, lspclient.Position{Character: 1})
		params["padding"] = strings.Repeat("x", max(0, size.question-300))
		params["fake"] = map[string]any{"pad": max(0, size.answer-300)}
		request := frame(t, 7, "textDocument/hover", params)
		var p50, p99, least []float64
		for range rounds {
			own, between, theirs := requestInTurns(t, request, direct, copied, shared)
			p50, least = append(p50, median(theirs)-median(own)), append(least, median(between)-median(own))
			p99 = append(p99, percentile(theirs, 99)-percentile(own, 99))
			addFigure("language server, "+name+": direct and through the multiplexer, p50", "%.0f µs, %.0f µs", median(own), median(theirs))
		}
		addFigure("language server, "+name+": added by a program that only copies, p50", "%.0f µs", median(least))
		expectAtMost(t, "language server, "+name+": added by the multiplexer, p50", median(p50), 100, 3, " µs")
		expectAtMost(t, "language server, "+name+": added by the multiplexer, p99", median(p99)/1000, 1, 8, " ms")
	}
}

// requestInTurns sends requests in each of the three ways and returns their times in microseconds: own for the client direct, between for copied, and theirs
// for shared.
func requestInTurns(t *testing.T, request []byte, direct, copied, shared wireClient) (own, between, theirs []float64) {
	t.Helper()
	measure := func(c wireClient) (times []float64) {
		for range requestsPerTurn {
			began := time.Now()
			c.request(t, request, 7)
			times = append(times, float64(time.Since(began))/float64(time.Microsecond))
		}
		return times
	}
	for range latencyRequests / requestsPerTurn {
		own = append(own, measure(direct)...)
		between = append(between, measure(copied)...)
		theirs = append(theirs, measure(shared)...)
	}
	return own, between, theirs
}
