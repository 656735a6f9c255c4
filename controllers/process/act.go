// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/mergepatch"
	"github.com/berth-dev/berth/internal/runtime"
)

// decide computes the next step with lifecycle.Next.
func (r *Reconciler) decide(ctx context.Context, v *scope) error {
	record := *v.object.GetProcessStatus().DeepCopy()
	desired := v.desired(r.Kind.Resource())
	v.observed.LastError = r.stateCache.lastError(v.object.GetUID())
	v.observed.Program = v.checkProgram()
	v.observed.Backlog = r.Restarts.backlog(v.object.GetNamespace(), v.now)
	v.step = lifecycle.Next(desired, record, v.observed, v.now)
	if v.step.Action == lifecycle.Recheck {
		// The runtime reports a newer incarnation than the status records. Either the cached status is stale, or later statuses were lost, for example because
		// the cluster was restored from a backup. A read from the API server determines which.
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
		v.observed.Confirmed = true
		v.step = lifecycle.Next(desired, record, v.observed, v.now)
	}
	if v.step.Action == lifecycle.Recheck {
		return consistency.ErrStale
	}
	if v.step.PlannedRestart {
		r.Restarts.plan(v.object.GetNamespace(), v.now)
	}
	*v.object.GetProcessStatus() = v.step.Status
	if deriver, derives := r.Kind.(StatusDeriver); derives && !v.step.PreStart {
		deriver.DeriveStatus(v.object, v.base, &v.step, v.now)
	}
	v.retries = append(v.retries, v.step.Requeue)
	if v.plan.Blocked != nil {
		v.retries = append(v.retries, v.plan.Blocked.Retry)
	}
	return nil
}

// write writes the decided status to the API server, in one patch that fails if the object has changed in the meantime. If the status is unchanged, it
// writes nothing.
func (r *Reconciler) write(ctx context.Context, v *scope) error {
	if equality.Semantic.DeepEqual(v.base, v.object) { // the usual case, and much cheaper than a patch
		r.measure(v)
		return nil
	}
	patch, err := mergepatch.Status(v.base, v.object)
	if err != nil {
		return fmt.Errorf("compare the status: %w", err)
	}
	if patch == nil {
		r.measure(v)
		return nil
	}
	incarnation := v.object.GetProcessStatus().Incarnation
	err = r.keepResolved(v.object, func() error { return r.Client.Status().Patch(ctx, v.object, patch) })
	if err != nil {
		return consistency.StaleOr(err, "write the status")
	}
	v.written = true
	r.stateCache.writes.Record(v.object)
	ctrl.LoggerFrom(ctx).V(1).Info("Wrote the status", "action", v.step.Action, "incarnation", incarnation)
	r.emitEvents(v)
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

// act carries out the action of the step. If this reconcile wrote nothing, the decision may rest on a stale cache, so act confirms it first.
func (r *Reconciler) act(ctx context.Context, v *scope) error {
	if observer, observes := r.Kind.(ActionObserver); observes {
		if err := observer.BeforeAction(ctx, v.object, v.base, v.step, v.written); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot carry out an action that the status records as done")
		}
	}
	r.acknowledgeExit(ctx, v)
	if v.step.Action == lifecycle.None || v.step.Action == "" {
		return nil
	}
	if !v.written {
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
	}
	return r.carryOut(ctx, v)
}

// carryOut carries out the action and records a failure.
func (r *Reconciler) carryOut(ctx context.Context, v *scope) error {
	err := r.do(ctx, v)
	if errors.Is(err, consistency.ErrStale) || errors.Is(err, runtime.ErrStale) || errors.Is(err, runtime.ErrOldAlive) {
		return consistency.ErrStale
	}
	if err == nil {
		return nil
	}
	first := r.stateCache.recordFailure(v.object.GetUID(), conditions.Truncate(err.Error(), conditions.MaxMessage))
	var refused *facts.StartError
	if errors.As(err, &refused) && first {
		return consistency.ErrStale // the next reconcile determines the cause and reports it in a condition
	}
	if first {
		r.Recorder.Eventf(v.object, nil, corev1.EventTypeWarning, v1alpha1.ReasonRuntimeUnavailable, string(v.step.Action), "%s", conditions.Truncate(err.Error(), conditions.MaxMessage))
	}
	return fmt.Errorf("%s incarnation %d: %w", v.step.Action, v.step.Incarnation, err)
}

// settleRetry is how long to wait before calling Settle again after an error.
const settleRetry = 5 * time.Second

// acknowledgeExit lets the backend remove what it kept until the exit was recorded. Nothing depends on the result.
func (r *Reconciler) acknowledgeExit(ctx context.Context, v *scope) {
	end := v.object.GetProcessStatus().LastExit
	if end == nil {
		return
	}
	if err := v.runtime.Settle(ctx, v.object.GetUID(), end.Incarnation); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot release the resources of an ended incarnation; retrying")
		v.retries = append(v.retries, settleRetry)
	}
}

