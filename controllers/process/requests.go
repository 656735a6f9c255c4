// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// Requests returns a request for each object that reader lists with the given options. If the list fails, it logs the error and returns none.
func Requests(ctx context.Context, reader client.Reader, list client.ObjectList, options ...client.ListOption) (requests []ctrl.Request) {
	err := reader.List(ctx, list, options...)
	if err == nil {
		err = meta.EachListItem(list, func(item apiruntime.Object) error {
			object, err := meta.Accessor(item)
			if err == nil {
				requests = append(requests, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}})
			}
			return err
		})
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list the objects that an event may concern")
	}
	return requests
}

// EnqueueAfter returns a handler that enqueues the key of an event after a delay, so that many events within that time cause one reconcile. keyOf returns the
// key; ok is false if the event concerns no object.
func EnqueueAfter(delay time.Duration, keyOf func(client.Object) (key types.NamespacedName, ok bool)) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]
	enqueue := func(object client.Object, q queue) {
		if key, ok := keyOf(object); ok {
			q.AddAfter(ctrl.Request{NamespacedName: key}, delay)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueue(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { enqueue(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { enqueue(e.Object, q) },
	}
}
