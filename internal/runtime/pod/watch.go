// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// giveUpRetry is the delay before giveUpLoop retries a failed deletion. It doubles with each failure for the same UID, up to giveUpRetryMost.
const giveUpRetry, giveUpRetryMost = time.Second, 30 * time.Second

func newDoubts() workqueue.TypedRateLimitingInterface[types.UID] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](giveUpRetry, giveUpRetryMost))
}

// ours selects the Pods of this runtime; no other Pods are cached.
const ours = LabelManagedBy + "=" + ManagedBy + "," + LabelUID

// watch watches the Pods of a namespace, or of all namespaces.
func (r *Runtime) watch(namespace string) error {
	informer := coreinformers.NewFilteredPodInformer(r.client, namespace, 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.LabelSelector = ours })
	slim := func(object any) (any, error) {
		if p, is := object.(*corev1.Pod); is {
			p.ManagedFields = nil
		}
		return object, nil
	}
	if err := informer.SetTransform(slim); err != nil {
		return err
	}
	registered, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    r.seen,
		UpdateFunc: func(_, now any) { r.seen(now) },
		DeleteFunc: r.unseen,
	})
	if err != nil {
		return err
	}
	// HasSynced of the informer is not sufficient, because it may return true before the handler has received all listed Pods.
	r.listed = append(r.listed, registered.HasSynced)
	r.tasks.Go(func() { informer.RunWithContext(r.tasks.Lifetime()) })
	return nil
}

func (r *Runtime) seen(object any) {
	p, is := object.(*corev1.Pod)
	if !is {
		return
	}
	uid, news := r.store.put(p, true)
	if !news {
		return
	}
	r.events.Add(uid)
	if hopeless(p) != nil || leftBehind(p) {
		r.doubts.Add(uid)
	}
}

func (r *Runtime) unseen(object any) {
	if last, is := object.(cache.DeletedFinalStateUnknown); is {
		object = last.Obj
	}
	if p, is := object.(*corev1.Pod); is {
		if uid, _ := r.store.remove(p, true); uid != "" {
			r.events.Add(uid)
		}
	}
}

// giveUpLoop deletes Pods that can never run, and Pods whose program has ended while other containers run. A kubelet would retry a Pod that cannot run, and
// might start the Pod long after it was needed. After the program of a Pod has ended, a kubelet would wait forever for the other containers.
func (r *Runtime) giveUpLoop() {
	for {
		uid, shutdown := r.doubts.Get()
		if shutdown {
			return
		}
		if err := r.giveUpOn(uid); err == nil {
			r.doubts.Forget(uid)
		} else {
			if r.doubts.NumRequeues(uid) == 0 && r.tasks.Lifetime().Err() == nil {
				r.log.Error(err, "Cannot delete a Pod that is no longer useful; retrying", "uid", uid)
			}
			r.doubts.AddRateLimited(uid)
		}
		r.doubts.Done(uid)
	}
}

func (r *Runtime) giveUpOn(uid types.UID) error {
	ctx, cancel := context.WithTimeout(r.tasks.Lifetime(), actTimeout)
	defer cancel()
	var failed []error
	for _, p := range r.store.of(uid) {
		failed = append(failed, r.giveUp(ctx, p))
	}
	return errors.Join(failed...)
}

// giveUp deletes a Pod that can never run, or whose program has ended while other containers may still run. It first records the reason in an annotation,
// because the container statuses are lost when the Pod ends.
func (r *Runtime) giveUp(ctx context.Context, p *corev1.Pod) error {
	if p.DeletionTimestamp != nil {
		return nil
	}
	if leftBehind(p) {
		return r.markAndDelete(ctx, p, annotationLeft, "its program has ended", grace(p))
	}
	cause := hopeless(p)
	if cause == nil {
		return nil
	}
	text, err := json.Marshal(cause)
	if err != nil {
		return err
	}
	return r.markAndDelete(ctx, p, annotationFailed, string(text), 1)
}

// leftBehind reports whether the program has ended while other containers, which a template added, may still run.
func leftBehind(p *corev1.Pod) bool {
	main := mainStatus(p)
	return main != nil && main.State.Terminated != nil && len(p.Spec.Containers) > 1 && !finished(p)
}

func (r *Runtime) markAndDelete(ctx context.Context, p *corev1.Pod, annotation, value string, grace int64) error {
	marked, err := r.annotate(ctx, p, annotation, value)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("record why Pod %s/%s is terminated: %w", p.Namespace, p.Name, err)
	}
	return r.delete(ctx, marked, grace)
}

// givenUp returns the reason that giveUp recorded, or nil if giveUp recorded none.
func givenUp(p *corev1.Pod) *facts.StartError {
	text, there := p.Annotations[annotationFailed]
	if !there {
		return nil
	}
	var cause facts.StartError
	if err := json.Unmarshal([]byte(text), &cause); err != nil {
		return oci.Failed("the Pod cannot run; its annotation %s, which contains the cause, is invalid: %v", annotationFailed, err)
	}
	return &cause
}