func (r *Reconciler) do(ctx context.Context, v *scope) error {
	uid, incarnation := v.object.GetUID(), v.step.Incarnation
	switch v.step.Action {
	case lifecycle.StartProcess:
		if forbidden, err := r.forbiddenNow(ctx, v.object); err != nil {
			return err
		} else if forbidden {
			return consistency.ErrStale // the decision was based on a stale namespace in the cache
		}
		process := v.plan.Process
		process.Incarnation = incarnation
		process.Origin = facts.Origin{SpecHash: v.hash, RestartToken: v.object.GetProcessSpec().RestartToken}
		err := v.runtime.Start(ctx, process)
		if err == nil {
			countStart(r.Kind.Resource(), v)
		}
		return err
	case lifecycle.StopProcess:
		return v.runtime.Stop(ctx, uid, incarnation)
	case lifecycle.KillProcess:
		return v.runtime.Kill(ctx, uid, incarnation)
	case lifecycle.Forget:
		return forget(ctx, v)
	default:
		return fmt.Errorf("unknown action %q", v.step.Action)
	}
}

// forget removes every trace of an object from the backend. If the process should keep running, forget releases it first.
func forget(ctx context.Context, v *scope) error {
	uid := v.object.GetUID()
	if adoption := v.runtime.Capabilities().Adoption; adoption != nil && v.orphan {
		if err := adoption.Release(ctx, uid); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return fmt.Errorf("release the adopted process: %w", err)
		}
	}
	if err := v.runtime.Forget(ctx, uid); err != nil {
		return fmt.Errorf("remove the records of the runtime: %w", err)
	}
	return nil
}

// confirm returns ErrStale unless the API server has the same version of the object.
func (r *Reconciler) confirm(ctx context.Context, v *scope) error {
	live := &metav1.PartialObjectMetadata{}
	gvk, err := r.Client.GroupVersionKindFor(v.object)
	if err != nil {
		return fmt.Errorf("find the kind: %w", err)
	}
	live.SetGroupVersionKind(gvk)
	return consistency.Confirm(ctx, r.Reader, v.object, live)
}

// release removes the finalizer once nothing of the object is left in the backend.
func (r *Reconciler) release(ctx context.Context, v *scope) error {
	if !v.step.Released || v.want != lifecycle.DesiredDeleted {
		return nil
	}
	if v.step.Action != lifecycle.Forget {
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
		if err := forget(ctx, v); err != nil {
			return err
		}
	}
	before := copyOf(v.object)
	controllerutil.RemoveFinalizer(v.object, v1alpha1.FinalizerProcess)
	err := r.Client.Patch(ctx, v.object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsNotFound(err) {
		return consistency.StaleOr(err, "remove the finalizer")
	}
	r.forget(v.object)
	v.retries = nil
	return nil
}

// forget drops what is held in memory about a deleted object.
func (r *Reconciler) forget(object Object) {
	r.stateCache.leave(client.ObjectKeyFromObject(object))
	metricsCollector.forget(object.GetUID())
	r.Kind.Forget(object.GetUID())
}

// expire deletes an object that has been at rest without a process for spec.ttlSecondsAfterStopped, after checking the object and the process again. It
// deletes only the version that it checked, so an object that a user changes in the meantime is kept.
func (r *Reconciler) expire(ctx context.Context, v *scope) error {
	ttl := v.object.GetProcessSpec().TTLSecondsAfterStopped
	if ttl == nil || v.step.Expires.IsZero() || v.want == lifecycle.DesiredDeleted {
		return nil
	}
	left := v.step.Expires.Add(time.Duration(*ttl) * time.Second).Sub(v.now)
	if left > 0 {
		v.retries = append(v.retries, left)
		return nil
	}
	if err := r.confirm(ctx, v); err != nil {
		return err
	}
	if err := stillGone(ctx, v); err != nil {
		return err
	}
	uid, version := v.object.GetUID(), v.object.GetResourceVersion()
	err := r.Client.Delete(ctx, v.object, client.Preconditions{UID: &uid, ResourceVersion: &version})
	if err != nil {
		return consistency.StaleOr(err, "delete the object after ttlSecondsAfterStopped")
	}
	return nil
}

// stillGone checks again that nothing is running and returns ErrStale if something is. A process may have been started outside Berth, for example a
// container. Deleting the object would stop that process although no user requested a stop.
func stillGone(ctx context.Context, v *scope) error {
	found, err := v.runtime.Observe(ctx, v.object.GetUID())
	if err != nil {
		return fmt.Errorf("check again whether a process is running: %w", err)
	}
	for i := range found {
		if found[i].Alive() {
			return consistency.ErrStale
		}
	}
	return nil
}

// isTrue reports whether a condition is True.
func isTrue(object Object, conditionType string) bool {
	return meta.IsStatusConditionTrue(object.GetProcessStatus().Conditions, conditionType)
}
