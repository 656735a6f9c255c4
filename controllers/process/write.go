// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// write writes the decided status to the API server, in one patch that fails if the object has changed in the meantime. If the status is unchanged, it
// writes nothing.
func (r *Reconciler) write(ctx context.Context, v *scope) error {
	written, err := consistency.WriteStatus(ctx, r.Client, v.base, v.object)
	if err != nil {
		return err
	}
	if v.written = written; written {
		r.stateCache.writes.Record(v.object)
		if v.step.PlannedRestart { // not in decide: after a conflict, the same exit is decided again
			r.Restarts.plan(v.object.GetNamespace(), v.timeline.Steady(v.now))
		}
		ctrl.LoggerFrom(ctx).V(1).Info("Wrote the status", "action", v.step.Action, "incarnation", v.step.Status.Incarnation)
		r.emitEvents(v)
	}
	r.measure(v)
	return nil
}

// emitEvents emits the events of the step as one event, because an event costs the API server almost as much as a write. It is called after the API server
// has acknowledged the status.
func (r *Reconciler) emitEvents(v *scope) {
	if len(v.step.Events) == 0 {
		return
	}
	told := lifecycle.Together(v.step.Events)
	eventType := corev1.EventTypeNormal
	if told.Warning {
		eventType = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(v.object, nil, eventType, told.Reason, "Reconcile", "%s", conditions.Truncate(told.Message, conditions.MaxMessage))
}
