// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/tolerant"
)

var undecodable = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "berth_undecodable_objects_total",
	Help: "Versions of objects that were read and ignored because they cannot be decoded, by kind.",
}, []string{"kind"})

func init() {
	for kind := range Scheme().KnownTypes(v1alpha1.GroupVersion) {
		plural, _ := meta.UnsafeGuessKindToResource(v1alpha1.GroupVersion.WithKind(kind))
		if Scheme().Recognizes(v1alpha1.GroupVersion.WithKind(kind + "List")) {
			undecodable.WithLabelValues(plural.Resource)
		}
	}
	metrics.Registry.MustRegister(undecodable)
}

const (
	// An attacker may create many objects that do not decode, and the manager lists them again after each interruption. So the manager logs and emits events
	// for reportBurst objects at once, and then for one every second; the metric counts all.
	reportBurst = 50
	reportRate  = 1
)

// reporter reports objects that do not decode: in the log, with an event, and with a metric.
type reporter struct {
	log   logr.Logger
	limit flowcontrol.PassiveRateLimiter
	// recorder is set before the manager starts.
	recorder process.Recorder
}

func newReporter(log logr.Logger) *reporter {
	return &reporter{log: log, limit: flowcontrol.NewTokenBucketPassiveRateLimiter(reportRate, reportBurst)}
}

// report is called for each object that the manager ignores.
func (r *reporter) report(bad *tolerant.Undecodable) {
	plural, _ := meta.UnsafeGuessKindToResource(v1alpha1.GroupVersion.WithKind(bad.Object.Kind))
	undecodable.WithLabelValues(plural.Resource).Inc()
	if !r.limit.TryAccept() {
		return
	}
	r.log.Error(bad.Err, "Ignoring an object that cannot be decoded", "kind", strings.ToLower(bad.Object.Kind), "namespace", bad.Object.Namespace, "name", bad.Object.Name)
	r.recorder.Eventf(bad.Object, nil, corev1.EventTypeWarning, v1alpha1.ReasonUndecodable, "Read",
		"Berth ignores this object, because it cannot be decoded. Correct this value with kubectl, or delete the object: %v", bad.Err)
}
