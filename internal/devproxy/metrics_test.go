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

// measured reads the metrics of the proxies by name and label. For a histogram it returns the count and the sum.
func measured(g Gomega) map[string]float64 {
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

// since returns the increase of the metrics of the proxies.
func since(g Gomega, before map[string]float64) map[string]float64 {
	grown := map[string]float64{}
	for name, value := range measured(g) {
		if was, known := before[name]; known && value != was {
			grown[name] = value - was
		}
	}
	return grown
}

func TestWhatIsMeasured(t *testing.T) {
	const held, waits, times = "berth_front_held_requests_total ", "berth_front_held_requests", "berth_front_hold_seconds"
	s := newStage(t, Options{HoldRequests: 1})
	before := measured(s.g)
	s.g.Expect(before).To(And(HaveKey("berth_front_requests_total 1xx"), HaveKey(held+"Left")), "all metrics exist from the start")

	one := s.begin(http.MethodGet, "/", nil)
	s.waits(1)
	s.g.Eventually(func() map[string]float64 { return since(s.g, before) }).WithTimeout(long).Should(Equal(map[string]float64{waits: 1}))
	s.g.Expect(s.do(http.MethodGet, "/", nil).Status).To(Equal(http.StatusServiceUnavailable))
	s.open(1, newServer(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, "hello")
	}))
	s.g.Expect((<-one).Status).To(Equal(http.StatusOK))
	s.g.Expect(s.do(http.MethodPost, "/nothing", nil).Status).To(Equal(http.StatusNotFound))
	s.Refuse(uid, Reason{Reason: "Stopped"})
	s.g.Expect(s.do(http.MethodGet, "/", nil).Status).To(Equal(http.StatusServiceUnavailable), "a refused request is not held")
	grown := since(s.g, before)
	s.g.Expect(grown[times+" sum"]).To(And(BeNumerically(">", 0), BeNumerically("<", long.Seconds())))
	delete(grown, times+" sum")
	s.g.Expect(grown).To(Equal(map[string]float64{
		held + "Served": 1, held + "TooMany": 1, times: 1,
		"berth_front_requests_total 2xx": 1, "berth_front_requests_total 4xx": 1, "berth_front_requests_total 5xx": 2,
	}))
}

func TestWhatBecomesOfWaits(t *testing.T) {
	for became, end := range map[outcome]func(s *stage, cancel func()){
		outcomeRefused:  func(s *stage, _ func()) { s.Refuse(uid, Reason{Reason: "CircuitOpen"}) },
		outcomeLeft:     func(_ *stage, cancel func()) { cancel() },
		outcomeTimedOut: func(*stage, func()) {},
	} {
		t.Run(string(became), func(t *testing.T) {
			options := Options{}
			if became == outcomeTimedOut {
				options.HoldTime = 50 * time.Millisecond
			}
			s := newStage(t, options)
			before := measured(s.g)
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url("/"), nil)
			s.g.Expect(err).NotTo(HaveOccurred())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if response, err := s.client.Do(req); err == nil {
					_ = response.Body.Close()
				}
			}()
			if became != outcomeTimedOut { // a request that times out may end before the test sees it wait
				s.waits(1)
			}
			end(s, cancel)
			<-ended
			cancel()
			name := "berth_front_held_requests_total " + string(became)
			s.g.Eventually(func() float64 { return since(s.g, before)[name] }).WithTimeout(long).Should(Equal(1.0))
			s.g.Eventually(func() map[string]float64 { return since(s.g, before) }).WithTimeout(long).Should(And(
				Not(HaveKey("berth_front_held_requests")), HaveKeyWithValue("berth_front_hold_seconds", 1.0)))
		})
	}
}

func TestClassOfAnswers(t *testing.T) {
	g := NewWithT(t)
	for status, want := range map[int]string{101: "1xx", 204: "2xx", 304: "3xx", 451: "4xx", 503: "5xx", 0: "5xx", 999: "5xx"} {
		g.Expect(class(status)).To(Equal(want), "%d", status)
	}
}
