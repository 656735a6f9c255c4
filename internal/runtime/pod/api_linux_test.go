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
	"github.com/berth-dev/berth/test/testenv"
)

// An API server without nodes. The tests act as the kubelet and the scheduler, so that they can trigger even rare behavior of a node.
var (
	testServer = testenv.New("../../..")
	apiServer  = sync.OnceValues(testServer.Start)
)

// cluster is a Runtime on that API server.
type cluster struct {
	*bench
	uid types.UID
}

func newCluster(t *testing.T, labels map[string]string) *cluster {
	t.Helper()
	g := NewWithT(t)
	config, err := apiServer()
	g.Expect(err).NotTo(HaveOccurred())
	api := clientFor(t, rest.CopyConfig(config))
	made, err := api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "pods-", Labels: labels}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	return &cluster{newBench(t, api, made.Name), uuid.NewUUID()}
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

// assign binds a Pod to a node, as a scheduler does.
func (c *cluster) assign(incarnation int64, node string) {
	c.Helper()
	c.Expect(c.api.CoreV1().Pods(c.namespace).Bind(c.ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: c.pod(incarnation).Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{})).To(Succeed())
}

// says writes the status of a Pod, as a kubelet does.
func (c *cluster) says(incarnation int64, phase corev1.PodPhase, state corev1.ContainerState, conditions ...corev1.PodCondition) {
	c.Helper()
	change, err := json.Marshal(map[string]any{"status": corev1.PodStatus{Phase: phase, Conditions: conditions, ContainerStatuses: []corev1.ContainerStatus{
		{Name: Container, Image: testImage, ImageID: "image", Ready: state.Running != nil, State: state}}}})
	c.Expect(err).NotTo(HaveOccurred())
	_, err = c.api.CoreV1().Pods(c.namespace).Patch(c.ctx, c.pod(incarnation).Name, types.MergePatchType, change, metav1.PatchOptions{}, "status")
	c.Expect(err).NotTo(HaveOccurred())
}

func (c *cluster) now() facts.Incarnation {
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
	c.Eventually(func() facts.Phase { return c.now().Phase }).WithTimeout(conformance.Timeout).Should(Equal(phase))
	return c.now()
}

// remove deletes a Pod as kubectl does, or as a kubelet does at the end (grace 0).
func (c *cluster) remove(incarnation, grace int64) {
	c.Helper()
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, c.pod(incarnation).Name, metav1.DeleteOptions{GracePeriodSeconds: &grace})).To(Succeed())
}

func TestARestrictedNamespaceTakesThePods(t *testing.T) {
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

	// A Pod that the namespace rejects would be rejected again, so it is a failed start.
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

func TestAPodOfSomebodyElseHasTheName(t *testing.T) {
	c := newCluster(t, nil)
	name := podName(c.uid, "devservers/default/web", 1)
	_, err := c.api.CoreV1().Pods(c.namespace).Create(c.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(c.Start(c.ctx, c.process(1, ""))).To(MatchError(ContainSubstring("does not belong to this object")))
	c.Expect(c.now().Phase).To(BeEmpty())
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})).To(Succeed())
}

func TestAManagerThatKnowsLess(t *testing.T) {
	c := newCluster(t, nil)
	other := newBench(t, c.api, c.namespace)
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

func TestAPodThatSomebodyDeletes(t *testing.T) {
	c := newCluster(t, nil)
	c.start(1)
	c.assign(1, "node")
	c.says(1, corev1.PodRunning, running)
	c.await(facts.Running)
	c.remove(1, 30)
	c.Eventually(func() bool { return c.now().StopSent }).WithTimeout(conformance.Timeout).Should(BeTrue())
	c.Expect(c.Start(c.ctx, c.process(2, ""))).To(MatchError(runtime.ErrOldAlive), "incarnation 1 still runs")
	end := endedWith(143, "Error", "")
	end.Terminated.FinishedAt = metav1.Now()
	c.says(1, corev1.PodFailed, end)
	c.remove(1, 0)
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit).To(HaveValue(And(HaveField("Signal", "SIGTERM"), HaveField("Lost", true))), "the exit is kept although the Pod was deleted")
	c.start(2)
	c.Expect(c.pod(1)).To(BeNil(), "the old Pod is no longer needed")
	c.Expect(c.now().Number).To(BeEquivalentTo(2))
}

func TestAPodThatSomebodyTakesAway(t *testing.T) {
	c := newCluster(t, nil)
	c.start(1)
	c.remove(1, 0)
	c.Expect(c.letGo(c.ctx, c.pod(1))).To(Succeed())
	c.await("")
	c.start(1)
	c.Expect(c.now().Phase).To(Equal(facts.Starting), "no Pod is left, so the incarnation starts again")
}

