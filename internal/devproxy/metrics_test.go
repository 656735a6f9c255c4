// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// readMetrics reads the metrics of the proxies by name and label. For a histogram it returns the count and the sum.
func readMetrics(g Gomega) map[string]float64 {
	families, err := metrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			if histogram := metric.GetHistogram(); histogram != nil {
				values[name] = float64(histogram.GetSampleCount())
				values[name+" sum"] = histogram.GetSampleSum()
				g.Expect(histogram.GetBucket()[0].GetUpperBound()).To(Equal(0.001))
			}
		}
	}
	return values
}

// metricsSince returns the increase of the metrics of the proxies.
func metricsSince(g Gomega, before map[string]float64) map[string]float64 {
	grown := map[string]float64{}
	for name, value := range readMetrics(g) {
		if was, known := before[name]; known && value != was {
			grown[name] = value - was
		}
	}
	return grown
}

func TestMetrics_CountRequestsAndHolds(t *testing.T) {
	const held, waits, times = "berth_front_held_requests_total ", "berth_front_held_requests", "berth_front_hold_seconds"
	f := newFixture(t, Options{HoldRequests: 1})
	before := readMetrics(f.g)
	f.g.Expect(before).To(And(HaveKey("berth_front_requests_total 1xx"), HaveKey(held+"Left")), "all metrics exist from the start")

	one := f.startRequest(http.MethodGet, "/", nil)
	f.awaitHeld(1)
	f.g.Eventually(func() map[string]float64 { return metricsSince(f.g, before) }).WithTimeout(long).Should(Equal(map[string]float64{waits: 1}))
	f.g.Expect(f.do(http.MethodGet, "/", nil).Status).To(Equal(http.StatusServiceUnavailable))
	f.openServer(1, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, "hello")
	}))
	f.g.Expect((<-one).Status).To(Equal(http.StatusOK))
	f.g.Expect(f.do(http.MethodPost, "/nothing", nil).Status).To(Equal(http.StatusNotFound))
	f.Refuse(uid, Reason{Reason: "Stopped"})
	f.g.Expect(f.do(http.MethodGet, "/", nil).Status).To(Equal(http.StatusServiceUnavailable), "a refused request is not held")
	grown := metricsSince(f.g, before)
	f.g.Expect(grown[times+" sum"]).To(And(BeNumerically(">", 0), BeNumerically("<", long.Seconds())))
	delete(grown, times+" sum")
	f.g.Expect(grown).To(Equal(map[string]float64{
		held + "Served": 1, held + "TooMany": 1, times: 1,
		"berth_front_requests_total 2xx": 1, "berth_front_requests_total 4xx": 1, "berth_front_requests_total 5xx": 2,
	}))
}

func TestMetrics_RecordOutcomeOfHeldRequests(t *testing.T) {
	for became, end := range map[outcome]func(f *fixture, cancel func()){
		outcomeRefused:  func(f *fixture, _ func()) { f.Refuse(uid, Reason{Reason: "CircuitOpen"}) },
		outcomeLeft:     func(_ *fixture, cancel func()) { cancel() },
		outcomeTimedOut: func(*fixture, func()) {},
	} {
		t.Run(string(became), func(t *testing.T) {
			options := Options{}
			if became == outcomeTimedOut {
				options.HoldTime = 50 * time.Millisecond
			}
			f := newFixture(t, options)
			before := readMetrics(f.g)
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url("/"), nil)
			f.g.Expect(err).NotTo(HaveOccurred())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if response, err := f.client.Do(req); err == nil {
					_ = response.Body.Close()
				}
			}()
			if became != outcomeTimedOut { // a request that times out may end before the test sees it wait
				f.awaitHeld(1)
			}
			end(f, cancel)
			<-ended
			cancel()
			name := "berth_front_held_requests_total " + string(became)
			f.g.Eventually(func() float64 { return metricsSince(f.g, before)[name] }).WithTimeout(long).Should(Equal(1.0))
			f.g.Eventually(func() map[string]float64 { return metricsSince(f.g, before) }).WithTimeout(long).Should(And(
				Not(HaveKey("berth_front_held_requests")), HaveKeyWithValue("berth_front_hold_seconds", 1.0)))
		})
	}
}

func TestClass_GroupsStatusCodes(t *testing.T) {
	g := NewWithT(t)
	for status, want := range map[int]string{101: "1xx", 204: "2xx", 304: "3xx", 451: "4xx", 503: "5xx", 0: "5xx", 999: "5xx"} {
		g.Expect(class(status)).To(Equal(want), "%d", status)
	}
}
