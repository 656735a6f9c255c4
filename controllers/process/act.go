// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// act carries out the action of the step. If this reconcile wrote nothing, the decision may be based on a stale cache, so act first confirms that the
// object is unchanged.
func (r *Reconciler) act(ctx context.Context, v *scope) error {
	r.beforeAction(ctx, v)
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

// beforeAction lets the kind act on the decision.
func (r *Reconciler) beforeAction(ctx context.Context, v *scope) {
	if observer, observes := r.Kind.(ActionObserver); observes {
		if err := observer.BeforeAction(ctx, v.object, v.base, v.step, v.written); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot carry out an action that the status records as done")
		}
	}
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
		r.Recorder.Eventf(v.object, nil, corev1.EventTypeWarning, v1alpha1.ReasonRuntimeUnavailable, string(v.step.Action), "%s", eventMessage(err))
	}
	return fmt.Errorf("%s incarnation %d: %w", v.step.Action, v.step.Incarnation, err)
}

// eventMessage returns an error as the message of an event.
func eventMessage(err error) string {
	return conditions.Truncate(conditions.Sentence(err.Error()), conditions.MaxMessage)
}

// releaseRetry is how long to wait before calling ReleaseExited again after an error.
const releaseRetry = 5 * time.Second

// acknowledgeExit lets the backend remove what it kept until the exit was recorded. Nothing depends on the result.
func (r *Reconciler) acknowledgeExit(ctx context.Context, v *scope) {
	end := v.object.GetProcessStatus().LastExit
	if end == nil {
		return
	}
	if err := v.runtime.ReleaseExited(ctx, v.object.GetUID(), end.Incarnation); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot release the resources of an ended incarnation; retrying")
		v.retries = append(v.retries, releaseRetry)
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
		process, blocked := v.program(v.step.SessionStart, incarnation)
		if blocked != nil {
			return &facts.StartError{Reason: blocked.Reason, Message: blocked.Message}
		}
		process.Origin = facts.Origin{SpecHash: v.hash, RestartToken: cmp.Or(v.spec().RestartToken, v.object.GetProcessStatus().ObservedRestartToken), SessionStart: string(v.step.SessionStart), ResumeHash: v.resumeHash}
		r.stateCache.setRuntime(v.object, v.runtime)
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
		return forgetInBackend(ctx, v)
	default:
		return fmt.Errorf("unknown action %q", v.step.Action)
	}
}

// forgetInBackend removes every trace of an object from the backend. If the process should keep running, the backend releases it first.
func forgetInBackend(ctx context.Context, v *scope) error {
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
