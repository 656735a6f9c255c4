// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-dev/berth/internal/facts"
)

// unseenPatience is how long Observe waits for the watch to deliver a created Pod before it reads the Pod from the API server.
const unseenPatience = 5 * time.Second

// Observe implements runtime.Runtime. It reads the cache, and queries the API server only for Pods that the watch has not delivered within unseenPatience and
// for nodes that may be lost.
func (r *Runtime) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	if err := r.synced(ctx); err != nil {
		return nil, fmt.Errorf("observe %s: %w", uid, err)
	}
	for _, p := range r.store.unseen(uid, unseenPatience) {
		if err := r.again(ctx, p); err != nil {
			return nil, fmt.Errorf("observe %s: %w", uid, err)
		}
	}
	pods := r.store.of(uid)
	var found []facts.Incarnation
	if failed, is := r.refusedStart(uid); is && (len(pods) == 0 || failed.Number > number(pods[0])) {
		found = append(found, failed)
	}
	for _, p := range pods {
		i := describe(p)
		if len(found) > 0 && !i.Alive() {
			continue // of the older incarnations, only those that are alive are reported
		}
		if err := r.askNode(ctx, p, &i); err != nil {
			return nil, fmt.Errorf("observe %s: %w", uid, err)
		}
		found = append(found, i)
	}
	return found, nil
}

// List implements runtime.Runtime.
func (r *Runtime) List(ctx context.Context) ([]facts.Incarnation, error) {
	if err := r.synced(ctx); err != nil {
		return nil, fmt.Errorf("list Pods: %w", err)
	}
	r.mu.Lock()
	uids := sets.KeySet(r.refused).Insert(r.store.uids()...)
	r.mu.Unlock()
	var list []facts.Incarnation
	for uid := range uids {
		found, err := r.Observe(ctx, uid)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	return list, nil
}

// AttachCommand implements runtime.Terminals. It returns the kubectl command that attaches to the terminal of a running Pod.
func (r *Runtime) AttachCommand(uid types.UID) string {
	p := r.store.newest(uid)
	if p == nil || !runs(p) {
		return ""
	}
	return fmt.Sprintf("kubectl attach -it -n %s pod/%s -c %s", p.Namespace, p.Name, Container)
}

// again updates a cached Pod from the API server.
func (r *Runtime) again(ctx context.Context, p *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	now, err := r.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && now.UID != p.UID:
		if uid, was := r.store.remove(p, false); was {
			r.events.Add(uid)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read Pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	r.told(now)
	return nil
}

// askNode sets phase Unknown if the Pod may be running on a node that does not respond.
func (r *Runtime) askNode(ctx context.Context, p *corev1.Pod, i *facts.Incarnation) error {
	if !i.Alive() || p.Spec.NodeName == "" || !silent(p) {
		return nil
	}
	node, err := r.client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		i.Phase = facts.Unknown
		i.Message = fmt.Sprintf("its node %s was removed from the cluster; waiting until the cluster reports that the Pod has ended", p.Spec.NodeName)
		return nil
	case err != nil:
		return fmt.Errorf("read node %s: %w", p.Spec.NodeName, err)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionUnknown {
			i.Phase = facts.Unknown
			i.Message = fmt.Sprintf("its node %s does not respond; recover the node or, if it is permanently lost, delete it or taint it with %s",
				p.Spec.NodeName, corev1.TaintNodeOutOfService)
		}
	}
	return nil
}

// silent reports whether the status of a Pod suggests that its node does not respond: the Pod is not ready although the program's container is, or the deletion
// of the Pod is overdue.
func silent(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil && time.Since(p.DeletionTimestamp.Time) > 10*time.Second {
		return true
	}
	main := mainStatus(p)
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionFalse && main != nil && main.Ready {
			return true
		}
	}
	return false
}
