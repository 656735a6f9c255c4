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

// Stop implements runtime.Runtime by deleting the Pod with the grace period that it was made with. The kubelet sends the stop signal to the program,
// and the kill when the grace is over, whether somebody asks for it or not.
func (r *Runtime) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	return r.end(ctx, uid, incarnation, grace)
}

// grace is what the Pod was made with, in seconds; a template may have said 0.
func grace(p *corev1.Pod) int64 {
	return max(shortestGrace, ptr.Deref(p.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds))
}

// Kill implements runtime.Runtime. A kubelet sends the stop signal first and kills the tree after the shortest time there is, a second. The Pod stays
// until the kubelet says that nothing is left: it is never taken away from a node that does not answer. After a Stop it is up to the kubelet whether
// it cuts the grace short or kills when that is over.
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
			return fmt.Errorf("end incarnation %d of %s: %w", incarnation, uid, err)
		}
	}
	return nil
}

// delete asks for the end of a Pod, and looks at what became of it.
func (r *Runtime) delete(ctx context.Context, p *corev1.Pod, grace int64) error {
	err := r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name,
		metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return r.again(ctx, p) // also when it is another one by now
}

// Settle implements runtime.Settler. A Pod that somebody deletes would stay for ever otherwise where no incarnation follows, and a node that is drained
// would wait for it. One that has ended by itself stays, with its output, until the next one.
func (r *Runtime) Settle(ctx context.Context, uid types.UID, incarnation int64) error {
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
		return fmt.Errorf("let go of what %s has ended: %w", uid, err)
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
			return fmt.Errorf("forget %s: its Pod %s/%s is not seen to have ended", uid, p.Namespace, p.Name)
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
	r.Belongs(uid, "")
	return nil
}

// discard removes a Pod that has ended, with its Secrets: these first, as they are found by it.
func (r *Runtime) discard(ctx context.Context, p *corev1.Pod) error {
	if err := r.removeSecrets(ctx, p); err != nil {
		return err
	}
	// One that is being deleted with a grace would stay for the kubelet's last word, which nobody waits for any more.
	if p.DeletionTimestamp == nil || ptr.Deref(p.DeletionGracePeriodSeconds, 0) > 0 {
		if err := r.delete(ctx, p, 0); err != nil {
			return err
		}
	}
	if err := r.letGo(ctx, p); err != nil {
		return err
	}
	if uid, was := r.store.remove(p, false); was {
		r.events.Tell(uid)
	}
	return nil
}

// removeSecrets removes the hidden environment and the inputs of a Pod that has some.
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

// hides says whether a Pod was made with a Secret for its environment.
func hides(p *corev1.Pod) bool {
	main := mainOf(p)
	return main != nil && slices.ContainsFunc(main.EnvFrom, func(from corev1.EnvFromSource) bool { return from.SecretRef != nil && from.SecretRef.Name == p.Name })
}

// letGo takes the finalizer off, and leaves those of others.
func (r *Runtime) letGo(ctx context.Context, p *corev1.Pod) error {
	api := r.client.CoreV1().Pods(p.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := api.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil || now.UID != p.UID {
			return err
		}
		others := slices.DeleteFunc(slices.Clone(now.Finalizers), func(name string) bool { return name == Finalizer })
		change, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": now.UID, "resourceVersion": now.ResourceVersion, "finalizers": others}})
		if err != nil {
			return err
		}
		_, err = api.Patch(ctx, p.Name, types.MergePatchType, change, metav1.PatchOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("let Pod %s/%s go: %w", p.Namespace, p.Name, err)
	}
	return nil
}
