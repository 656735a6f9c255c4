// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// instanceRetry is how soon to look again for an Instance that is not there.
const instanceRetry = 2 * time.Second

// Prepare gives the server its port and its owner.
func (k *Kind) Prepare(ctx context.Context, object process.Object, current *runtime.Incarnation, plan *process.Plan) error {
	dev := devServer(object)
	plan.Probed = true
	m := k.memory(dev.UID)
	m.plan = plan
	if current == nil {
		k.noteLogEnd(ctx, dev.UID, m)
	}
	if plan.Blocked == nil {
		blocked, err := k.own(ctx, dev)
		if err != nil {
			return err
		}
		plan.Blocked = blocked
	}
	ports, blocked, err := k.assign(ctx, dev, current, plan.Blocked != nil)
	if err != nil {
		return err
	}
	if plan.Blocked == nil {
		plan.Blocked = blocked
	}
	plan.Variables = variables(dev, cmp.Or(ports.own(), dev.Status.Port))
	plan.Fingerprint = []string{"port=" + strconv.Itoa(int(ports.public))}
	if ports.proxied {
		plan.Fingerprint = append(plan.Fingerprint, "proxy") // behind it the port of the program is nobody's business
	}
	return nil
}

// variables are what the server finds in its environment: its port, and what keeps tools from opening a browser and from holding output back.
func variables(dev *v1alpha1.DevServer, port int32) map[string]string {
	given := map[string]string{"PORT": strconv.Itoa(int(port))}
	for name, value := range map[string]string{"BROWSER": "none", "PYTHONUNBUFFERED": "1"} {
		set := slices.ContainsFunc(dev.Spec.Process.Env, func(env v1alpha1.EnvVar) bool { return env.Name == name })
		if !set {
			given[name] = value
		}
	}
	return given
}

// own makes the Instance of spec.instanceRef the controller of this object, so that it goes with it.
func (k *Kind) own(ctx context.Context, dev *v1alpha1.DevServer) (*lifecycle.Blocked, error) {
	if dev.Spec.InstanceRef == nil {
		return nil, nil //nolint:nilnil // nothing blocks
	}
	instance, err := k.instance(ctx, types.NamespacedName{Namespace: dev.Namespace, Name: dev.Spec.InstanceRef.Name})
	if apierrors.IsNotFound(err) {
		return instanceMissing("Instance %s does not exist in namespace %s; create it, or create this object anew without spec.instanceRef",
			dev.Spec.InstanceRef.Name, dev.Namespace), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the instance of spec.instanceRef: %w", err)
	}
	if !instance.DeletionTimestamp.IsZero() {
		return instanceMissing("Instance %s is being deleted, and this object with it", instance.Name), nil
	}
	for _, reference := range dev.OwnerReferences {
		if reference.Kind != "Instance" || reference.Name != instance.Name {
			continue
		}
		if reference.UID == instance.UID {
			return nil, nil //nolint:nilnil // nothing blocks
		}
		return instanceMissing("the Instance %s that this object belonged to was deleted, and a new one has its name; create this object anew",
			instance.Name), nil
	}
	return nil, k.setOwner(ctx, dev, instance)
}

// instance reads from the cache, and past it when it is not there: it may have been created a moment ago.
func (k *Kind) instance(ctx context.Context, key types.NamespacedName) (*v1alpha1.Instance, error) {
	instance := &v1alpha1.Instance{}
	err := k.client.Get(ctx, key, instance)
	if apierrors.IsNotFound(err) {
		err = k.reader.Get(ctx, key, instance)
	}
	return instance, err
}

// setOwner writes the owner reference. Whoever decides on the object as it was before that notices that it has changed, and looks again.
func (k *Kind) setOwner(ctx context.Context, dev *v1alpha1.DevServer, instance *v1alpha1.Instance) error {
	owned := dev.DeepCopy()
	err := controllerutil.SetControllerReference(instance, owned, k.client.Scheme(), controllerutil.WithBlockOwnerDeletion(false))
	var controlled *controllerutil.AlreadyOwnedError
	if errors.As(err, &controlled) {
		err = controllerutil.SetOwnerReference(instance, owned, k.client.Scheme(), controllerutil.WithBlockOwnerDeletion(false))
	}
	if err != nil {
		return fmt.Errorf("make instance %s the owner: %w", instance.Name, err)
	}
	err = k.client.Patch(ctx, owned, client.MergeFromWithOptions(dev.DeepCopy(), client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("make instance %s the owner: %w", instance.Name, err)
	}
	return nil
}

func instanceMissing(format string, args ...any) *lifecycle.Blocked {
	return &lifecycle.Blocked{Reason: v1alpha1.ReasonInstanceMissing, Message: fmt.Sprintf(format, args...), Retry: instanceRetry}
}

// ownsNothing says that there is an Instance to belong to and no reference to it yet.
func ownsNothing(dev *v1alpha1.DevServer) bool {
	return dev.Spec.InstanceRef != nil && dev.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc(dev.OwnerReferences, func(r metav1.OwnerReference) bool {
			return r.Kind == "Instance" && r.Name == dev.Spec.InstanceRef.Name
		})
}