func TestANodeThatDoesNotAnswer(t *testing.T) {
	c := newCluster(t, nil)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
	node, err := c.api.CoreV1().Nodes().Create(c.ctx, node, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	notReady := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	c.start(1)
	c.assign(1, node.Name)
	c.says(1, corev1.PodRunning, running, notReady)
	c.Expect(c.await(facts.Unknown).Message).To(ContainSubstring(node.Name))
	c.Expect(c.Kill(c.ctx, c.uid, 1)).To(Succeed())
	c.Expect(c.pod(1)).NotTo(BeNil(), "the program may still run")
	c.Expect(c.await(facts.Unknown).StopSent).To(BeTrue())
	c.Expect(c.Start(c.ctx, c.process(2, ""))).To(MatchError(runtime.ErrOldAlive))
	c.Expect(c.Forget(c.ctx, c.uid)).NotTo(Succeed())

	// After the node is deleted, the state stays Unknown until the cluster marks the Pod as failed.
	c.Expect(c.api.CoreV1().Nodes().Delete(c.ctx, node.Name, metav1.DeleteOptions{})).To(Succeed())
	c.Expect(c.now().Phase).To(Equal(facts.Unknown))
	c.says(1, corev1.PodFailed, running, notReady, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"})
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit.Known).To(BeFalse())
	c.Expect(exited.Exit.Message).To(ContainSubstring("DeletionByPodGC"))
	c.start(2)
}

func TestAPodThatCanNeverRunIsEnded(t *testing.T) {
	c := newCluster(t, nil)
	c.start(1)
	c.assign(1, "node")
	c.says(1, corev1.PodPending, waitsFor("ErrImageNeverPull", "no image"))
	c.Eventually(func() bool { return c.pod(1).DeletionTimestamp != nil }).WithTimeout(conformance.Timeout).Should(BeTrue())
	c.Expect(c.now().Phase).To(Equal(facts.Starting), "the kubelet has not finished with the Pod yet")
	c.says(1, corev1.PodFailed, endedWith(137, "ContainerStatusUnknown", ""))
	c.Expect(c.await(facts.Failed).StartError).To(MatchError(ContainSubstring("must not pull")))
	c.reopen()
	c.Expect(c.now().StartError).To(MatchError(ContainSubstring("must not pull")), "a new manager reports the same")
}

func TestWhatIsLeftOfAPodIsEnded(t *testing.T) {
	c := newCluster(t, nil)
	c.Expect(c.Start(c.ctx, c.process(1, `{"spec": {"containers": [{"name": "main"}, {"name": "side", "image": "side"}]}}`))).To(Succeed())
	c.assign(1, "node")
	c.says(1, corev1.PodRunning, endedWith(143, "Error", ""))
	c.Eventually(func() bool { return c.pod(1).DeletionTimestamp != nil }).WithTimeout(conformance.Timeout).Should(BeTrue(), "the kubelet waits for the other container")
	c.Expect(c.await(facts.Running).LeaderExit.Code).To(BeEquivalentTo(143))
	c.says(1, corev1.PodFailed, endedWith(143, "Error", ""))
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit.Code).To(BeEquivalentTo(143))
	c.Expect(exited.Exit.Signal).To(BeEmpty(), "the program had exited before any signal")
}

func TestAPodThatIsEndedBeforeItHasANode(t *testing.T) {
	c := newCluster(t, nil)
	c.start(1)
	c.Expect(c.Stop(c.ctx, c.uid, 1)).To(Succeed())
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit.Known).To(BeFalse())
	c.Expect(c.api.CoreV1().Pods(c.namespace).Bind(c.ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: c.pod(1).Name},
		Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}, metav1.CreateOptions{})).NotTo(Succeed(), "the Pod never runs")
	c.Expect(c.Forget(c.ctx, c.uid)).To(Succeed())
	c.Expect(c.now().Phase).To(BeEmpty())
	c.Expect(c.pod(1)).To(BeNil())
}

func TestAClaimOutlivesItsPods(t *testing.T) {
	c := newCluster(t, nil)
	p := func(incarnation int64, size string) runtime.Process {
		p := c.process(incarnation, "")
		p.Config = []byte(fmt.Sprintf(`{"namespace": %q, "image": %q, "claims": [{"name": "data", "mountPath": "/data",
			"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": %q}}}}]}`, c.namespace, testImage, size))
		return p
	}
	c.Expect(c.Start(c.ctx, p(1, "-1"))).To(Succeed())
	c.Expect(c.now().StartError).To(MatchError(ContainSubstring("rejects claim data")))

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
