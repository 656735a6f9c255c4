// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
)

func TestReportCollector_CountersNeverDecrease(t *testing.T) {
	g := NewWithT(t)
	c := newReportCollector()
	registry := prometheus.NewRegistry()
	g.Expect(registry.Register(c)).To(Succeed())
	read := func() map[string]float64 {
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		values := map[string]float64{}
		for _, family := range families {
			g.Expect(family.GetMetric()).To(HaveLen(1))
			g.Expect(family.GetHelp()).NotTo(BeEmpty())
			metric := family.GetMetric()[0]
			values[strings.TrimPrefix(family.GetName(), "berth_lsp_")] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
		return values
	}
	g.Expect(read()).To(HaveLen(19), "all metrics exist from the start")

	c.note("a", lsp.Report{Clients: 2, Phase: facts.Running, Initialized: true, MemoryBytes: 1000, Counters: lsp.Counters{Requests: 5, HeldNanos: 3e9}})
	c.note("a", lsp.Report{Clients: 1, Phase: facts.Running, Initialized: true, MemoryBytes: 2000, Counters: lsp.Counters{Requests: 7, HeldNanos: 4e9}})
	c.note("b", lsp.Report{Clients: 3, Phase: facts.Exited, Initialized: true, Counters: lsp.Counters{Requests: 10, Incarnations: 2}})
	g.Expect(read()).To(And(HaveKeyWithValue("clients", 4.0), HaveKeyWithValue("servers", 1.0), HaveKeyWithValue("memory_bytes", 2000.0),
		HaveKeyWithValue("requests_total", 17.0), HaveKeyWithValue("hold_seconds_total", 4.0), HaveKeyWithValue("incarnations_total", 2.0)))
	c.drop("a")
	c.drop("a")
	g.Expect(read()).To(And(HaveKeyWithValue("clients", 3.0), HaveKeyWithValue("servers", 0.0), HaveKeyWithValue("requests_total", 17.0)))
	c.note("a", lsp.Report{Counters: lsp.Counters{Requests: 1}})
	g.Expect(read()).To(HaveKeyWithValue("requests_total", 18.0), "the counters of a new multiplexer are added")
}
