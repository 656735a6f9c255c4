// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
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

// sighting is an object that was reconciled, and the runtime of its process.
type sighting struct {
	uid     types.UID
	runtime runtime.Runtime
}

// vanished drops what is held in memory about a vanished object. If its process may still run, vanished requests its stop, and the next object with that key
// waits for it.
func (r *Reconciler) vanished(ctx context.Context, key types.NamespacedName, object sighting) {
	metricsCollector.forget(object.uid)
	r.Kind.Forget(object.uid)
	if alive := object.alive(ctx); alive != nil {
		r.stateCache.addVanished(key, object)
		r.stopVanished(object.uid)
	}
}

func (r *Reconciler) stopVanished(uid types.UID) {
	if r.OnVanished != nil {
		r.OnVanished(uid)
	}
}

// observeVanished sets Observed.Vanished. Only the first start of an object has to wait.
func (r *Reconciler) observeVanished(ctx context.Context, v *scope) error {
	starts := v.want == lifecycle.DesiredRunning || v.want == lifecycle.DesiredAsleep
	if !starts || v.start.Blocked != nil || v.object.GetProcessStatus().Incarnation != 0 || len(v.found) > 0 {
		return nil
	}
	if err := r.searchVanished(ctx, v); err != nil {
		return fmt.Errorf("search for processes of deleted objects: %w", err)
	}
	key := client.ObjectKeyFromObject(v.object)
	for _, object := range r.stateCache.vanishedAt(key) {
		if object.uid == v.object.GetUID() {
			continue
		}
		if v.observed.Vanished = object.alive(ctx); v.observed.Vanished != nil {
			r.stopVanished(object.uid)
			return nil
		}
		r.stateCache.removeVanished(key, object.uid)
	}
	return nil
}

// searchVanished searches the runtime of the object, once, for processes whose objects may have vanished before this manager was started. It does not check
// whether those objects exist: an existing object has no effect until another object has its name.
func (r *Reconciler) searchVanished(ctx context.Context, v *scope) error {
	if _, done := r.stateCache.searched.Load(v.traits.Runtime); done {
		return nil
	}
	found, err := v.runtime.List(ctx)
	if err != nil {
		return err
	}
	for i := range found {
		kind, key := splitName(found[i].Name)
		if kind == r.Kind.Resource() && found[i].Alive() && !found[i].Adopted {
			uid := types.UID(found[i].UID)
			v.runtime.SetNamespace(uid, key.Namespace) // the name of a Pod in another namespace is not genuine
			r.stateCache.addVanished(key, sighting{uid, v.runtime})
		}
	}
	r.stateCache.searched.Store(v.traits.Runtime, true)
	return nil
}

// alive returns a living incarnation of the object, or nil. If the runtime returns an error, the phase of the incarnation is Unknown. An adopted process does
// not count, because it is not stopped when its object is deleted.
func (s sighting) alive(ctx context.Context) *facts.Incarnation {
	found, err := s.runtime.Observe(ctx, s.uid)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot determine whether the process of a deleted object still runs", "uid", s.uid)
		return &facts.Incarnation{UID: string(s.uid), Phase: facts.Unknown, Message: err.Error()}
	}
	for i := range found {
		if found[i].Alive() && !found[i].Adopted {
			return &found[i]
		}
	}
	return nil
}

// splitName is the inverse of name.
func splitName(name string) (kind string, key types.NamespacedName) {
	kind, rest, _ := strings.Cut(name, "/")
	key.Namespace, key.Name, _ = strings.Cut(rest, "/")
	return kind, key
}
