// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package owner adds an owner reference to an object whose spec names an Instance, so that the object is deleted together with that Instance.
package owner

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// Retry is how soon to check again whether a missing Instance exists.
const Retry = 2 * time.Second

// Setter writes owner references. Client reads from a cache, Reader from the API server.
type Setter struct {
	Client client.Client
	Reader client.Reader
}

// Set makes the named Instance the owner of the object. It returns a Blocked if that Instance is missing, is being deleted, or has replaced an Instance of
// the same name that owned the object. It returns an error if a read or the write fails.
func (s Setter) Set(ctx context.Context, object process.Object, named *v1alpha1.LocalReference) (*lifecycle.Blocked, error) {
	if named == nil {
		return nil, nil //nolint:nilnil // nothing blocks
	}
	instance, err := s.instance(ctx, types.NamespacedName{Namespace: object.GetNamespace(), Name: named.Name})
	if apierrors.IsNotFound(err) {
		return missing("Instance %s does not exist in namespace %s; create it, or recreate this object without spec.instanceRef.",
			named.Name, object.GetNamespace()), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Instance of spec.instanceRef: %w", err)
	}
	if !instance.DeletionTimestamp.IsZero() {
		return missing("Instance %s is being deleted, and this object with it.", instance.Name), nil
	}
	for _, reference := range object.GetOwnerReferences() {
		if reference.Kind != "Instance" || reference.Name != instance.Name {
			continue
		}
		if reference.UID == instance.UID {
			return nil, nil //nolint:nilnil // nothing blocks
		}
		return missing("The Instance %s that owned this object was deleted, and a new one has its name. Recreate this object.",
			instance.Name), nil
	}
	return nil, s.write(ctx, object, instance)
}

// instance reads the Instance from the cache and falls back to the API server, because the Instance may be too new for the cache.
func (s Setter) instance(ctx context.Context, key types.NamespacedName) (*v1alpha1.Instance, error) {
	instance := &v1alpha1.Instance{}
	err := s.Client.Get(ctx, key, instance)
	if apierrors.IsNotFound(err) {
		err = s.Reader.Get(ctx, key, instance)
	}
	return instance, err
}

// write adds the owner reference to the stored object and leaves object unchanged. The object of the current reconcile is therefore older than the stored
// one. The reconcile detects this before it acts, and is repeated.
func (s Setter) write(ctx context.Context, object process.Object, instance *v1alpha1.Instance) error {
	before := object.DeepCopyObject().(client.Object) // a copy has the type of its original
	owned := object.DeepCopyObject().(client.Object)
	err := controllerutil.SetControllerReference(instance, owned, s.Client.Scheme(), controllerutil.WithBlockOwnerDeletion(false))
	var controlled *controllerutil.AlreadyOwnedError
	if errors.As(err, &controlled) {
		err = controllerutil.SetOwnerReference(instance, owned, s.Client.Scheme(), controllerutil.WithBlockOwnerDeletion(false))
	}
	if err != nil {
		return fmt.Errorf("set Instance %s as the owner: %w", instance.Name, err)
	}
	err = s.Client.Patch(ctx, owned, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("set Instance %s as the owner: %w", instance.Name, err)
	}
	return nil
}

func missing(format string, args ...any) *lifecycle.Blocked {
	return &lifecycle.Blocked{Reason: v1alpha1.ReasonInstanceMissing, Message: fmt.Sprintf(format, args...), Retry: Retry}
}
