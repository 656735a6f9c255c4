// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

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

// searchPatience is how long the first search may take for each runtime. A runtime that hangs must not delay the objects of the other runtimes for longer.
const searchPatience = time.Second

// searchedRuntimes are the runtimes that can have the process of a vanished object.
var searchedRuntimes = []v1alpha1.RuntimeType{v1alpha1.RuntimeHost, v1alpha1.RuntimeTmux, v1alpha1.RuntimeDocker, v1alpha1.RuntimePod}

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
	if dropped && object.alive(ctx, key.Namespace) != nil { // not dropped: the last object is still present, or this reconciler has released it
		r.pruneVanished(ctx)
		r.stateCache.addVanished(key, object)
		r.stopVanished(object.uid)
	}
}

func (r *Reconciler) stopVanished(uid types.UID) {
	if r.OnVanished != nil {
		r.OnVanished(uid)
	}
}

// pruneVanished removes entries of processes that have exited. Only a new object with the same name would do so otherwise, and there may never be one. Each new
// entry checks two others, so the number of entries stays proportional to the number of such processes that are alive.
func (r *Reconciler) pruneVanished(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, searchPatience)
	defer cancel()
	for key, object := range r.stateCache.someVanished(2) {
		if object.alive(ctx, key.Namespace) == nil {
			r.stateCache.removeVanished(key, object.uid)
		}
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
		if alive := object.alive(ctx, key.Namespace); alive != nil {
			r.stopVanished(object.uid)
			return alive
		}
		r.stateCache.removeVanished(key, object.uid)
	}
	return nil
}

// searchVanished lists the processes of all runtimes once, because their objects may have vanished before this manager was started. If a runtime returns an
// error or does not respond within searchPatience, it is listed again for the next object of that runtime; objects of other runtimes do not wait for it.
func (r *Reconciler) searchVanished(ctx context.Context, own v1alpha1.RuntimeType) {
	r.stateCache.search.Do(func() {
		first, cancel := context.WithTimeout(context.WithoutCancel(ctx), searchPatience) // other reconciles wait for this search too
		defer cancel()
		var searching sync.WaitGroup
		for _, kind := range searchedRuntimes {
			searching.Go(func() { r.searchIn(first, kind) })
		}
		searching.Wait()
	})
	own = cmp.Or(own, v1alpha1.RuntimeHost)
	if _, failed := r.stateCache.unsearched.Load(own); failed {
		r.searchIn(ctx, own)
	}
}

// searchIn lists the processes of a runtime, and records those whose object does not exist. An object that exists is recorded as if it had been reconciled,
// so that this manager notices when it vanishes.
func (r *Reconciler) searchIn(ctx context.Context, kind v1alpha1.RuntimeType) {
	backend := r.Runtimes.For(kind)
	if backend.Capabilities().Disabled != "" {
		return
	}
	found, err := backend.List(ctx)
	for i := range found {
		if err == nil {
			err = r.sight(ctx, found[i], backend)
		}
	}
	if err != nil {
		logRuntimeError(ctx, err, "Cannot search for processes of deleted objects", "runtime", kind)
		r.stateCache.unsearched.Store(kind, true)
		return
	}
	r.stateCache.unsearched.Delete(kind)
}

func (r *Reconciler) sight(ctx context.Context, found facts.Incarnation, backend runtime.Runtime) error {
	resource, key := splitName(found.Name)
	if resource != r.Kind.Resource() || !found.MayBelongTo(key.Namespace) { // anyone can give a Pod in another namespace the name of an object
		return nil
	}
	object, is := r.Kind.New(), sighting{types.UID(found.UID), backend}
	switch err := r.Client.Get(ctx, key, object); {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read %s: %w", found.Name, err)
	case err == nil && object.GetUID() == is.uid:
		r.stateCache.meetFirst(key, is)
	default:
		r.stateCache.addVanished(key, is)
	}
	return nil
}

// alive returns a living incarnation of an object that was in a namespace, or nil. If the runtime returns an error, the phase of the incarnation is Unknown. An
// adopted process does not count: without an object, it is released and not stopped.
func (s sighting) alive(ctx context.Context, namespace string) *facts.Incarnation {
	if s.runtime == nil {
		return nil
	}
	found, err := s.runtime.Observe(ctx, s.uid)
	if err != nil {
		logRuntimeError(ctx, err, "Cannot determine whether the process of a deleted object still runs", "uid", s.uid)
		return &facts.Incarnation{UID: string(s.uid), Phase: facts.Unknown, Message: err.Error()}
	}
	for i := range found {
		if found[i].Alive() && !found[i].Adopted && found[i].MayBelongTo(namespace) {
			return &found[i]
		}
	}
	return nil
}

// logRuntimeError logs an error of a runtime. A runtime that is not there, such as Docker on most machines, is no error; objects that need it report that.
func logRuntimeError(ctx context.Context, err error, message string, keysAndValues ...any) {
	var unavailable *runtime.UnavailableError
	if errors.As(err, &unavailable) {
		ctrl.LoggerFrom(ctx).V(1).Info(message, append(keysAndValues, "cause", err.Error())...)
		return
	}
	ctrl.LoggerFrom(ctx).Error(err, message, keysAndValues...)
}

// splitName is the inverse of name.
func splitName(name string) (kind string, key types.NamespacedName) {
	kind, rest, _ := strings.Cut(name, "/")
	key.Namespace, key.Name, _ = strings.Cut(rest, "/")
	return kind, key
}
