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

// maxFailoverTime is shorter than the time until an unreleased lease expires. That time is at least 13 seconds, because a lease lasts 15 seconds and is renewed
// every 2 seconds.
const maxFailoverTime = 12 * time.Second

// addFailureSpecs adds the specs of the failures that an installation survives. The specs stop processes of the cluster of `make cluster` and are skipped on
// another cluster.
func addFailureSpecs() {
	if !isTestCluster() {
		GinkgoWriter.Println("skip the specs of failures that an installation survives: BERTH_CLUSTER does not name a cluster of `make cluster`")
		return
	}

	It("continues to work when its leader is killed", func(ctx context.Context) {
		tenant, server := devServer(ctx, "leader"), languageServer(ctx, "leader")
		editor := server.connect(ctx)
		before := leaseHolder(ctx)
		killContainer(waitForLeader(ctx), "manager")
		Eventually(ctx, leaseHolder).ShouldNot(Equal(before))
		tenant.expectStillRunning(ctx, 1)
		tenant.restart(ctx)
		server.expectStillRunning(ctx, 1)
		Expect(editor.hover(ctx)).To(Equal(text))
		server.restart(ctx)
		Expect(editor.hover(ctx)).To(Equal(text))
		Expect(editor.stderr()).NotTo(ContainSubstring("retrying"), "the connection of the editor does not go through the manager")
		waitForRollout(ctx)
		var restarts int32
		for _, pod := range managerPods(ctx) {
			restarts += pod.Status.ContainerStatuses[0].RestartCount
		}
		Expect(restarts).To(BeNumerically(">=", 1))
	}, SpecTimeout(2*timeout))

	It("elects a new leader immediately when the old one shuts down", func(ctx context.Context) {
		tenant := devServer(ctx, "handover")
		first, before := waitForLeader(ctx), leaseHolder(ctx)
		begun := time.Now()
		Expect(clientset.CoreV1().Pods(managerNamespace).Delete(ctx, first.Name, metav1.DeleteOptions{})).To(Succeed())
		Eventually(ctx, leaseHolder).ShouldNot(Or(Equal(before), BeEmpty()))
		Expect(time.Since(begun)).To(BeNumerically("<", maxFailoverTime), "the lease was released and did not have to expire")
		tenant.expectStillRunning(ctx, 1)
		tenant.restart(ctx)
		waitForRollout(ctx)
	}, SpecTimeout(2*timeout))

	It("continues to work after an outage of the API server", func(ctx context.Context) {
		tenant, server := devServer(ctx, "apiserver"), languageServer(ctx, "apiserver")
		DeferCleanup(startAPIServer, NodeTimeout(timeout))
		controlProcess(ctx, "kill", "kube-apiserver")
		Expect(apiAnswers(ctx)).NotTo(Succeed(), "the API server is stopped")
		startAPIServer(ctx)
		waitForLeader(ctx)
		tenant.expectStillRunning(ctx, 1)
		tenant.restart(ctx)
		server.expectStillRunning(ctx, 1)
		editor := server.connect(ctx)
		Expect(editor.hover(ctx)).To(Equal(text))
		waitForRollout(ctx)
	}, SpecTimeout(3*timeout))

	It("continues to work after an outage of the kubelet", func(ctx context.Context) {
		tenant := devServer(ctx, "kubelet")
		before := uidSet(managerPods(ctx))
		DeferCleanup(controlProcess, "start", "kubelet", NodeTimeout(timeout))
		controlProcess(ctx, "stop", "kubelet")
		Eventually(ctx, nodeReady).Should(BeFalse())
		tenant.waitUntilUnknown(ctx) // the cluster marks the Pods as not ready shortly after it has marked the node
		tenant.patchSpec(ctx, `{"restartToken":"while the leader is away"}`)
		tenant.waitUntilObserved(ctx)
		tenant.expectUntouched(ctx)
		controlProcess(ctx, "start", "kubelet")
		Eventually(ctx, nodeReady).Should(BeTrue())
		waitForRollout(ctx)
		Expect(uidSet(managerPods(ctx))).To(Equal(before))
		waitForLeader(ctx)
		tenant.waitUntilReady(ctx, 2)
		tenant.restart(ctx)
	}, SpecTimeout(3*timeout))

	It("restarts the program of a node that is out of service", func(ctx context.Context) {
		tenant := devServer(ctx, "fenced")
		node := nodeName(ctx)
		DeferCleanup(func(ctx context.Context) {
			controlProcess(ctx, "start", "kubelet")
			setOutOfService(ctx, node, false)
			Eventually(ctx, nodeReady).Should(BeTrue())
			waitForRollout(ctx)
		}, NodeTimeout(2*timeout))
		controlProcess(ctx, "stop", "kubelet")
		Eventually(ctx, nodeReady).Should(BeFalse())
		tenant.waitUntilUnknown(ctx)
		killContainer(&tenant.pods(ctx)[0], pod.Container) // as when the machine of the Pod fails: the kubelet does not report the exit
		tenant.expectUntouched(ctx)                        // as far as the cluster knows, the program may still be running
		// The taint declares that the machine is off, including the managers on it. A manager may or may not still be able to write, so the spec waits only
		// until the cluster force-deletes the Pod.
		first := tenant.pods(ctx)[0].Name
		setOutOfService(ctx, node, true)
		Eventually(ctx, func(ctx context.Context) bool {
			found, err := clientset.CoreV1().Pods(tenant.namespace).Get(ctx, first, metav1.GetOptions{})
			return apierrors.IsNotFound(err) || err == nil && found.DeletionGracePeriodSeconds != nil && *found.DeletionGracePeriodSeconds == 0
		}).Should(BeTrue(), "the cluster force-deletes the Pod")
		setOutOfService(ctx, node, false)
		controlProcess(ctx, "start", "kubelet")
		Eventually(ctx, nodeReady).Should(BeTrue())
		waitForRollout(ctx)
		tenant.waitUntilReady(ctx, 2)
		tenant.expectLost(1)
	}, SpecTimeout(3*timeout))

	It("keeps one manager while its node is drained, and restarts the other Pods", func(ctx context.Context) {
		tenant := devServer(ctx, "drain")
		node := nodeName(ctx)
		DeferCleanup(func(ctx context.Context) {
			mustRun(ctx, "kubectl", "uncordon", node)
			waitForRollout(ctx)
		}, NodeTimeout(timeout))
		mustRun(ctx, "kubectl", "cordon", node)
		all := managerPods(ctx)
		Expect(all).To(HaveLen(2))
		// The replacement of the evicted Pod finds no node, so the disruption budget protects the other manager.
		Eventually(ctx, func(ctx context.Context) error { return evict(ctx, &all[0]) }).Should(Succeed())
		Eventually(ctx, func(ctx context.Context) error {
			_, err := clientset.CoreV1().Pods(managerNamespace).Get(ctx, all[0].Name, metav1.GetOptions{})
			return err
		}).Should(Satisfy(apierrors.IsNotFound))
		Expect(evict(ctx, &all[1])).To(Satisfy(apierrors.IsTooManyRequests))
		Expect(waitForLeader(ctx).Name).To(Equal(all[1].Name))
		tenant.expectStillRunning(ctx, 1)
		drainPods(ctx, tenant)
		mustRun(ctx, "kubectl", "uncordon", node)
		tenant.waitUntilReady(ctx, 2)
	}, SpecTimeout(3*timeout))
}

