// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/testenv"
)

// testServer is an API server without nodes, and apiServer starts it once. The tests act as the kubelet and the scheduler, so that they can trigger even rare
// behavior of a node.
var (
	testServer = testenv.WithPods("../../..")
	apiServer  = sync.OnceValues(testServer.Start)
)

// cluster is a fixture for the Pods of one UID. newCluster connects it to testServer; the tests on a node connect it to a real cluster.
type cluster struct {
	*fixture
	uid types.UID
}

func newCluster(t *testing.T, labels map[string]string) *cluster {
	t.Helper()
	need.Pods(t, "../../..")
	g := NewWithT(t)
	config, err := apiServer()
	g.Expect(err).NotTo(HaveOccurred())
	api := clientFor(t, rest.CopyConfig(config))
	made, err := api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "pods-", Labels: labels}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	return &cluster{newFixture(t, api, made.Name), uuid.NewUUID()}
}

func (c *cluster) process(incarnation int64, template string) runtime.Process {
	config := c.config(`{}`)
	if template != "" {
		config = c.config(template)
	}
	return runtime.Process{UID: c.uid, Incarnation: incarnation, Name: "devservers/default/web", Command: []string{"serve"}, Config: config}
}

func (c *cluster) start(incarnation int64) {
	c.Helper()
	c.Expect(c.Start(c.ctx, c.process(incarnation, ""))).To(Succeed())
}

// pod returns the Pod of an incarnation, or nil if there is none.
func (c *cluster) pod(incarnation int64) *corev1.Pod {
	c.Helper()
	list, err := c.api.CoreV1().Pods(c.namespace).List(c.ctx, metav1.ListOptions{LabelSelector: fmt.Sprintf("%s=%d", LabelIncarnation, incarnation)})
	c.Expect(err).NotTo(HaveOccurred())
	if len(list.Items) == 0 {
		return nil
	}
	c.Expect(list.Items).To(HaveLen(1))
	return &list.Items[0]
}

// bindToNode binds a Pod to a node, as a scheduler does.
func (c *cluster) bindToNode(incarnation int64, node string) {
	c.Helper()
	c.Expect(c.api.CoreV1().Pods(c.namespace).Bind(c.ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: c.pod(incarnation).Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{})).To(Succeed())
}

// setStatus writes the status of a Pod, as a kubelet does.
func (c *cluster) setStatus(incarnation int64, phase corev1.PodPhase, state corev1.ContainerState, conditions ...corev1.PodCondition) {
	c.Helper()
	change, err := json.Marshal(map[string]any{"status": corev1.PodStatus{Phase: phase, Conditions: conditions, ContainerStatuses: []corev1.ContainerStatus{
		{Name: Container, Image: testImage, ImageID: "image", Ready: state.Running != nil, State: state}}}})
	c.Expect(err).NotTo(HaveOccurred())
	_, err = c.api.CoreV1().Pods(c.namespace).Patch(c.ctx, c.pod(incarnation).Name, types.MergePatchType, change, metav1.PatchOptions{}, "status")
	c.Expect(err).NotTo(HaveOccurred())
}

func (c *cluster) observed() facts.Incarnation {
	c.Helper()
	found, err := c.Observe(c.ctx, c.uid)
	c.Expect(err).NotTo(HaveOccurred())
	if len(found) == 0 {
		return facts.Incarnation{}
	}
	return found[0]
}

func (c *cluster) await(phase facts.Phase) facts.Incarnation {
	c.Helper()
	c.Eventually(func() facts.Phase { return c.observed().Phase }).WithTimeout(conformance.Timeout).Should(Equal(phase))
	return c.observed()
}

// deletePod deletes a Pod with a grace period in seconds, as kubectl does. With grace 0, it does what a kubelet does when no process of the Pod is left.
func (c *cluster) deletePod(incarnation, grace int64) {
	c.Helper()
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, c.pod(incarnation).Name, metav1.DeleteOptions{GracePeriodSeconds: &grace})).To(Succeed())
}

