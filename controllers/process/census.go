// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// sight is what one visit found, as far as it is counted.
type sight struct {
	generation              int64
	running, ready, stalled bool
	written                 bool
	breaker                 string
	// missing is why the object is not ready where it ought to be, and missingSince when it became so at the latest.
	missing      string
	missingSince time.Time
}

// census is what the gauges are counted from.
type census struct {
	mu      sync.Mutex
	tallies map[types.UID]*tally
}

// tally is what is kept of one object.
type tally struct {
	kind    string
	running bool
	breaker string
	// generation is the newest that was seen; waitingSince is zero once it was ready.
	generation   int64
	waitingSince time.Time
	// writes are those of the status since the last rest.
	writes int
	// missing is why it is not ready although it ought to be, and missingSince when it became so.
	missing      string
	missingSince time.Time
}

var counted = &census{tallies: map[types.UID]*tally{}}

func (c *census) note(kind string, uid types.UID, found sight, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tallies[uid]
	if t == nil {
		t = &tally{kind: kind, missingSince: found.missingSince}
		c.tallies[uid] = t
	}
	t.setRunning(found.running)
	t.setBreaker(found.breaker)
	t.wait(found, now)
	t.miss(found.missing, now)
	if found.written {
		t.writes++
	}
	if t.writes > 0 && (found.ready || found.stalled) {
		writesPerTransition.WithLabelValues(kind).Observe(float64(t.writes))
		t.writes = 0
	}
}

func (c *census) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.tallies[uid]; t != nil {
		t.setRunning(false)
		t.setBreaker("")
		delete(c.tallies, uid)
	}
}

func (t *tally) setRunning(running bool) {
	switch {
	case running && !t.running:
		live.WithLabelValues(t.kind).Inc()
	case !running && t.running:
		live.WithLabelValues(t.kind).Dec()
	}
	t.running = running
}

func (t *tally) setBreaker(state string) {
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

// miss notes why it is not ready although it ought to be. Another reason does not make it any younger.
func (t *tally) miss(reason string, now time.Time) {
	switch {
	case reason == "":
		t.missingSince = time.Time{}
	case t.missingSince.IsZero():
		t.missingSince = now
	}
	t.missing = reason
}

// wait observes, once per generation that was not ready at first sight, how long it took until it was.
func (t *tally) wait(found sight, now time.Time) {
	if t.generation != found.generation {
		t.generation, t.waitingSince = found.generation, time.Time{}
		if !found.ready {
			t.waitingSince = now
		}
		return
	}
	if found.ready && !t.waitingSince.IsZero() {
		applyToReady.WithLabelValues(t.kind).Observe(now.Sub(t.waitingSince).Seconds())
		t.waitingSince = time.Time{}
	}
}

// Describe implements prometheus.Collector.
func (c *census) Describe(all chan<- *prometheus.Desc) {
	all <- notReady
	all <- notReadySince
}

// Collect implements prometheus.Collector. What nothing is missing for has no series, so that the time of one is never that of an object which is fine.
func (c *census) Collect(all chan<- prometheus.Metric) {
	for of, absence := range c.missing() {
		all <- prometheus.MustNewConstMetric(notReady, prometheus.GaugeValue, float64(absence.objects), of.kind, of.reason)
		all <- prometheus.MustNewConstMetric(notReadySince, prometheus.GaugeValue, float64(absence.since.Unix()), of.kind, of.reason)
	}
}

type cause struct{ kind, reason string }

// absence is how many objects are not ready for a cause, and since when the first of them is.
type absence struct {
	objects int
	since   time.Time
}

func (c *census) missing() map[cause]absence {
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
