// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

// The metrics of Berth, beside those of controller-runtime. No label holds the name of an object.
//
//	| name                         | labels       | meaning                                                                     |
//	|------------------------------|--------------|-----------------------------------------------------------------------------|
//	| berth_starts_total           | kind, reason | processes started; reason: Created, or why it was restarted                 |
//	| berth_live_processes         | kind         | objects whose process lives                                                 |
//	| berth_apply_to_ready_seconds | kind         | time from the first sight of a generation until it is ready                 |
var (
	starts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_starts_total",
		Help: "Processes started, by kind and reason (Created, or why it was restarted).",
	}, []string{"kind", "reason"})
	live = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_live_processes",
		Help: "Objects whose process lives, by kind.",
	}, []string{"kind"})
	applyToReady = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_apply_to_ready_seconds",
		Help:    "Seconds from the first sight of a generation of an object until that generation is ready, by kind.",
		Buckets: []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"kind"})
)

func init() {
	metrics.Registry.MustRegister(starts, live, applyToReady)
}

// reasonCreated labels the first start of an object.
const reasonCreated = "Created"

// countStart counts a start under the reason that the status gives for it.
func countStart(kind string, v *visit) {
	reason := reasonCreated
	if v.step.Incarnation > 1 {
		reason = v1alpha1.ReasonCrashed
		restarting := meta.FindStatusCondition(v.object.GetProcessStatus().Conditions, v1alpha1.ConditionRestarting)
		if restarting != nil && isTrue(v.object, v1alpha1.ConditionRestarting) {
			reason = restarting.Reason
		}
	}
	starts.WithLabelValues(kind, reason).Inc()
}

// measure brings the metrics to what this visit found.
func (r *Reconciler) measure(v *visit) {
	kind := r.Kind.Resource()
	running := v.current != nil && v.current.Phase == runtime.Running
	liveProcesses.set(kind, v.object.GetUID(), running)
	ready := isTrue(v.object, v1alpha1.ConditionReady)
	if waited, done := liveProcesses.readyAfter(v.object.GetUID(), v.object.GetGeneration(), ready, v.now); done {
		applyToReady.WithLabelValues(kind).Observe(waited.Seconds())
	}
}

// census is what the gauges are counted from.
type census struct {
	mu      sync.Mutex
	running map[types.UID]string
	waiting map[types.UID]waiting
}

// waiting is a generation that was seen; since is zero once it was ready.
type waiting struct {
	generation int64
	since      time.Time
}

var liveProcesses = &census{running: map[types.UID]string{}, waiting: map[types.UID]waiting{}}

func (c *census) set(kind string, uid types.UID, running bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, counted := c.running[uid]
	switch {
	case running && !counted:
		c.running[uid] = kind
		live.WithLabelValues(kind).Inc()
	case !running && counted:
		delete(c.running, uid)
		live.WithLabelValues(kind).Dec()
	}
}

func (c *census) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, uid)
	if kind, counted := c.running[uid]; counted {
		delete(c.running, uid)
		live.WithLabelValues(kind).Dec()
	}
}

// readyAfter says, once per generation that was not ready at first sight, how long it took until it was.
func (c *census) readyAfter(uid types.UID, generation int64, ready bool, now time.Time) (waited time.Duration, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, known := c.waiting[uid]
	if !known || seen.generation != generation {
		seen = waiting{generation: generation}
		if !ready {
			seen.since = now
		}
		c.waiting[uid] = seen
		return 0, false
	}
	if !ready || seen.since.IsZero() {
		return 0, false
	}
	c.waiting[uid] = waiting{generation: generation}
	return now.Sub(seen.since), true
}
