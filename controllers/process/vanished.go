// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// An object has vanished if it was deleted although its reconciler had not removed the process finalizer, so its process may still run. There are two causes:
// a user removed the finalizer, or the finalizer was added while the API server was already deleting the object (see preStart). A new object with the same
// name must not start until that process has exited.

// vanished drops what is held in memory about an object that has vanished. If a process of the object may still run, the next object with that key waits for
// it, and the manager is asked to stop it.
func (r *Reconciler) vanished(ctx context.Context, key types.NamespacedName, uid types.UID) {
	metricsCollector.forget(uid)
	r.Kind.Forget(uid)
	alive, err := r.alive(ctx, uid)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot determine whether the process of a deleted object still runs; the next object with its name checks again", "uid", uid)
	} else if alive == nil {
		return
	}
	r.stateCache.addVanished(key, uid)
	if r.Orphaned != nil {
		r.Orphaned(uid)
	}
}

// predecessor returns a living process of a vanished object that had the name of the object, or nil. Only the first start of an object has to wait for it.
func (r *Reconciler) predecessor(ctx context.Context, v *scope) (*facts.Incarnation, error) {
	starts := v.want == lifecycle.DesiredRunning || v.want == lifecycle.DesiredAsleep
	if !starts || v.object.GetProcessStatus().Incarnation != 0 || len(v.found) > 0 {
		return nil, nil
	}
	if err := r.findVanished(ctx); err != nil {
		return nil, fmt.Errorf("search for processes of deleted objects: %w", err)
	}
	key := client.ObjectKeyFromObject(v.object)
	for _, uid := range r.stateCache.vanishedAt(key) {
		if uid == v.object.GetUID() {
			continue
		}
		alive, err := r.alive(ctx, uid)
		if alive != nil || err != nil {
			return alive, err
		}
		r.stateCache.removeVanished(key, uid)
	}
	return nil, nil
}

// findVanished searches the runtimes once for processes whose objects may have vanished before this manager was started. It does not check whether the objects
// exist, because a process of an existing object only matters to a later object with the same name.
func (r *Reconciler) findVanished(ctx context.Context) error {
	if r.stateCache.searched.Load() {
		return nil
	}
	found, err := r.Runtimes.List(ctx)
	if err != nil {
		return err
	}
	for i := range found {
		kind, key := splitName(found[i].Name)
		if kind == r.Kind.Resource() && found[i].Alive() && !found[i].Adopted {
			r.stateCache.addVanished(key, types.UID(found[i].UID))
		}
	}
	r.stateCache.searched.Store(true)
	return nil
}

// alive returns a living incarnation of a UID in any backend, or nil. An adopted one does not count, because it existed before its object.
func (r *Reconciler) alive(ctx context.Context, uid types.UID) (*facts.Incarnation, error) {
	backend, err := r.Runtimes.Find(ctx, uid)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found, err := backend.Observe(ctx, uid)
	for i := range found {
		if found[i].Alive() && !found[i].Adopted {
			return &found[i], err
		}
	}
	return nil, err
}

// splitName is the inverse of name.
func splitName(name string) (kind string, key types.NamespacedName) {
	kind, rest, _ := strings.Cut(name, "/")
	key.Namespace, key.Name, _ = strings.Cut(rest, "/")
	return kind, key
}
