// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// decide computes the next step with lifecycle.Next.
func (r *Reconciler) decide(ctx context.Context, v *scope) error {
	record := *v.object.GetProcessStatus().DeepCopy()
	desired := v.desired(r.Kind)
	v.observed.LastError = r.stateCache.lastError(v.object.GetUID())
	v.observed.Program = v.checkProgram()
	v.observed.Vanished = r.observeVanished(ctx, v)
	v.observed.Timeline = v.timeline
	v.observed.Backlog = r.Restarts.backlog(v.object.GetNamespace(), v.timeline.Steady(v.now))
	if err := v.next(ctx, desired, record); err != nil {
		return err
	}
	if v.step.Action == lifecycle.Recheck {
		// The runtime reports a newer incarnation than the status records. Either the cached status is stale, or later statuses were lost, for example because
		// the cluster was restored from a backup. A read from the API server determines which.
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
		v.observed.Confirmed = true
		if err := v.next(ctx, desired, record); err != nil {
			return err
		}
	}
	if v.step.Action == lifecycle.Recheck {
		return consistency.ErrStale
	}
	*v.object.GetProcessStatus() = v.step.Status
	v.retries = append(v.retries, v.step.Requeue)
	if v.start.Blocked != nil {
		v.retries = append(v.retries, v.start.Blocked.Retry)
	}
	return nil
}

// next computes the next step. If that step stops a process for a restart that the spec requests, next checks first whether the process could be started again.
func (v *scope) next(ctx context.Context, desired lifecycle.Desired, record v1alpha1.ProcessStatus) error {
	v.step = lifecycle.Next(desired, record, v.observed, v.now)
	if !v.step.CheckStart {
		return nil
	}
	failure, err := v.checkStart(ctx)
	if err != nil {
		return err
	}
	v.observed.StartChecked, v.observed.StartFailure = true, failure
	v.step = lifecycle.Next(desired, record, v.observed, v.now)
	return nil
}

// derive lets the kind complete the status from the decision. The status of the kind must not be derived from the record: the write of a status causes no
// reconcile, so a part of the status that follows from the decided record would be missing until an unrelated event.
func (r *Reconciler) derive(ctx context.Context, v *scope) error {
	if v.step.PreStart || v.step.Postponed {
		return nil // the status is the one that was read, and is not written
	}
	if !v.programRuns() {
		v.retries = append(v.retries, r.Kind.ObserveStopped(ctx, v.object))
	}
	if deriver, derives := r.Kind.(StatusDeriver); derives {
		v.step.Events = append(v.step.Events, deriver.DeriveStatus(v.object, v.base, v.step, v.now)...)
	}
	return nil
}
