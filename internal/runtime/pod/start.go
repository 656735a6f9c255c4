// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// Start implements runtime.Runtime. It returns when the API server has created the Pod.
func (r *Runtime) Start(ctx context.Context, p runtime.Process) error {
	if p.Incarnation <= 0 {
		return fmt.Errorf("start %s: the incarnation must be greater than 0", p.Name)
	}
	ctx, release, err := r.acquire(ctx, p.UID)
	if err != nil {
		return err
	}
	defer release()
	if err := r.start(ctx, p); err != nil {
		return fmt.Errorf("start incarnation %d of %s: %w", p.Incarnation, p.Name, err)
	}
	return nil
}

func (r *Runtime) start(ctx context.Context, p runtime.Process) error {
	config, refused := parse(p)
	if config.Namespace != "" {
		// Query the API server, because the cache may not yet contain a Pod that another manager created.
		if err := r.refresh(ctx, p.UID, config.Namespace); err != nil {
			return err
		}
	}
	started, err := r.mayStart(p)
	if err != nil || started {
		return err
	}
	if refused == nil {
		refused, err = r.carryOut(ctx, p, config)
	}
	if errors.Is(err, errClaimGoes) || apierrors.IsForbidden(err) {
		// Remove Pods that have ended, because they may be the cause: they still use their claims, and count toward quotas.
		r.sweep(ctx, p.UID, p.Incarnation)
	}
	if err != nil {
		return err
	}
	if refused != nil {
		r.setRefused(p.UID, &facts.Incarnation{UID: string(p.UID), Number: p.Incarnation, Name: p.Name, Namespace: config.Namespace, Phase: facts.Failed,
			StartError: refused, Origin: p.Origin})
		r.events.Add(p.UID)
		return nil //nolint:nilerr // Observe reports why it failed
	}
	r.setRefused(p.UID, nil)
	r.sweep(ctx, p.UID, p.Incarnation)
	return nil
}

// refresh updates the cached Pods of a UID from the API server.
func (r *Runtime) refresh(ctx context.Context, uid types.UID, namespace string) error {
	before := r.store.of(uid)
	list, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: LabelUID + "=" + string(uid)})
	if err != nil {
		return fmt.Errorf("list its Pods: %w", err)
	}
	there := map[types.UID]bool{}
	for i := range list.Items {
		there[list.Items[i].UID] = true
		r.told(&list.Items[i])
	}
	for _, p := range before { // remove Pods that no longer exist, but not Pods that the watch has delivered during the request
		if !there[p.UID] && p.Namespace == namespace {
			r.store.remove(p, false)
		}
	}
	return nil
}

// mayStart returns an error if p must not be started. It returns true if p was already started, so that nothing is left to do.
func (r *Runtime) mayStart(p runtime.Process) (started bool, err error) {
	if last, is := r.refusedStart(p.UID); is && last.Number >= p.Incarnation {
		if last.Number > p.Incarnation {
			return false, fmt.Errorf("%w: %d", runtime.ErrStale, last.Number)
		}
		return true, nil
	}
	for _, pod := range r.store.of(p.UID) {
		switch n := number(pod); {
		case n > p.Incarnation:
			return false, fmt.Errorf("%w: %d", runtime.ErrStale, n)
		case n == p.Incarnation:
			return true, nil
		case !ended(pod):
			return false, fmt.Errorf("%w: Pod %s/%s of incarnation %d is %s; stop it first", runtime.ErrOldAlive, pod.Namespace, pod.Name, n, pod.Status.Phase)
		}
	}
	return false, nil
}

// carryOut creates the Pod. It returns a StartError if the configuration is invalid or the cluster rejects it permanently.
func (r *Runtime) carryOut(ctx context.Context, p runtime.Process, c Config) (*facts.StartError, error) {
	env, refused := environment(p)
	if refused != nil {
		return refused, nil
	}
	pod, refused := build(p, c, env)
	if refused != nil {
		return refused, nil
	}
	if refused, err := r.makeClaims(ctx, p, c); refused != nil || err != nil {
		return refused, err
	}
	if !hides(pod) { // the template has removed the environment of the spec
		env.hidden = nil
	}
	if err := r.makeSecrets(ctx, p, c, env.hidden); err != nil {
		return nil, errors.Join(err, r.removeSecrets(ctx, pod))
	}
	made, err := r.client.CoreV1().Pods(c.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// refresh did not find the Pod, so it does not belong to this object.
		return nil, fmt.Errorf("Pod %s/%s already exists and does not belong to this object; delete or rename it", c.Namespace, pod.Name)
	}
	if err != nil {
		return r.notMade(ctx, pod, err)
	}
	r.told(made)
	return nil, nil
}

// notMade returns why the Pod was not created. It removes the Secrets, unless the Pod may have been created and only the response was lost. In that case the
// Secrets stay: the next attempt either finds the Pod or replaces the Secrets.
func (r *Runtime) notMade(ctx context.Context, pod *corev1.Pod, cause error) (*facts.StartError, error) {
	err := fmt.Errorf("create its Pod: %w", cause)
	if status := apierrors.APIStatus(nil); !errors.As(cause, &status) || status.Status().Code >= http.StatusInternalServerError {
		return nil, err
	}
	if left := r.removeSecrets(ctx, pod); left != nil {
		return nil, errors.Join(err, left)
	}
	if refused := refusedBy(cause); refused != nil {
		return refused, nil
	}
	return nil, err
}

// makeSecrets creates the Secrets of an incarnation: the hidden environment and the inputs.
func (r *Runtime) makeSecrets(ctx context.Context, p runtime.Process, c Config, hidden map[string]string) error {
	if len(hidden) > 0 {
		if err := r.makeSecret(ctx, &corev1.Secret{ObjectMeta: metadata(p, c), StringData: hidden}); err != nil {
			return fmt.Errorf("create the Secret for its environment: %w", err)
		}
	}
	if inputs := inputsSecret(p, c); inputs != nil {
		if err := r.makeSecret(ctx, inputs); err != nil {
			return fmt.Errorf("create the Secret for its inputs: %w", err)
		}
	}
	return nil
}

// makeSecret creates one Secret. It replaces a Secret with the same name, because an unfinished start may have left one.
func (r *Runtime) makeSecret(ctx context.Context, secret *corev1.Secret) error {
	secret.Immutable = ptr.To(true)
	api := r.client.CoreV1().Secrets(secret.Namespace)
	_, err := api.Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if err := api.Delete(ctx, secret.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("replace the existing Secret: %w", err)
		}
		_, err = api.Create(ctx, secret, metav1.CreateOptions{})
	}
	return err
}

// sweep removes the Pods of earlier incarnations that have ended. If the removal of a Pod fails, the next start or Forget retries it.
func (r *Runtime) sweep(ctx context.Context, uid types.UID, before int64) {
	for _, pod := range r.store.of(uid) {
		if number(pod) >= before || !ended(pod) {
			continue
		}
		if err := r.discard(ctx, pod); err != nil {
			r.log.V(1).Info("Cannot remove a Pod yet", "pod", pod.Namespace+"/"+pod.Name, "err", err.Error())
		}
	}
}
