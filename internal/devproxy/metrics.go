// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devproxy

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// The metrics of all addresses together. No label holds the name of an object.
var (
	answered = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_front_requests_total",
		Help: "Requests answered by servers or their proxies, by status class (1xx to 5xx).",
	}, []string{"class"})
	waiting = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_front_held_requests",
		Help: "Requests that wait for their server.",
	})
	waited = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_front_held_requests_total",
		Help: "Requests that had to wait for their server, by outcome.",
	}, []string{"outcome"})
	turnedAway = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "berth_front_refused_connections_total",
		Help: "Connections that were answered with 503 and closed because too many were open.",
	})
	holdTime = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "berth_front_hold_seconds",
		Help:    "Seconds that requests waited for their server.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
	})
)

// outcome is the result of holding a request.
type outcome string

const (
	outcomeServed   outcome = "Served"
	outcomeRefused  outcome = "Refused"
	outcomeTimedOut outcome = "TimedOut"
	outcomeTooMany  outcome = "TooMany"
	outcomeLeft     outcome = "Left"
)

func init() {
	metrics.Registry.MustRegister(answered, waiting, waited, turnedAway, holdTime)
	for code := 1; code <= 5; code++ { // so that all series exist from the start
		answeredBy[class(100*code)] = answered.WithLabelValues(class(100 * code))
	}
	for _, o := range []outcome{outcomeServed, outcomeRefused, outcomeTimedOut, outcomeTooMany, outcomeLeft} {
		waited.WithLabelValues(string(o))
	}
}

// class returns the class of a status, such as 2xx for 204. An invalid status has the class of server errors.
func class(status int) string {
	if status < 100 || status > 599 {
		status = 500
	}
	return strconv.Itoa(status/100) + "xx"
}

// countAnswer counts a response.
func countAnswer(status int) { answeredBy[class(status)].Inc() }

// answeredBy maps each class to its counter in the metric answered.
var answeredBy = map[string]prometheus.Counter{}

// countWait counts a request that was held since the given time and is no longer held.
func countWait(since time.Time, became outcome) {
	waiting.Dec()
	waited.WithLabelValues(string(became)).Inc()
	holdTime.Observe(time.Since(since).Seconds())
}
