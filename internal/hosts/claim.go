// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// Claim sets the label of this host on an object that has no such label yet. It is for kinds that run no processes themselves. It reports whether this manager
// serves the object. The functions in also may change other metadata of the object in the same write. err is the error of the write, which uses an optimistic lock.
func (h *Hosts) Claim(ctx context.Context, writer client.Client, object client.Object, also ...func(client.Object)) (serve bool, err error) {
	if h == nil {
		return true, nil
	}
	switch (lifecycle.HostClaim{Self: h.Self(), Label: object.GetLabels()[v1alpha1.LabelHost]}).Decide() {
	case lifecycle.HostServe:
		return true, nil
	case lifecycle.HostTake:
		before, ok := object.DeepCopyObject().(client.Object)
		if !ok {
			return false, nil
		}
		h.Label(object)
		for _, change := range also {
			change(object)
		}
		return true, writer.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	case lifecycle.HostMove, lifecycle.HostLeave:
	}
	return false, nil
}

// Label sets the label of this host on a new object whose process will run on this host.
func (h *Hosts) Label(object client.Object) {
	if h.Self() == "" {
		return
	}
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.LabelHost] = h.Self()
	object.SetLabels(labels)
}

// Same reports whether two objects can be on the same host. It returns false only if their labels name different hosts. Only objects on the same host
// can compete for a port or a session.
func Same(a, b client.Object) bool {
	one, other := a.GetLabels()[v1alpha1.LabelHost], b.GetLabels()[v1alpha1.LabelHost]
	return one == "" || other == "" || one == other
}
