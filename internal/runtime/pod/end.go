// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

// Stop implements runtime.Runtime by deleting the Pod with the grace period of its spec. The kubelet sends the stop signal to the program, and
// SIGKILL after the grace period, whether or not Kill is called.
func (r *Runtime) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	return r.end(ctx, uid, incarnation, grace)
}

// grace returns the grace period of the Pod in seconds, at least shortestGrace, because a template may have set 0.
func grace(p *corev1.Pod) int64 {
	return max(shortestGrace, ptr.Deref(p.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds))
}

// Kill implements runtime.Runtime. The kubelet sends the stop signal first and kills the tree after the shortest grace period, 1 s. The Pod object stays until
// the kubelet reports that no process is left: Berth never force-deletes it from a node that does not respond. If Stop was called before, the kubelet decides
// whether it shortens the grace period or kills the tree only when the earlier grace period ends.
func (r *Runtime) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	return r.end(ctx, uid, incarnation, func(*corev1.Pod) int64 { return shortestGrace })
}

func (r *Runtime) end(ctx context.Context, uid types.UID, incarnation int64, grace func(*corev1.Pod) int64) error {
	ctx, release, err := r.acquire(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	for _, p := range r.store.of(uid) {
		if number(p) != incarnation || ended(p) {
			continue
		}
		if err := r.delete(ctx, p, grace(p)); err != nil {
			return fmt.Errorf("stop incarnation %d of %s: %w", incarnation, uid, err)
		}
	}
	return nil
}

// delete deletes a Pod with a grace period in seconds, then updates the cached Pod from the API server.
func (r *Runtime) delete(ctx context.Context, p *corev1.Pod, grace int64) error {
	err := r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name,
		metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return r.again(ctx, p) // also after a conflict, because another Pod may have the name by now
}

// ReleaseExited implements runtime.Runtime. It removes the Pods that have ended and whose deletion was already requested. If no further incarnation is started,
// the finalizer would otherwise keep such a Pod forever, and the Pod would block the drain of its node. A Pod that ended by itself remains, with its output, until
// the next incarnation is started.
func (r *Runtime) ReleaseExited(ctx context.Context, uid types.UID, incarnation int64) error {
	settled := func(p *corev1.Pod) bool { return number(p) <= incarnation && p.DeletionTimestamp != nil && ended(p) }
	if !slices.ContainsFunc(r.store.of(uid), settled) {
		return nil
	}
	ctx, release, err := r.acquire(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	var left []error
	for _, p := range r.store.of(uid) {
		if settled(p) {
			left = append(left, r.discard(ctx, p))
		}
	}
	if err := errors.Join(left...); err != nil {
		return fmt.Errorf("release the ended Pods of %s: %w", uid, err)
	}
	return nil
}

// Forget implements runtime.Runtime.
func (r *Runtime) Forget(ctx context.Context, uid types.UID) error {
	ctx, release, err := r.acquire(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	for _, p := range r.store.of(uid) {
		if !ended(p) {
			return fmt.Errorf("forget %s: its Pod %s/%s is not known to have ended", uid, p.Namespace, p.Name)
		}
	}
	var left []error
	for _, p := range r.store.of(uid) {
		left = append(left, r.discard(ctx, p))
	}
	if err := errors.Join(left...); err != nil {
		return fmt.Errorf("forget %s: %w", uid, err)
	}
	r.setRefused(uid, nil)
	r.SetNamespace(uid, "")
	return nil
}

// discard removes a Pod that has ended. It removes the Secrets first, because their names are known only from the Pod.
func (r *Runtime) discard(ctx context.Context, p *corev1.Pod) error {
	if err := r.removeSecrets(ctx, p); err != nil {
		return err
	}
	// Delete with a grace period of 0: otherwise a Pod that is being deleted remains until the kubelet sends its final status, which is no longer needed.
	if p.DeletionTimestamp == nil || ptr.Deref(p.DeletionGracePeriodSeconds, 0) > 0 {
		if err := r.delete(ctx, p, 0); err != nil {
			return err
		}
	}
	if err := r.letGo(ctx, p); err != nil {
		return err
	}
	if uid, was := r.store.remove(p, false); was {
		r.events.Add(uid)
	}
	return nil
}

// removeSecrets removes the Secrets with the hidden environment and the inputs of a Pod, if it has them.
func (r *Runtime) removeSecrets(ctx context.Context, p *corev1.Pod) error {
	var names []string
	if hides(p) {
		names = append(names, p.Name)
	}
	if hasInputs(p) {
		names = append(names, inputsName(p.Name))
	}
	var left []error
	for _, name := range names {
		if err := r.client.CoreV1().Secrets(p.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			left = append(left, fmt.Errorf("remove the Secret %s/%s: %w", p.Namespace, name, err))
		}
	}
	return errors.Join(left...)
}

// hides reports whether a Pod uses a Secret for its environment.
func hides(p *corev1.Pod) bool {
	main := mainOf(p)
	return main != nil && slices.ContainsFunc(main.EnvFrom, func(from corev1.EnvFromSource) bool { return from.SecretRef != nil && from.SecretRef.Name == p.Name })
}

// letGo removes the finalizer of Berth, and keeps other finalizers.
func (r *Runtime) letGo(ctx context.Context, p *corev1.Pod) error {
	api := r.client.CoreV1().Pods(p.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := api.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil || now.UID != p.UID {
			return err
		}
		others := slices.DeleteFunc(slices.Clone(now.Finalizers), func(name string) bool { return name == finalizer })
		change, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": now.UID, "resourceVersion": now.ResourceVersion, "finalizers": others}})
		if err != nil {
			return err
		}
		_, err = api.Patch(ctx, p.Name, types.MergePatchType, change, metav1.PatchOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}
