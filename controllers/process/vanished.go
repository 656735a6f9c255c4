// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// An object has vanished if it was deleted although its reconciler had not removed the process finalizer, so its process may still run. There are two causes:
// a user removed the finalizer, or the finalizer was added while the API server was already deleting the object (see preStart). A new object with the same
// name must not start until that process has exited.

// sighting is an object that was reconciled, and the runtime of its process; nil if no process was started.
type sighting struct {
	uid     types.UID
	runtime runtime.Runtime
}

// noticeVanished checks whether the last object of a key has vanished; now is the present object, or nil. If the process of a vanished object may still run,
// noticeVanished requests that it is stopped, and the next object with that key waits until it has exited.
func (r *Reconciler) noticeVanished(ctx context.Context, key types.NamespacedName, now Object) {
	var present types.UID
	if now != nil {
		present = now.GetUID()
	}
	object, dropped := r.dropMemory(key, present)
	if dropped && object.alive(ctx) != nil { // not dropped: the last object is still present, or this reconciler has released it
		r.stateCache.addVanished(key, object)
		r.stopVanished(object.uid)
	}
}

func (r *Reconciler) stopVanished(uid types.UID) {
	if r.OnVanished != nil {
		r.OnVanished(uid)
	}
}

// observeVanished returns a living process of a vanished object that had the name of the object, or nil. Only the first start of an object has to wait.
func (r *Reconciler) observeVanished(ctx context.Context, v *scope) *facts.Incarnation {
	starts := v.want == lifecycle.DesiredRunning || v.want == lifecycle.DesiredAsleep
	if !starts || v.object.GetProcessStatus().Incarnation != 0 || len(v.found) > 0 {
		return nil
	}
	r.searchVanished(ctx, v.traits.Runtime)
	key := client.ObjectKeyFromObject(v.object)
	for _, object := range r.stateCache.vanishedAt(key) {
		if object.uid == v.object.GetUID() {
			continue
		}
		object.runtime.SetNamespace(object.uid, key.Namespace) // anyone can give a Pod in another namespace the name of this object
		if alive := object.alive(ctx); alive != nil {
			r.stopVanished(object.uid)
			return alive
		}
		r.stateCache.removeVanished(key, object.uid)
	}
	return nil
}

// searchVanished lists the processes of all runtimes once, because their objects may have vanished before this manager was started. It does not check whether
// those objects exist: only another object with the same name uses the result. If a runtime returns an error, it is listed again for the next object
// of that runtime; objects of other runtimes do not wait for it.
func (r *Reconciler) searchVanished(ctx context.Context, own v1alpha1.RuntimeType) {
	own = cmp.Or(own, v1alpha1.RuntimeHost)
	for _, kind := range []v1alpha1.RuntimeType{v1alpha1.RuntimeHost, v1alpha1.RuntimeTmux, v1alpha1.RuntimeDocker, v1alpha1.RuntimePod} {
		backend := r.Runtimes.For(kind)
		failed, searched := r.stateCache.searched.Load(kind)
		again := failed == true && kind == own
		if backend.Capabilities().Disabled != "" || searched && !again {
			continue
		}
		found, err := backend.List(ctx)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot search for processes of deleted objects", "runtime", kind)
		}
		for i := range found {
			if resource, key := splitName(found[i].Name); resource == r.Kind.Resource() {
				r.stateCache.addVanished(key, sighting{types.UID(found[i].UID), backend})
			}
		}
		r.stateCache.searched.Store(kind, err != nil)
	}
}

// alive returns a living incarnation of the object, or nil. If the runtime returns an error, the phase of the incarnation is Unknown. An adopted process does
// not count: without an object, it is released and not stopped.
func (s sighting) alive(ctx context.Context) *facts.Incarnation {
	if s.runtime == nil {
		return nil
	}
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