func TestStart_WorksInRestrictedNamespace(t *testing.T) {
	c := newCluster(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	p := c.process(1, "")
	p.Env = []string{"TOKEN=hidden"}
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	c.Expect(c.Start(c.ctx, p)).To(Succeed(), "again")
	pod := c.pod(1)
	secret, err := c.api.CoreV1().Secrets(c.namespace).Get(c.ctx, pod.Name, metav1.GetOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(secret.Data).To(HaveKeyWithValue("TOKEN", []byte("hidden")))

	// Public variables need no Secret, nor do variables that the template removes.
	p = c.process(1, "")
	p.UID, p.Env, p.Open = uuid.NewUUID(), []string{"PORT=8080"}, []string{"PORT"}
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	p = c.process(1, `{"spec": {"containers": [{"name": "main", "envFrom": null}]}}`)
	p.UID, p.Env = uuid.NewUUID(), []string{"TOKEN=hidden"}
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	secrets, err := c.api.CoreV1().Secrets(c.namespace).List(c.ctx, metav1.ListOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(secrets.Items).To(HaveLen(1))

	// If the namespace rejects a Pod, it would also reject the next attempt, so the start counts as failed.
	p = c.process(1, `{"spec": {"hostNetwork": true}}`)
	p.UID = uuid.NewUUID()
	p.Env = []string{"TOKEN=hidden"}
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	found, err := c.Observe(c.ctx, p.UID)
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(found).To(HaveLen(1))
	c.Expect(found[0].StartError).To(MatchError(ContainSubstring("Pod Security level of the namespace rejects")))
	c.Expect(c.List(c.ctx)).To(ContainElement(found[0]))
	c.Expect(c.Start(c.ctx, p)).To(Succeed(), "again")
	p.Incarnation = 0
	c.Expect(c.Start(c.ctx, p)).NotTo(Succeed())
}

func TestStart_RefusesForeignPodWithSameName(t *testing.T) {
	c := newCluster(t, nil)
	name := podName(c.uid, "devservers/default/web", 1)
	_, err := c.api.CoreV1().Pods(c.namespace).Create(c.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(c.Start(c.ctx, c.process(1, ""))).To(MatchError(ContainSubstring("does not belong to this object")))
	c.Expect(c.observed().Phase).To(BeEmpty())
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})).To(Succeed())
}

func TestStart_DetectsPodsMissingFromWatch(t *testing.T) {
	c := newCluster(t, nil)
	other := newFixture(t, c.api, c.namespace)
	c.Expect(other.Observe(c.ctx, c.uid)).To(BeEmpty())
	c.start(2)
	// The watch of the other manager may not have delivered the Pod yet.
	c.Expect(other.Start(c.ctx, c.process(2, ""))).To(Succeed(), "the incarnation is already started")
	c.Expect(other.Start(c.ctx, c.process(1, ""))).To(MatchError(runtime.ErrStale))
	c.Expect(other.Start(c.ctx, c.process(3, ""))).To(MatchError(runtime.ErrOldAlive))
	c.Expect(c.pod(1)).To(BeNil())
	c.Expect(c.pod(3)).To(BeNil())
	c.Expect(c.Forget(c.ctx, c.uid)).NotTo(Succeed(), "it is still running")
}

// A manager that was replaced may start an incarnation after its successor has recorded that incarnation with a newer spec.
func TestOrigin_IsThatOfTheManagerThatCreatedThePod(t *testing.T) {
	c := newCluster(t, nil)
	older := c.process(1, `{"metadata": {"annotations": {"berth.dev/origin": "{\"specHash\": \"template\"}"}}}`)
	older.Origin = facts.Origin{SpecHash: "older", RestartToken: `one "and" one`}
	c.Expect(newFixture(t, c.api, c.namespace).Start(c.ctx, older)).To(Succeed())
	newer := c.process(1, "")
	newer.Origin = facts.Origin{SpecHash: "newer", RestartToken: "two"}
	c.Expect(c.Start(c.ctx, newer)).To(Succeed(), "the incarnation exists")
	c.Expect(c.observed().Origin).To(Equal(older.Origin))

	c.bindToNode(1, "node")
	c.setStatus(1, corev1.PodFailed, terminatedState(3, "Error", ""))
	c.Expect(c.await(facts.Exited).Origin).To(Equal(older.Origin), "also after its exit")
	refused := c.process(2, `{"spec": {"containers": null}}`)
	refused.Origin = newer.Origin
	c.Expect(c.Start(c.ctx, refused)).To(Succeed())
	c.Expect(c.await(facts.Failed).Origin).To(Equal(newer.Origin), "of a start without a Pod")
}

func TestOrigin_IsUnknownWithoutAnnotation(t *testing.T) {
	c := newCluster(t, nil)
	p := c.process(1, "")
	p.Origin = facts.Origin{SpecHash: "older"}
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	_, err := c.api.CoreV1().Pods(c.namespace).Patch(c.ctx, c.pod(1).Name, types.MergePatchType, []byte(`{"metadata": {"annotations": {"berth.dev/origin": null}}}`), metav1.PatchOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.reopen()
	c.Expect(c.observed()).To(And(HaveField("Number", BeEquivalentTo(1)), HaveField("Origin", BeZero())), "a Pod of an earlier version of Berth")
}

func TestDeletedPod_ReportsLostExit(t *testing.T) {
	c := newCluster(t, nil)
	c.start(1)
	c.bindToNode(1, "node")
	c.setStatus(1, corev1.PodRunning, running)
	c.await(facts.Running)
	c.deletePod(1, 30)
	c.Eventually(func() bool { return c.observed().StopSent }).WithTimeout(conformance.Timeout).Should(BeTrue())
	c.Expect(c.Start(c.ctx, c.process(2, ""))).To(MatchError(runtime.ErrOldAlive), "incarnation 1 still runs")
	end := terminatedState(143, "Error", "")
	end.Terminated.FinishedAt = metav1.Now()
	c.setStatus(1, corev1.PodFailed, end)
	c.deletePod(1, 0)
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit).To(HaveValue(And(HaveField("Signal", "SIGTERM"), HaveField("Lost", true))), "the exit is kept although the Pod was deleted")
	c.start(2)
	c.Expect(c.pod(1)).To(BeNil(), "the old Pod is no longer needed")
	c.Expect(c.observed().Number).To(BeEquivalentTo(2))
}

func TestRemovedPod_StartsAgain(t *testing.T) {
	c := newCluster(t, nil)
	c.start(1)
	c.deletePod(1, 0)
	c.Expect(c.letGo(c.ctx, c.pod(1))).To(Succeed())
	c.await("")
	c.start(1)
	c.Expect(c.observed().Phase).To(Equal(facts.Starting), "no Pod is left, so the incarnation starts again")
}

func TestSilentNode_IsUnknownUntilPodFails(t *testing.T) {
	c := newCluster(t, nil)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
	node, err := c.api.CoreV1().Nodes().Create(c.ctx, node, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	notReady := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	c.start(1)
	c.bindToNode(1, node.Name)
	c.setStatus(1, corev1.PodRunning, running, notReady)
	c.Expect(c.await(facts.Unknown).Message).To(ContainSubstring(node.Name))
	c.Expect(c.Kill(c.ctx, c.uid, 1)).To(Succeed())
	c.Expect(c.pod(1)).NotTo(BeNil(), "the program may still run")
	c.Expect(c.await(facts.Unknown).StopSent).To(BeTrue())
	c.Expect(c.Start(c.ctx, c.process(2, ""))).To(MatchError(runtime.ErrOldAlive))
	c.Expect(c.Forget(c.ctx, c.uid)).NotTo(Succeed())

	// After the node is deleted, the state stays Unknown until the cluster marks the Pod as failed.
	c.Expect(c.api.CoreV1().Nodes().Delete(c.ctx, node.Name, metav1.DeleteOptions{})).To(Succeed())
	c.Expect(c.observed().Phase).To(Equal(facts.Unknown))
	c.setStatus(1, corev1.PodFailed, running, notReady, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"})
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit.Known).To(BeFalse())
	c.Expect(exited.Exit.Message).To(ContainSubstring("DeletionByPodGC"))
	c.start(2)
}

func TestHopelessPod_IsDeleted(t *testing.T) {
	c := newCluster(t, nil)
	c.start(1)
	c.bindToNode(1, "node")
	c.setStatus(1, corev1.PodPending, waitingState("ErrImageNeverPull", "no image"))
	c.Eventually(func() bool { return c.pod(1).DeletionTimestamp != nil }).WithTimeout(conformance.Timeout).Should(BeTrue())
	c.Expect(c.observed().Phase).To(Equal(facts.Starting), "the kubelet has not finished with the Pod yet")
	c.setStatus(1, corev1.PodFailed, terminatedState(137, "ContainerStatusUnknown", ""))
	c.Expect(c.await(facts.Failed).StartError).To(MatchError(ContainSubstring("must not pull")))
	c.reopen()
	c.Expect(c.observed().StartError).To(MatchError(ContainSubstring("must not pull")), "a new manager reports the same")
}

func TestRemainingContainers_AreTerminatedAfterProgram(t *testing.T) {
	c := newCluster(t, nil)
	c.Expect(c.Start(c.ctx, c.process(1, `{"spec": {"containers": [{"name": "main"}, {"name": "side", "image": "side"}]}}`))).To(Succeed())
	c.bindToNode(1, "node")
	c.setStatus(1, corev1.PodRunning, terminatedState(143, "Error", ""))
	c.Eventually(func() bool { return c.pod(1).DeletionTimestamp != nil }).WithTimeout(conformance.Timeout).Should(BeTrue(), "the kubelet waits for the other container")
	c.Expect(c.await(facts.Running).LeaderExit.Code).To(BeEquivalentTo(143))
	c.setStatus(1, corev1.PodFailed, terminatedState(143, "Error", ""))
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit.Code).To(BeEquivalentTo(143))
	c.Expect(exited.Exit.Signal).To(BeEmpty(), "the program had exited before any signal")
}

func TestStop_WorksBeforePodIsScheduled(t *testing.T) {
	c := newCluster(t, nil)
	c.start(1)
	c.Expect(c.Stop(c.ctx, c.uid, 1)).To(Succeed())
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit.Known).To(BeFalse())
	c.Expect(c.api.CoreV1().Pods(c.namespace).Bind(c.ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: c.pod(1).Name},
		Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}, metav1.CreateOptions{})).NotTo(Succeed(), "the Pod never runs")
	c.Expect(c.Forget(c.ctx, c.uid)).To(Succeed())
	c.Expect(c.observed().Phase).To(BeEmpty())
	c.Expect(c.pod(1)).To(BeNil())
}

