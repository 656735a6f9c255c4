// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime/pod"
)

// unreleased is the least that a lease lasts that was not given back: 15 seconds from when it was renewed last, which is done every 2.
const unreleased = 12 * time.Second

// survives are the specs of what an installation bears. They end processes of the cluster of `make cluster`, so on another one they are left out.
func survives() {
	if !ours() {
		GinkgoWriter.Println("left out, as BERTH_CLUSTER names no cluster of `make cluster`: what an installation survives")
		return
	}

	It("goes on when its leader is killed", func(ctx context.Context) {
		tenant, server := devServer(ctx, "leader"), languageServer(ctx, "leader")
		editor := server.connect(ctx)
		before := holder(ctx)
		killAtOnce(leader(ctx), "manager")
		Eventually(ctx, holder).ShouldNot(Equal(before))
		tenant.stayed(ctx, 1)
		tenant.restart(ctx)
		server.stayed(ctx, 1)
		Expect(editor.hover(ctx)).To(Equal(text))
		server.restart(ctx)
		Expect(editor.hover(ctx)).To(Equal(text))
		Expect(editor.said()).NotTo(ContainSubstring("trying again"), "its connection is none of the manager's")
		rolledOut(ctx)
		var restarts int32
		for _, pod := range managers(ctx) {
			restarts += pod.Status.ContainerStatuses[0].RestartCount
		}
		Expect(restarts).To(BeNumerically(">=", 1))
	}, SpecTimeout(2*timeout))

	It("hands over at once when its leader is asked to end", func(ctx context.Context) {
		tenant := devServer(ctx, "handover")
		first, before := leader(ctx), holder(ctx)
		begun := time.Now()
		Expect(api.CoreV1().Pods(home).Delete(ctx, first.Name, metav1.DeleteOptions{})).To(Succeed())
		Eventually(ctx, holder).ShouldNot(Or(Equal(before), BeEmpty()))
		Expect(time.Since(begun)).To(BeNumerically("<", unreleased), "nobody waited for the lease to run out")
		tenant.stayed(ctx, 1)
		tenant.restart(ctx)
		rolledOut(ctx)
	}, SpecTimeout(2*timeout))

	It("goes on when the API server was away", func(ctx context.Context) {
		tenant, server := devServer(ctx, "apiserver"), languageServer(ctx, "apiserver")
		DeferCleanup(startAPIServer, NodeTimeout(timeout))
		part(ctx, "kill", "kube-apiserver")
		Expect(apiAnswers(ctx)).NotTo(Succeed(), "it is away")
		startAPIServer(ctx)
		leader(ctx)
		tenant.stayed(ctx, 1)
		tenant.restart(ctx)
		server.stayed(ctx, 1)
		editor := server.connect(ctx)
		Expect(editor.hover(ctx)).To(Equal(text))
		rolledOut(ctx)
	}, SpecTimeout(3*timeout))

	It("goes on when the kubelet was away", func(ctx context.Context) {
		tenant := devServer(ctx, "kubelet")
		before := uids(managers(ctx))
		DeferCleanup(part, "start", "kubelet", NodeTimeout(timeout))
		part(ctx, "stop", "kubelet")
		Eventually(ctx, nodeReady).Should(BeFalse())
		tenant.unknown(ctx) // the cluster says of Pods that they are not ready a moment after it says so of the node
		tenant.change(ctx, `{"restartToken":"while nobody can say what runs"}`)
		tenant.seen(ctx)
		tenant.untouched(ctx)
		part(ctx, "start", "kubelet")
		Eventually(ctx, nodeReady).Should(BeTrue())
		rolledOut(ctx)
		Expect(uids(managers(ctx))).To(Equal(before))
		leader(ctx)
		tenant.ready(ctx, 2)
		tenant.restart(ctx)
	}, SpecTimeout(3*timeout))

	It("starts anew what was on a node that is out of service", func(ctx context.Context) {
		tenant := devServer(ctx, "fenced")
		node := nodeName(ctx)
		DeferCleanup(func(ctx context.Context) {
			part(ctx, "start", "kubelet")
			setOutOfService(ctx, node, false)
			Eventually(ctx, nodeReady).Should(BeTrue())
			rolledOut(ctx)
		}, NodeTimeout(2*timeout))
		part(ctx, "stop", "kubelet")
		Eventually(ctx, nodeReady).Should(BeFalse())
		tenant.unknown(ctx)
		killAtOnce(&tenant.pods(ctx)[0], pod.Container) // with its machine, nobody is told
		tenant.untouched(ctx)                           // it may live, as far as anybody knows
		// Somebody says that the machine is off. That goes for the managers' Pods too: whether one of them can still write is not said.
		first := tenant.pods(ctx)[0].Name
		setOutOfService(ctx, node, true)
		Eventually(ctx, func(ctx context.Context) bool {
			found, err := api.CoreV1().Pods(tenant.namespace).Get(ctx, first, metav1.GetOptions{})
			return apierrors.IsNotFound(err) || err == nil && found.DeletionGracePeriodSeconds != nil && *found.DeletionGracePeriodSeconds == 0
		}).Should(BeTrue(), "the cluster gives the Pod up")
		setOutOfService(ctx, node, false)
		part(ctx, "start", "kubelet")
		Eventually(ctx, nodeReady).Should(BeTrue())
		rolledOut(ctx)
		tenant.ready(ctx, 2)
		tenant.lost(1)
	}, SpecTimeout(3*timeout))

	It("keeps one manager when its node is drained, and starts the rest anew", func(ctx context.Context) {
		tenant := devServer(ctx, "drain")
		node := nodeName(ctx)
		DeferCleanup(func(ctx context.Context) {
			succeeds(ctx, "kubectl", "uncordon", node)
			rolledOut(ctx)
		}, NodeTimeout(timeout))
		succeeds(ctx, "kubectl", "cordon", node)
		all := managers(ctx)
		Expect(all).To(HaveLen(2))
		// What takes its place finds no node, so that the other one has to stay.
		Eventually(ctx, func(ctx context.Context) error { return evict(ctx, &all[0]) }).Should(Succeed())
		Eventually(ctx, func(ctx context.Context) error {
			_, err := api.CoreV1().Pods(home).Get(ctx, all[0].Name, metav1.GetOptions{})
			return err
		}).Should(Satisfy(apierrors.IsNotFound))
		Expect(evict(ctx, &all[1])).To(Satisfy(apierrors.IsTooManyRequests))
		Expect(leader(ctx).Name).To(Equal(all[1].Name))
		tenant.stayed(ctx, 1)
		drainPods(ctx, tenant)
		succeeds(ctx, "kubectl", "uncordon", node)
		tenant.ready(ctx, 2)
	}, SpecTimeout(3*timeout))
}

