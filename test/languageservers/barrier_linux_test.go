// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
)

// maxBarrier is how much longer a question may take at p50 if the multiplexer first lets the server learn what has changed on disk.
const maxBarrier = 5 * time.Millisecond

// TestServers_BarrierIsShort prints how long a question takes: to the server alone, through the multiplexer, and through the multiplexer after a request berth/sync.
func TestServers_BarrierIsShort(t *testing.T) {
	const questions = 200
	for _, name := range []string{"gopls", "tsgo"} {
		t.Run(name, func(t *testing.T) {
			g, s := NewWithT(t), servers[name]
			folder := s.folder(t)
			uri := lspclient.URI(folder, s.main)
			measure := func(c *lspclient.Client, before ...string) time.Duration {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				var took []time.Duration
				for range questions {
					began := time.Now()
					for _, method := range before {
						g.Expect(c.Call(ctx, method, struct{}{}, nil)).To(Succeed())
					}
					g.Expect(c.Call(ctx, documentSymbols, map[string]any{"textDocument": map[string]any{"uri": uri}}, nil)).To(Succeed())
					took = append(took, time.Since(began))
				}
				return percentile(took, 50)
			}
			open := func(c *lspclient.Client) *lspclient.Client {
				g.Expect(c.Open(uri, s.language, 1, s.files[s.main])).To(Succeed())
				measure(c) // the server reads the project
				return c
			}
			alone := measure(open(s.alone(t, folder, clientKinds["editor"])))
			shared := s.replaceable(t, folder)
			c := open(s.connect(t, shared.Mux, folder, clientKinds["editor"]))
			g.Eventually(func() bool {
				var report lsp.Report
				shared.Fill(&report)
				return report.Indexed
			}).WithTimeout(patience).Should(BeTrue())
			without, with := measure(c), measure(c, lsp.MethodSync)
			t.Logf("%s, p50 of %d questions: %s alone, %s through Berth, %s through Berth with the barrier", name, questions, alone, without, with)
			g.Expect(with - without).To(BeNumerically("<=", maxBarrier))
		})
	}
}
