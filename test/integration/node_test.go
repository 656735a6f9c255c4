// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime/pod"
	"github.com/berth-dev/berth/test/need"
)

// terminationMessage is the name of a Pod annotation. Its value is the termination message that the program of the Pod will leave.
const terminationMessage = "test.berth.dev/last-words"

// node binds Pods and writes their status in place of a scheduler and a kubelet, which do not run in these tests.
type node struct{}

// newNode terminates deleted Pods in the background until the end of the spec, and skips the spec if the API server serves no Pods. Call newNode before newNamespace, because cleanups run in reverse order and
// the cleanup of the namespace needs a node that terminates Pods.
func newNode() *node {
	GinkgoHelper()
	need.Pods(GinkgoT(), filepath.Join("..", ".."))
	n := &node{}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				n.endDeleted(ctx)
			}
		}
	})
	DeferCleanup(func() {
		cancel()
		ended.Wait()
	})
	return n
}

// endDeleted terminates the running Pods that are being deleted. It ignores errors, because the next call retries.
func (n *node) endDeleted(ctx context.Context) {
	var pods corev1.PodList
	if k8s.List(ctx, &pods) != nil {
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil && p.Spec.NodeName != "" && p.Status.Phase == corev1.PodRunning {
			setTerminated(p, 143)
			_ = k8s.Status().Update(ctx, p)
		}
	}
}

// podsOf returns the Pods of an object.
func podsOf(ctx context.Context, g Gomega, object process.Object) []corev1.Pod {
	var pods corev1.PodList
	g.Expect(k8s.List(ctx, &pods, client.InNamespace(object.GetNamespace()), client.MatchingLabels{pod.LabelUID: string(object.GetUID())})).To(Succeed())
	return pods.Items
}

// waitForPod waits until the object has exactly one Pod and this Pod belongs to the given incarnation. It returns the Pod.
func waitForPod(ctx context.Context, object process.Object, incarnation string) *corev1.Pod {
	GinkgoHelper()
	var found *corev1.Pod
	Eventually(func(g Gomega) {
		pods := podsOf(ctx, g, object)
		g.Expect(pods).To(HaveLen(1))
		g.Expect(pods[0].Labels).To(HaveKeyWithValue(pod.LabelIncarnation, incarnation))
		g.Expect(pods[0].DeletionTimestamp).To(BeNil())
		found = &pods[0]
	}).Should(Succeed())
	return found
}

// waitForNoPod waits until the object has no Pods.
func waitForNoPod(ctx context.Context, object process.Object) {
	GinkgoHelper()
	Eventually(func(g Gomega) { g.Expect(podsOf(ctx, g, object)).To(BeEmpty()) }).Should(Succeed())
}

// run binds the Pod to a node and marks it as running with an IP address.
func (n *node) run(ctx context.Context, p *corev1.Pod, address string) {
	GinkgoHelper()
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "moon"}}
	Expect(k8s.SubResource("binding").Create(ctx, p, binding)).To(Succeed())
	updatePodStatus(ctx, p, func() {
		p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: pod.Container, Image: p.Spec.Containers[0].Image, ContainerID: "containerd://" + p.Name, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}
	})
}

// end marks the program of the Pod as exited with an exit code.
func (n *node) end(ctx context.Context, p *corev1.Pod, code int32) {
	GinkgoHelper()
	updatePodStatus(ctx, p, func() { setTerminated(p, code) })
}

func setTerminated(p *corev1.Pod, code int32) {
	p.Status.Phase = corev1.PodFailed
	if code == 0 {
		p.Status.Phase = corev1.PodSucceeded
	}
	for i := range p.Status.ContainerStatuses {
		status := &p.Status.ContainerStatuses[i]
		status.Ready = false
		status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now(),
			StartedAt: status.State.Running.StartedAt, Message: p.Annotations[terminationMessage]}}
	}
}

// updatePodStatus updates the status of a Pod and retries after conflicts.
func updatePodStatus(ctx context.Context, p *corev1.Pod, set func()) {
	GinkgoHelper()
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, key, p)).To(Succeed())
		set()
		g.Expect(k8s.Status().Update(ctx, p)).To(Succeed())
	}).Should(Succeed())
}