func TestClaim_OutlivesItsPods(t *testing.T) {
	c := newCluster(t, nil)
	p := func(incarnation int64, size string) runtime.Process {
		p := c.process(incarnation, "")
		p.Config = []byte(fmt.Sprintf(`{"namespace": %q, "image": %q, "claims": [{"name": "data", "mountPath": "/data",
			"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": %q}}}}]}`, c.namespace, testImage, size))
		return p
	}
	c.Expect(c.Start(c.ctx, p(1, "-1"))).To(Succeed())
	c.Expect(c.observed().StartError).To(MatchError(ContainSubstring("rejects claim data")))

	c.Expect(c.Start(c.ctx, p(2, "1Gi"))).To(Succeed())
	pod := c.pod(2)
	c.Expect(pod.Spec.Volumes).To(HaveLen(1))
	name := pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName
	claims := c.api.CoreV1().PersistentVolumeClaims(c.namespace)
	first, err := claims.Get(c.ctx, name, metav1.GetOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(c.Kill(c.ctx, c.uid, 2)).To(Succeed())
	c.await(facts.Exited)
	c.Expect(c.Start(c.ctx, p(3, "1Gi"))).To(Succeed())
	c.Expect(c.pod(3).Spec.Volumes[0].PersistentVolumeClaim.ClaimName).To(Equal(name))
	still, err := claims.Get(c.ctx, name, metav1.GetOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(still.UID).To(Equal(first.UID), "the claim is the same")
	c.Expect(claims.Delete(c.ctx, name, metav1.DeleteOptions{})).To(Succeed())

	// A claim of another owner is not used.
	other := c.process(1, "")
	other.UID, other.Config = uuid.NewUUID(), p(1, "1Gi").Config
	_, err = claims.Create(c.ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: claimName(other.UID, other.Name, "data")}, Spec: first.Spec}, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(c.Start(c.ctx, other)).To(MatchError(ContainSubstring("does not belong to this object")))
}
