// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Pod returns the cached Pod of an incarnation in the namespace of the object; the caller must not modify it. It returns false if no Pod is known, or if the
// namespace is not known (see SetNamespace).
func (r *Runtime) Pod(uid types.UID, incarnation int64) (*corev1.Pod, bool) {
	for _, p := range r.store.own(uid) {
		if number(p) == incarnation {
			return p, true
		}
	}
	return nil, false
}

// Note sets an annotation of the Pod of an incarnation. It returns runtime.ErrNotFound if no Pod is known.
func (r *Runtime) Note(ctx context.Context, uid types.UID, incarnation int64, annotation, value string) error {
	ctx, release, err := r.acquire(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	p, known := r.Pod(uid, incarnation)
	if !known {
		return fmt.Errorf("write annotation %s for incarnation %d of %s: %w", annotation, incarnation, uid, runtime.ErrNotFound)
	}
	if _, err := r.annotate(ctx, p, annotation, value); err != nil {
		return fmt.Errorf("write annotation %s of Pod %s/%s: %w", annotation, p.Namespace, p.Name, err)
	}
	return nil
}

// annotate sets an annotation of a Pod, and returns the updated Pod. It sends the UID, so that the API server does not change another Pod with the same name.
func (r *Runtime) annotate(ctx context.Context, p *corev1.Pod, annotation, value string) (*corev1.Pod, error) {
	change, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "annotations": map[string]string{annotation: value}}})
	if err != nil {
		return nil, err
	}
	noted, err := r.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, change, metav1.PatchOptions{})
	if err != nil {
		return nil, err
	}
	r.told(noted)
	return noted, nil
}
