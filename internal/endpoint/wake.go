// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// wakeWithin bounds how long a request waits for a sleeping Instance to start.
const wakeWithin = time.Minute

// Instances is a cache of the Instances that reports their changes.
type Instances interface {
	client.Reader
	GetInformer(ctx context.Context, object client.Object, opts ...cache.InformerGetOption) (cache.Informer, error)
}

// awake registers a user of the Instance and waits until a sleeping Instance has started. It does not start an Instance that is stopped for another reason. The
// caller must call leave.
func (s *Server) awake(ctx context.Context, t target) (leave func(), refused *refusal) {
	instance, is := t.object.(*v1alpha1.Instance)
	if !is {
		return func() {}, nil
	}
	changed, remove := s.waiting.add(instance.UID)
	defer remove()
	leave = s.opts.Presence.Use(instance.UID) // from here until leave, the Instance does not fall asleep
	if !s.dozes(instance) {
		return leave, nil
	}
	if t.seen.Incarnation != 0 {
		return leave, refuse(http.StatusConflict, "incarnation %d of %s has ended, because it was idle: see its conditions with berth status", t.seen.Incarnation, t)
	}
	ctx, cancel := context.WithTimeout(ctx, wakeWithin)
	defer cancel()
	for {
		if woken, refused := s.woken(ctx, t, instance); woken || refused != nil {
			return leave, refused
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return leave, refuse(http.StatusConflict, "%s is idle and did not start again: see its conditions with berth status", t)
		}
	}
}

// woken reports whether an Instance has started. It is called after each change and reads the cache, so that waiting requests cause no requests to the API
// server. It ignores an object that is older than before, which the API server has returned at the beginning of the request.
func (s *Server) woken(ctx context.Context, t target, before *v1alpha1.Instance) (bool, *refusal) {
	key, now := client.ObjectKeyFromObject(before), &v1alpha1.Instance{}
	if err := s.opts.Instances.Get(ctx, key, now); err == nil && now.UID == before.UID {
		order, err := resourceversion.CompareResourceVersion(now.ResourceVersion, before.ResourceVersion)
		return (err != nil || order >= 0) && !s.dozes(now) && settled(now), nil
	}
	// The cache may not contain the object yet.
	if err := s.opts.Reader.Get(ctx, key, now); apierrors.IsNotFound(err) || err == nil && now.UID != before.UID {
		return false, refuse(http.StatusNotFound, "%s was deleted", t)
	}
	return false, nil
}

// waiting are the requests that wait for a change of an Instance.
type waiting struct {
	mu       sync.Mutex
	requests map[chan struct{}]types.UID
}

// follow reports the changes of Instances from now on.
func (w *waiting) follow(instances Instances) error {
	// The cache need not be synced, because its first objects are reported too.
	informer, err := instances.GetInformer(context.Background(), &v1alpha1.Instance{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch Instances for the endpoint: %w", err)
	}
	told := func(object any) {
		if last, gone := object.(toolscache.DeletedFinalStateUnknown); gone {
			object = last.Obj
		}
		if instance, is := object.(*v1alpha1.Instance); is {
			w.notify(instance.UID)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: told, UpdateFunc: func(_, now any) { told(now) }, DeleteFunc: told,
	})
	return err
}

// add returns a channel that receives a value after a change of an Instance, until remove is called.
func (w *waiting) add(uid types.UID) (changed <-chan struct{}, remove func()) {
	request := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests[request] = uid
	return request, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.requests, request)
	}
}

// notify wakes the requests that wait for an Instance.
func (w *waiting) notify(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for request, waitsFor := range w.requests {
		if waitsFor != uid {
			continue
		}
		select {
		case request <- struct{}{}:
		default: // the request has not handled an earlier change yet
		}
	}
}

// dozes reports whether an Instance is asleep or falling asleep.
func (s *Server) dozes(instance *v1alpha1.Instance) bool {
	return s.opts.Presence.Resting(instance.UID) || lifecycle.Asleep(&instance.Status.ProcessStatus)
}

// settled reports whether an Instance is ready, stalled or being deleted.
func settled(instance *v1alpha1.Instance) bool {
	conditions := instance.Status.Conditions
	return !instance.DeletionTimestamp.IsZero() || meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady) || meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionStalled)
}
