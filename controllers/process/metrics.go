// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// The metrics of Berth, in addition to those of controller-runtime; docs/metrics.md explains their use. No label holds the name of an object, so the
// number of series is bounded by the API.
var (
	starts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_starts_total",
		Help: "Processes started, by kind and reason: Created, Resumed after a stop, or the reason of the restart.",
	}, []string{"kind", "reason"})
	live = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_live_processes",
		Help: "Objects with a running process, by kind.",
	}, []string{"kind"})
	breakers = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_breakers",
		Help: "Objects, by kind and the state of their circuit breaker.",
	}, []string{"kind", "state"})
	// Waiting counts the objects that wait for a person. The controller of plans sets it for plans.
	Waiting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "berth_waiting",
		Help: "Objects that wait for a person, by kind: instances whose program asks a question, and plans that wait for approval.",
	}, []string{"kind"})
	applyToReady = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_apply_to_ready_seconds",
		Help:    "Seconds from the first reconcile of a generation of an object until that generation is ready, by kind.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"kind"})
	adoption = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_adoption_seconds",
		Help:    "Seconds from the first reconcile of a manager until it took over a process that was already running, by kind.",
		Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
	}, []string{"kind"})
	writesPerTransition = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_status_writes_per_transition",
		Help:    "Number of status writes between one settled state (Ready or Stalled) of an object and the next, by kind.",
		Buckets: []float64{1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 50},
	}, []string{"kind"})
	notReady = prometheus.NewDesc("berth_not_ready",
		"Objects that should run but are not ready, by kind and the reason of the condition Ready.",
		[]string{"kind", "reason"}, nil)
	notReadySince = prometheus.NewDesc("berth_not_ready_since_timestamp_seconds",
		"Unix time in seconds at which the object that has been unready for the longest time became unready, by kind and the reason of the condition Ready.",
		[]string{"kind", "reason"}, nil)
)

func init() {
	metrics.Registry.MustRegister(starts, live, breakers, Waiting, applyToReady, adoption, writesPerTransition, metricsCollector)
	for _, kind := range []string{"instances", "plans"} {
		Waiting.WithLabelValues(kind) // 0 is a value, too
	}
}

// reasonCreated and reasonResumed are the reasons of starts that are not restarts: the first start of an object, and a start after a stop, a sleep or a
// move.
const (
	reasonCreated = "Created"
	reasonResumed = "Resumed"
)

// countStart counts a start under the reason that the status records for it.
func countStart(kind string, v *scope) {
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

// measure updates the metrics with the result of this reconcile.
func (r *Reconciler) measure(v *scope) {
	kind, uid, status := r.Kind.Resource(), v.object.GetUID(), v.object.GetProcessStatus()
	found := snapshot{
		generation: v.object.GetGeneration(),
		running:    v.current != nil && v.current.Phase == facts.Running,
		ready:      isTrue(v.object, v1alpha1.ConditionReady) && status.Process != nil,
		atRest:     isTrue(v.object, v1alpha1.ConditionReady) && status.Process == nil,
		stalled:    isTrue(v.object, v1alpha1.ConditionStalled),
		waiting:    isTrue(v.object, v1alpha1.ConditionAwaitingInput),
		written:    v.written,
	}
	found.missing, found.missingSince = missing(v.object)
	if status.Breaker != nil {
		found.breaker = string(status.Breaker.State)
	}
	metricsCollector.recordState(kind, uid, found, v.now)
	if since, first := r.stateCache.firstSight(uid, v.now); first && v.current != nil {
		adoption.WithLabelValues(kind).Observe(v.now.Sub(since).Seconds())
	}
}

// missing returns why an object that should run is not ready, and the latest time at which it can have become not ready. It returns zero values for
// an object that is ready or that need not run.
func missing(object Object) (reason string, since time.Time) {
	status := object.GetProcessStatus()
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue || needNotRun(ready.Reason, status) {
		return "", time.Time{}
	}
	since = ready.LastTransitionTime.Time
	// A failure that is not retried (see rests) also sets Ready to False. If the object is started again after such a failure, Ready stays False, and its
	// transition time is still that of the failure. The object then counts as not ready only since Reconciling or Stalled became True.
	for _, now := range []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if found := meta.FindStatusCondition(status.Conditions, now); found != nil && found.Status == metav1.ConditionTrue && found.LastTransitionTime.After(since) {
			since = found.LastTransitionTime.Time
		}
	}
	return ready.Reason, since
}

// needNotRun reports whether an object that is not ready need not run: it is disabled, it is a run that has ended, or its process has exited and is not
// restarted.
func needNotRun(reason string, status *v1alpha1.ProcessStatus) bool {
	// A run that has ended is not started again, regardless of its outcome.
	if over := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionSucceeded); over != nil && over.Status != metav1.ConditionUnknown {
		return true
	}
	switch reason {
	case v1alpha1.ReasonDisabled:
		return true
	case v1alpha1.ReasonFailed, v1alpha1.ReasonLost, v1alpha1.ReasonUnknown:
		// Unknown is also the reason while the state of an incarnation cannot be determined. Then no exit of that incarnation is recorded.
		return status.LastExit != nil && status.LastExit.Incarnation == status.Incarnation && status.NextRestartTime == nil
	}
	return false
}
