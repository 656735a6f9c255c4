// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-dev/berth/internal/lsp"
)

// measures sums up the reports of the multiplexers of all language servers. The metrics have no labels.
var measures = newReportCollector()

func init() { metrics.Registry.MustRegister(measures) }

// reportCollector adds up reports. The counters of a multiplexer remain in the sums when it is gone, so that counters never decrease.
type reportCollector struct {
	mu      sync.Mutex
	reports map[types.UID]lsp.Report
	before  lsp.Counters // the sums of the counters of multiplexers that are gone
	counts  []count
	gauges  []gauge
}

type count struct {
	desc  *prometheus.Desc
	value func(lsp.Counters) float64
}

type gauge struct {
	desc  *prometheus.Desc
	value func(lsp.Report) float64
}

func newReportCollector() *reportCollector {
	describe := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("berth_lsp_"+name, help, nil, nil) }
	counter := func(name, help string, value func(lsp.Counters) int64) count {
		return count{describe(name, help), func(c lsp.Counters) float64 { return float64(value(c)) }}
	}
	measure := func(name, help string, value func(lsp.Report) int) gauge {
		return gauge{describe(name, help), func(r lsp.Report) float64 { return float64(value(r)) }}
	}
	return &reportCollector{
		reports: map[types.UID]lsp.Report{},
		counts: []count{
			counter("requests_total", "Requests from clients.", func(c lsp.Counters) int64 { return c.Requests }),
			counter("held_requests_total", "Requests that waited for a restart.", func(c lsp.Counters) int64 { return c.HeldTotal }),
			counter("replayed_requests_total", "Requests that were sent to a second incarnation of the server.", func(c lsp.Counters) int64 { return c.Replayed }),
			counter("failed_requests_total", "Requests that the multiplexer answered with its own error.", func(c lsp.Counters) int64 { return c.Failed }),
			counter("cancelled_requests_total", "Requests that were canceled because they exceeded the maximum age.", func(c lsp.Counters) int64 { return c.Cancelled }),
			counter("frames_total", "Messages relayed in both directions.", func(c lsp.Counters) int64 { return c.Frames }),
			counter("message_bytes_total", "Bytes of the relayed messages.", func(c lsp.Counters) int64 { return c.Bytes }),
			counter("frames_rejected_total", "Messages that exceeded a limit or violated the protocol.", func(c lsp.Counters) int64 { return c.Rejected }),
			counter("slow_clients_total", "Connections closed because the client did not read.", func(c lsp.Counters) int64 { return c.SlowClients }),
			counter("view_switches_total", "Number of times that the multiplexer sent a server the document text of another client.", func(c lsp.Counters) int64 { return c.ViewSwitches }),
			counter("canary_failures_total", "Canary requests without a usable response.", func(c lsp.Counters) int64 { return c.CanaryFailed }),
			counter("incarnations_total", "Language servers started.", func(c lsp.Counters) int64 { return c.Incarnations }),
			{describe("hold_seconds_total", "Seconds that held requests spent waiting."), func(c lsp.Counters) float64 { return time.Duration(c.HeldNanos).Seconds() }},
		},
		gauges: []gauge{
			measure("servers", "Language servers that are ready to serve.", func(r lsp.Report) int { return truth(r.Initialized && serverLives(r)) }),
			measure("clients", "Connected clients.", func(r lsp.Report) int { return r.Clients }),
			measure("open_documents", "Documents that clients have open.", func(r lsp.Report) int { return r.OpenDocuments }),
			measure("held_requests", "Requests that wait for a restart.", func(r lsp.Report) int { return r.Held }),
			measure("in_flight_requests", "Requests that servers have not answered yet.", func(r lsp.Report) int { return r.InFlight }),
			{describe("memory_bytes", "Memory in bytes of the process trees of servers."), func(r lsp.Report) float64 { return float64(r.MemoryBytes) }},
		},
	}
}

func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}

// note stores the newest report of a multiplexer.
func (c *reportCollector) note(uid types.UID, report lsp.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports[uid] = report
}

// drop adds the counters of a multiplexer to c.before, and removes its report. It is called when the multiplexer is gone or no longer followed by this manager.
func (c *reportCollector) drop(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = add(c.before, c.reports[uid].Counters)
	delete(c.reports, uid)
}

// Describe implements prometheus.Collector.
func (c *reportCollector) Describe(out chan<- *prometheus.Desc) {
	for _, counter := range c.counts {
		out <- counter.desc
	}
	for _, gauge := range c.gauges {
		out <- gauge.desc
	}
}

// Collect implements prometheus.Collector.
func (c *reportCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := c.before
	values := make([]float64, len(c.gauges))
	for _, report := range c.reports {
		total = add(total, report.Counters)
		for i, gauge := range c.gauges {
			values[i] += gauge.value(report)
		}
	}
	for _, counter := range c.counts {
		out <- prometheus.MustNewConstMetric(counter.desc, prometheus.CounterValue, counter.value(total))
	}
	for i, gauge := range c.gauges {
		out <- prometheus.MustNewConstMetric(gauge.desc, prometheus.GaugeValue, values[i])
	}
}

// add returns the sum of a and b, without the duration of the last start, which cannot be summed.
func add(a, b lsp.Counters) lsp.Counters {
	return lsp.Counters{
		Requests: a.Requests + b.Requests, HeldTotal: a.HeldTotal + b.HeldTotal, Replayed: a.Replayed + b.Replayed, Failed: a.Failed + b.Failed,
		Frames: a.Frames + b.Frames, Bytes: a.Bytes + b.Bytes, Rejected: a.Rejected + b.Rejected, SlowClients: a.SlowClients + b.SlowClients,
		ViewSwitches: a.ViewSwitches + b.ViewSwitches, CanaryFailed: a.CanaryFailed + b.CanaryFailed, Cancelled: a.Cancelled + b.Cancelled,
		HeldNanos: a.HeldNanos + b.HeldNanos, Incarnations: a.Incarnations + b.Incarnations,
	}
}
