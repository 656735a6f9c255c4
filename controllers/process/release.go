// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// release removes the finalizer once nothing of the object is left in the backend.
func (r *Reconciler) release(ctx context.Context, v *scope) error {
	if !v.step.Released || v.want != lifecycle.DesiredDeleted {
		return nil
	}
	if v.step.Action != lifecycle.Forget {
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
		if err := forgetInBackend(ctx, v); err != nil {
			return err
		}
	}
	if err := consistency.RemoveFinalizers(ctx, r.Client, v.object, "remove the finalizer", v1alpha1.FinalizerProcess); err != nil {
		return err
	}
	r.dropMemory(client.ObjectKeyFromObject(v.object), "")
	v.retries = nil
	return nil
}

// dropMemory drops what is held in memory about the last object of a key, and returns that object. It does nothing and returns false if there is none, or if
// the UID of the object is keep.
func (r *Reconciler) dropMemory(key types.NamespacedName, keep types.UID) (object sighting, dropped bool) {
	if object, dropped = r.stateCache.leave(key, keep); dropped {
		metricsCollector.forget(object.uid)
		r.Kind.Forget(object.uid)
		for _, backend := range r.Runtimes.All() {
			backend.SetNamespace(object.uid, "")
		}
	}
	return object, dropped
}

// expire deletes an object that has been at rest without a process for spec.ttlSecondsAfterStopped, after checking the object and the process again. It
// deletes only the version that it checked, so an object that a user changes in the meantime is kept.
func (r *Reconciler) expire(ctx context.Context, v *scope) error {
	ttl := v.spec().TTLSecondsAfterStopped
	if ttl == nil || v.step.Expires.IsZero() || v.want == lifecycle.DesiredDeleted {
		return nil
	}
	left := time.Duration(*ttl)*time.Second - v.timeline.Since(v.step.Expires, v.now)
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
