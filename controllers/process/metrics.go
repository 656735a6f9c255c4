// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	notReady = prometheus.NewDesc("berth_not_ready",
		"Objects that ought to run and are not ready, by kind and the reason of their condition Ready.",
		[]string{"kind", "reason"}, nil)
	notReadySince = prometheus.NewDesc("berth_not_ready_since_timestamp_seconds",
		"When the object became not ready that is so for the longest time, in seconds since 1970, by kind and the reason of its condition Ready.",
		[]string{"kind", "reason"}, nil)
)

func init() {
	metrics.Registry.MustRegister(starts, live, breakers, applyToReady, adoption, writesPerTransition, counted)
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
		missing:    missing(v.object),
	}
	if status.Breaker != nil {
		found.breaker = string(status.Breaker.State)
	}
	counted.note(kind, uid, found, v.now)
	if since, first := r.memory.firstSight(uid, v.now); first && v.current != nil {
		adoption.WithLabelValues(kind).Observe(v.now.Sub(since).Seconds())
	}
}

// missing gives the condition Ready of an object that ought to run and is not ready; nil of one that rests as it should.
func missing(object Object) *metav1.Condition {
	status := object.GetProcessStatus()
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return nil
	}
	switch ready.Reason {
	case v1alpha1.ReasonStopped, v1alpha1.ReasonCompleted, v1alpha1.ReasonIdle:
		return nil
	}
	// A run that has ended is not waited for, however it ended.
	if over := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionSucceeded); over != nil && over.Status != metav1.ConditionUnknown {
		return nil
	}
	return ready
}
