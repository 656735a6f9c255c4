// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// snapshot is what one reconcile found, as far as the metrics need it.
type snapshot struct {
	generation                      int64
	running, ready, atRest, stalled bool
	waiting                         bool // for a person
	written                         bool
	breaker                         string
	// missing is why the object is not ready although it should be. missingSince is when the object became not ready. If that time is unknown, missingSince
	// is the latest possible time.
	missing      string
	missingSince time.Time
}

// collector holds the data for the gauges.
type collector struct {
	mu      sync.Mutex
	tallies map[types.UID]*objectMetrics
}

// objectMetrics is the data of one object.
type objectMetrics struct {
	kind    string
	running bool
	asking  bool // waits for a person
	breaker string
	// generation is the newest observed generation. waitingSince is when this manager first observed that generation; zero if the generation is, or has
	// been, ready or at rest.
	generation   int64
	waitingSince time.Time
	// writes counts status writes since the object was last Ready or Stalled.
	writes int
	// missing is why the object is not ready although it should be, and missingSince is when that began.
	missing      string
	missingSince time.Time
}

var metricsCollector = &collector{tallies: map[types.UID]*objectMetrics{}}

func (c *collector) recordState(kind string, uid types.UID, found snapshot, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tallies[uid]
	if t == nil {
		t = &objectMetrics{kind: kind, missingSince: found.missingSince}
		c.tallies[uid] = t
	}
	t.setRunning(found.running)
	t.setAsking(found.waiting)
	t.setBreaker(found.breaker)
	t.wait(found, now)
	t.miss(found.missing, now)
	if found.written {
		t.writes++
	}
	if t.writes > 0 && (found.ready || found.atRest || found.stalled) {
		writesPerTransition.WithLabelValues(kind).Observe(float64(t.writes))
		t.writes = 0
	}
}

func (c *collector) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.tallies[uid]; t != nil {
		t.setRunning(false)
		t.setAsking(false)
		t.setBreaker("")
		delete(c.tallies, uid)
	}
}

func (t *objectMetrics) setRunning(running bool) {
	count(live.WithLabelValues(t.kind), &t.running, running)
}

func (t *objectMetrics) setAsking(asking bool) {
	count(Waiting.WithLabelValues(t.kind), &t.asking, asking)
}

// count changes a gauge that counts objects by the change of one of them.
func count(gauge prometheus.Gauge, before *bool, now bool) {
	switch {
	case now && !*before:
		gauge.Inc()
	case !now && *before:
		gauge.Dec()
	}
	*before = now
}

func (t *objectMetrics) setBreaker(state string) {
	if t.breaker == state {
		return
	}
	if t.breaker != "" {
		breakers.WithLabelValues(t.kind, t.breaker).Dec()
	}
	if state != "" {
		breakers.WithLabelValues(t.kind, state).Inc()
	}
	t.breaker = state
}

// miss records why the object is not ready although it should be. A change of the reason keeps missingSince.
func (t *objectMetrics) miss(reason string, now time.Time) {
	switch {
	case reason == "":
		t.missingSince = time.Time{}
	case t.missingSince.IsZero():
		t.missingSince = now
	}
	t.missing = reason
}

// wait records in a metric how long each generation took to become ready. It ignores generations that were already Ready when they were first observed.
func (t *objectMetrics) wait(found snapshot, now time.Time) {
	if t.generation != found.generation {
		t.generation, t.waitingSince = found.generation, time.Time{}
		if !found.ready && !found.atRest {
			t.waitingSince = now
		}
		return
	}
	if found.atRest { // a later start is caused by a use of the object, not by an apply
		t.waitingSince = time.Time{}
	}
	if found.ready && !t.waitingSince.IsZero() {
		applyToReady.WithLabelValues(t.kind).Observe(now.Sub(t.waitingSince).Seconds())
		t.waitingSince = time.Time{}
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(all chan<- *prometheus.Desc) {
	all <- notReady
	all <- notReadySince
}

// Collect implements prometheus.Collector. Objects that are ready have no series, so that the timestamp of a series always belongs to an object that is
// not ready.
func (c *collector) Collect(all chan<- prometheus.Metric) {
	for of, absence := range c.missing() {
		all <- prometheus.MustNewConstMetric(notReady, prometheus.GaugeValue, float64(absence.objects), of.kind, of.reason)
		all <- prometheus.MustNewConstMetric(notReadySince, prometheus.GaugeValue, float64(absence.since.Unix()), of.kind, of.reason)
	}
}

type cause struct{ kind, reason string }

// absence describes the objects that are not ready because of one cause: their number, and the earliest time at which one of them became not ready.
type absence struct {
	objects int
	since   time.Time
}

func (c *collector) missing() map[cause]absence {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[cause]absence{}
	for _, t := range c.tallies {
		if t.missing == "" {
			continue
		}
		of := cause{t.kind, t.missing}
		a := found[of]
		a.objects++
		if a.since.IsZero() || t.missingSince.Before(a.since) {
			a.since = t.missingSince
		}
		found[of] = a
	}
	return found
}