// drainPods drains the node of the Pods of a tenant, as kubectl drain does with a selector.
func drainPods(ctx context.Context, t *tenant) {
	GinkgoHelper()
	succeeds(ctx, "kubectl", "drain", nodeName(ctx), "--pod-selector="+pod.LabelUID+"="+string(t.uid), "--timeout=2m")
}

// setOutOfService says of a node that nothing runs there any more, or takes that back.
func setOutOfService(ctx context.Context, node string, out bool) {
	GinkgoHelper()
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	Eventually(ctx, func(ctx context.Context) error {
		found, err := api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Spec.Taints = slices.DeleteFunc(found.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint.Key })
		if out {
			found.Spec.Taints = append(found.Spec.Taints, taint)
		}
		_, err = api.CoreV1().Nodes().Update(ctx, found, metav1.UpdateOptions{})
		return err
	}).Should(Succeed())
}

// evict asks for the end of a Pod as a drain does.
func evict(ctx context.Context, which *corev1.Pod) error {
	return api.PolicyV1().Evictions(which.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: which.Name, Namespace: which.Namespace}})
}

func uids(pods []corev1.Pod) map[types.UID]bool {
	all := map[types.UID]bool{}
	for _, pod := range pods {
		all[pod.UID] = true
	}
	return all
}

// holder says who holds the lease: a Pod, and which start of its container.
func holder(ctx context.Context) string {
	lease, err := api.CoordinationV1().Leases(home).Get(ctx, "berth.dev", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func nodeName(ctx context.Context) string {
	GinkgoHelper()
	nodes, err := api.CoreV1().Nodes().List(ctx, everything)
	Expect(err).NotTo(HaveOccurred())
	return nodes.Items[0].Name
}

// nodeReady says whether Pods can be put on the node: it is well, and nothing keeps them off.
func nodeReady(ctx context.Context) (bool, error) {
	nodes, err := api.CoreV1().Nodes().List(ctx, everything)
	if err != nil {
		return false, err
	}
	for _, condition := range nodes.Items[0].Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue && len(nodes.Items[0].Spec.Taints) == 0, nil
		}
	}
	return false, nil
}
