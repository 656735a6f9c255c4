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
	metrics []metric
}

// metric is the sum of one value over all reports.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(lsp.Report) float64
	gone  float64 // the sum over the multiplexers that are gone; 0 for gauges
}

func newReportCollector() *reportCollector {
	c := &reportCollector{reports: map[types.UID]lsp.Report{}}
	add := func(kind prometheus.ValueType, name, help string, value func(lsp.Report) float64) {
		c.metrics = append(c.metrics, metric{desc: prometheus.NewDesc("berth_lsp_"+name, help, nil, nil), kind: kind, value: value})
	}
	counter := func(name, help string, value func(lsp.Counters) int64) {
		add(prometheus.CounterValue, name, help, func(r lsp.Report) float64 { return float64(value(r.Counters)) })
	}
	gauge := func(name, help string, value func(lsp.Report) int) {
		add(prometheus.GaugeValue, name, help, func(r lsp.Report) float64 { return float64(value(r)) })
	}
	counter("requests_total", "Requests from clients.", func(c lsp.Counters) int64 { return c.Requests })
	counter("held_requests_total", "Requests that waited for a restart.", func(c lsp.Counters) int64 { return c.HeldTotal })
	counter("replayed_requests_total", "Requests that were sent to a second incarnation of the server.", func(c lsp.Counters) int64 { return c.Replayed })
	counter("failed_requests_total", "Requests that the multiplexer answered with its own error.", func(c lsp.Counters) int64 { return c.Failed })
	counter("cancelled_requests_total", "Requests that were canceled because they exceeded the maximum age.", func(c lsp.Counters) int64 { return c.Cancelled })
	counter("frames_total", "Messages relayed in both directions.", func(c lsp.Counters) int64 { return c.Frames })
	counter("message_bytes_total", "Bytes of the relayed messages.", func(c lsp.Counters) int64 { return c.Bytes })
	counter("frames_rejected_total", "Messages that exceeded a limit or violated the protocol.", func(c lsp.Counters) int64 { return c.Rejected })
	counter("slow_clients_total", "Connections closed because the client did not read.", func(c lsp.Counters) int64 { return c.SlowClients })
	counter("view_switches_total", "Number of times that the multiplexer sent a server the document text of another client.", func(c lsp.Counters) int64 { return c.ViewSwitches })
	counter("canary_failures_total", "Canary requests without a usable response.", func(c lsp.Counters) int64 { return c.CanaryFailed })
	counter("incarnations_total", "Language servers started.", func(c lsp.Counters) int64 { return c.Incarnations })
	add(prometheus.CounterValue, "hold_seconds_total", "Seconds that held requests spent waiting.", func(r lsp.Report) float64 { return time.Duration(r.Counters.HeldNanos).Seconds() })
	gauge("servers", "Language servers that are ready to serve.", func(r lsp.Report) int {
		if r.Initialized && serverLives(r) {
			return 1
		}
		return 0
	})
	gauge("clients", "Connected clients.", func(r lsp.Report) int { return r.Clients })
	gauge("open_documents", "Documents that clients have open.", func(r lsp.Report) int { return r.OpenDocuments })
	gauge("held_requests", "Requests that wait for a restart.", func(r lsp.Report) int { return r.Held })
	gauge("in_flight_requests", "Requests that servers have not answered yet.", func(r lsp.Report) int { return r.InFlight })
	gauge("memory_bytes", "Memory in bytes of the process trees of servers.", func(r lsp.Report) int { return int(r.MemoryBytes) })
	return c
}

// note stores the newest report of a multiplexer.
func (c *reportCollector) note(uid types.UID, report lsp.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports[uid] = report
}

// drop adds the counters of a multiplexer to those of the ones that are gone, and removes its report. It is called when the multiplexer is gone or no longer
// followed by this manager.
func (c *reportCollector) drop(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.metrics {
		if m := &c.metrics[i]; m.kind == prometheus.CounterValue {
			m.gone += m.value(c.reports[uid])
		}
	}
	delete(c.reports, uid)
}

// Describe implements prometheus.Collector.
func (c *reportCollector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *reportCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.metrics {
		sum := m.gone
		for _, report := range c.reports {
			sum += m.value(report)
		}
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, sum)
	}
}
