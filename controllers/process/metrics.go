// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

// The metrics of Berth, beside those of controller-runtime; docs/metrics.md tells what they are good for. No label holds the name of an object,
// so their number is bounded by what is in the API.
var (
	starts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_starts_total",
		Help: "Processes started, by kind and reason: Created, Resumed after a stop, or why it was restarted.",
	}, []string{"kind", "reason"})
	live = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_live_processes",
		Help: "Objects whose process lives, by kind.",
	}, []string{"kind"})
	breakers = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_breakers",
		Help: "Objects by kind and the state of their circuit breaker.",
	}, []string{"kind", "state"})
	applyToReady = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_apply_to_ready_seconds",
		Help:    "Seconds from the first sight of a generation of an object until that generation is ready, by kind.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"kind"})
	adoption = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_adoption_seconds",
		Help:    "Seconds from the first reconcile of a manager until a process that it found running was taken over, by kind.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
	}, []string{"kind"})
	writesPerTransition = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_status_writes_per_transition",
		Help:    "Status writes from one rest (Ready or Stalled) of an object to the next, by kind.",
		Buckets: []float64{1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 50},
	}, []string{"kind"})
)

func init() {
	metrics.Registry.MustRegister(starts, live, breakers, applyToReady, adoption, writesPerTransition)
}

// The reasons of starts that are no restarts.
const (
	reasonCreated = "Created"
	reasonResumed = "Resumed"
)

// countStart counts a start under the reason that the status gives for it.
func countStart(kind string, v *visit) {
	reason := reasonCreated
	if v.step.Incarnation > 1 {
		reason = cmp.Or(v.step.Why, reasonResumed)
		restarting := meta.FindStatusCondition(v.object.GetProcessStatus().Conditions, v1alpha1.ConditionRestarting)
		if restarting != nil && isTrue(v.object, v1alpha1.ConditionRestarting) {
			reason = restarting.Reason
		}
	}
	starts.WithLabelValues(kind, reason).Inc()
}

// measure brings the metrics to what this visit found.
func (r *Reconciler) measure(v *visit) {
	kind, uid, status := r.Kind.Resource(), v.object.GetUID(), v.object.GetProcessStatus()
	found := sight{
		generation: v.object.GetGeneration(),
		running:    v.current != nil && v.current.Phase == runtime.Running,
		ready:      isTrue(v.object, v1alpha1.ConditionReady),
		stalled:    isTrue(v.object, v1alpha1.ConditionStalled),
		written:    v.written,
	}
	if status.Breaker != nil {
		found.breaker = string(status.Breaker.State)
	}
	counted.note(kind, uid, found, v.now)
	if since, first := r.memory.firstSight(uid, v.now); first && v.current != nil {
		adoption.WithLabelValues(kind).Observe(v.now.Sub(since).Seconds())
	}
}

// sight is what one visit found, as far as it is counted.
type sight struct {
	generation              int64
	running, ready, stalled bool
	written                 bool
	breaker                 string
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
}

var counted = &census{tallies: map[types.UID]*tally{}}

func (c *census) note(kind string, uid types.UID, found sight, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tallies[uid]
	if t == nil {
		t = &tally{kind: kind}
		c.tallies[uid] = t
	}
	t.setRunning(found.running)
	t.setBreaker(found.breaker)
	t.wait(found, now)
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