// drainPods drains the Pods of a tenant from the node, with the Pod selector of kubectl drain.
func drainPods(ctx context.Context, t *tenant) {
	GinkgoHelper()
	mustRun(ctx, "kubectl", "drain", nodeName(ctx), "--pod-selector="+pod.LabelUID+"="+string(t.uid), "--timeout=2m")
}

// setOutOfService adds or removes the taint that declares that no process runs on a node any more.
func setOutOfService(ctx context.Context, node string, out bool) {
	GinkgoHelper()
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	Eventually(ctx, func(ctx context.Context) error {
		found, err := clientset.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found.Spec.Taints = slices.DeleteFunc(found.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint.Key })
		if out {
			found.Spec.Taints = append(found.Spec.Taints, taint)
		}
		_, err = clientset.CoreV1().Nodes().Update(ctx, found, metav1.UpdateOptions{})
		return err
	}).Should(Succeed())
}

// evict requests the eviction of a Pod, as kubectl drain does.
func evict(ctx context.Context, which *corev1.Pod) error {
	return clientset.PolicyV1().Evictions(which.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: which.Name, Namespace: which.Namespace}})
}

func uidSet(pods []corev1.Pod) map[types.UID]bool {
	all := map[types.UID]bool{}
	for _, pod := range pods {
		all[pod.UID] = true
	}
	return all
}

// leaseHolder returns the identity of the lease holder: the name of a Pod and an ID that is new for each start of its manager. It returns "" if the lease has
// no holder.
func leaseHolder(ctx context.Context) string {
	lease, err := clientset.CoordinationV1().Leases(managerNamespace).Get(ctx, "berth.dev", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func nodeName(ctx context.Context) string {
	GinkgoHelper()
	nodes, err := clientset.CoreV1().Nodes().List(ctx, listAll)
	Expect(err).NotTo(HaveOccurred())
	return nodes.Items[0].Name
}

// nodeReady reports whether Pods can be scheduled to the node: it is Ready and has no taint.
func nodeReady(ctx context.Context) (bool, error) {
	nodes, err := clientset.CoreV1().Nodes().List(ctx, listAll)
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
