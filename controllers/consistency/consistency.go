// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package consistency keeps reconcilers from acting on stale reads. The cache of a manager may be behind the manager's own writes, and behind those of
// other clients.
//
// controller-runtime has an option that lets a reconciler read its own writes (EnableReadYourWritesConsistency). Berth does not use that option, because it
// is experimental, does not support several namespaces (--namespaces), and makes each List wait for all pending writes of the kind.
package consistency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// ErrStale ends a reconcile whose decision was based on a stale read. The reconcile takes no action, and is repeated after RetryAfter.
var ErrStale = errors.New("the cached object is older than the stored one")

// RetryAfter is how long to wait for the cache after ErrStale. The cache needs milliseconds.
const RetryAfter = 20 * time.Millisecond

// StaleOr returns ErrStale if err shows that the object was stale: a conflict, or the object no longer exists. It wraps any other error with the operation
// that failed.
func StaleOr(err error, doing string) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return ErrStale
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Result is the result of a reconcile that failed with err: a repetition soon if a read was stale, otherwise the error with the name of the object.
func Result(name string, err error) (reconcile.Result, error) {
	if errors.Is(err, ErrStale) {
		return reconcile.Result{RequeueAfter: RetryAfter}, nil
	}
	return reconcile.Result{}, fmt.Errorf("%s: %w", name, err)
}

// WriteStatus writes the status of object in one patch, if it differs from that of base. It returns ErrStale if the stored object is not base anymore.
func WriteStatus(ctx context.Context, writer client.StatusClient, base, object client.Object) (written bool, err error) {
	if equality.Semantic.DeepEqual(base, object) { // the usual case, and much cheaper than a patch
		return false, nil
	}
	patch, err := statusPatch(base, object)
	if patch == nil || err != nil {
		return false, err
	}
	if err := writer.Status().Patch(ctx, object, patch); err != nil {
		return false, StaleOr(err, "write the status")
	}
	return true, nil
}

// Patch writes the differences between base and object, except those of the status. It returns ErrStale if the stored object is not base anymore, and wraps
// any other error with the operation that failed.
func Patch(ctx context.Context, writer client.Writer, base, object client.Object, doing string) error {
	if err := writer.Patch(ctx, object, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return StaleOr(err, doing)
	}
	return nil
}

// RemoveFinalizers removes finalizers from object, which may be gone. It returns ErrStale if the stored object is not object anymore, and wraps any other
// error with the operation that failed. It changes object even if it returns an error: read the object again before using its finalizers.
func RemoveFinalizers(ctx context.Context, writer client.Writer, object client.Object, doing string, finalizers ...string) error {
	base := object.DeepCopyObject().(client.Object) // a copy has the type of its original
	for _, finalizer := range finalizers {
		controllerutil.RemoveFinalizer(object, finalizer)
	}
	err := writer.Patch(ctx, object, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsNotFound(err) {
		return StaleOr(err, doing)
	}
	return nil
}

// Confirm reads the object from the API server, not the cache, into live. It returns ErrStale if the object no longer exists, or if live has another UID or
// resource version than object.
func Confirm(ctx context.Context, reader client.Reader, object, live client.Object) error {
	if err := reader.Get(ctx, client.ObjectKeyFromObject(object), live); err != nil {
		return StaleOr(err, "confirm that the object is unchanged")
	}
	if live.GetUID() != object.GetUID() || live.GetResourceVersion() != object.GetResourceVersion() {
		return ErrStale
	}
	return nil
}

// Writes holds the resource version of the last write of this process to each object of one kind. If a record is lost, the only consequence is that a write
// may fail with a conflict. The zero value is ready to use.
type Writes struct {
	mu   sync.Mutex
	last map[types.NamespacedName]version
}

type version struct {
	uid     types.UID
	version string
}

// Read returns the object of a key, or nil if there is none. It reads from the API server, not the cache, if the cache does not have the object or has not seen
// the last write of this process.
func Read[T any, P interface {
	*T
	client.Object
}](ctx context.Context, cache, live client.Reader, writes *Writes, key types.NamespacedName) (P, error) {
	object := P(new(T))
	err := cache.Get(ctx, key, object)
	if err == nil && writes.Behind(object) || apierrors.IsNotFound(err) {
		object = P(new(T))
		err = live.Get(ctx, key, object)
	}
	if apierrors.IsNotFound(err) {
		writes.Forget(key)
		return nil, nil
	}
	return object, err
}

// Record stores the resource version that a write of this process created.
func (w *Writes) Record(object client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[types.NamespacedName]version{}
	}
	w.last[client.ObjectKeyFromObject(object)] = version{object.GetUID(), object.GetResourceVersion()}
}

// Behind reports whether the object is older than the last write of this process to it.
func (w *Writes) Behind(object client.Object) bool {
	written := w.of(object)
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), written)
	return written != "" && err == nil && order < 0
}

// IsLast reports whether the object has the resource version that the last write of this process created.
func (w *Writes) IsLast(object client.Object) bool {
	written := w.of(object)
	return written != "" && written == object.GetResourceVersion()
}

// Forget removes the record of a deleted object.
func (w *Writes) Forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, key)
}

// of returns the version of the last write to the object; empty if there was none.
func (w *Writes) of(object client.Object) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.last[client.ObjectKeyFromObject(object)]
	if last.uid != object.GetUID() {
		return ""
	}
	return last.version
}
