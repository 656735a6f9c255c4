// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// createForeignPod creates a Pod whose labels claim that it is an incarnation of an object.
func (c *cluster) createForeignPod(namespace, name string, uid types.UID, incarnation int64) *corev1.Pod {
	c.Helper()
	made, err := c.api.CoreV1().Pods(namespace).Create(c.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{LabelManagedBy: ManagedBy, LabelUID: string(uid), LabelIncarnation: fmt.Sprint(incarnation)}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: Container, Image: testImage}}},
	}, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Cleanup(func() {
		err := c.api.CoreV1().Pods(namespace).Delete(c.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
		c.Expect(err == nil || apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	})
	return made
}

func TestSetNamespace_IgnoresPodsOfOtherNamespaces(t *testing.T) {
	c, other := newCluster(t, nil), newCluster(t, nil)
	c.start(1)
	pretender := c.createForeignPod(other.namespace, podName(c.uid, "devservers/default/web", 7), c.uid, 7)
	everywhere, err := New(Options{Client: c.api})
	c.Expect(err).NotTo(HaveOccurred())
	defer func() { c.Expect(everywhere.Close()).To(Succeed()) }()
	numbers := func() (numbers []int64) {
		found, err := everywhere.Observe(c.ctx, c.uid)
		c.Expect(err).NotTo(HaveOccurred())
		for _, i := range found {
			numbers = append(numbers, i.Number)
		}
		return numbers
	}
	c.Eventually(numbers).WithTimeout(conformance.Timeout).Should(Equal([]int64{7, 1}), "until the namespace of the object is set")
	found, err := everywhere.Observe(c.ctx, c.uid)
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(found).To(HaveExactElements(HaveField("Namespace", other.namespace), HaveField("Namespace", c.namespace)))
	for _, number := range []int64{1, 7} {
		_, known := everywhere.Pod(c.uid, number)
		c.Expect(known).To(BeFalse(), "nothing is sent to Pod %d", number)
	}
	_, err = everywhere.OpenLog(c.ctx, c.uid)
	c.Expect(err).To(MatchError(runtime.ErrNotFound), "nothing is read from these Pods")

	everywhere.SetNamespace(c.uid, c.namespace)
	c.Expect(numbers()).To(Equal([]int64{1}))
	c.Expect(everywhere.Start(c.ctx, c.process(1, ""))).To(Succeed(), "incarnation 1 is already started")
	c.Expect(everywhere.Start(c.ctx, c.process(2, ""))).To(MatchError(runtime.ErrOldAlive))
	_, known := everywhere.Pod(c.uid, 7)
	c.Expect(known).To(BeFalse())
	c.Expect(everywhere.Kill(c.ctx, c.uid, 7)).To(Succeed())
	c.Expect(everywhere.Kill(c.ctx, c.uid, 1)).To(Succeed())
	c.Expect(everywhere.Start(c.ctx, c.process(2, ""))).To(Succeed())
	c.Expect(everywhere.Kill(c.ctx, c.uid, 2)).To(Succeed())
	c.Expect(everywhere.Forget(c.ctx, c.uid)).To(Succeed(), "Forget does not wait for the foreign Pod")
	there, err := c.api.CoreV1().Pods(other.namespace).Get(c.ctx, pretender.Name, metav1.GetOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(there.DeletionTimestamp).To(BeNil(), "the foreign Pod is not deleted")
}

func TestPodCopy_IsNotAnIncarnation(t *testing.T) {
	c := newCluster(t, nil)
	copied := c.createForeignPod(c.namespace, "to-look-into-it", c.uid, 1) // kubectl debug --copy-to --keep-labels
	c.Expect(c.observed().Phase).To(BeEmpty())
	c.start(1)
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, copied.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})).To(Succeed())
	c.Expect(c.observed().PodName).To(Equal(c.pod(1).Name))
}

// exhaustQuota sets a quota that permits no more Pods in the namespace.
func (c *cluster) exhaustQuota() {
	c.Helper()
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}}
	quota, err := c.api.CoreV1().ResourceQuotas(c.namespace).Create(c.ctx, quota, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}}
	_, err = c.api.CoreV1().ResourceQuotas(c.namespace).UpdateStatus(c.ctx, quota, metav1.UpdateOptions{}) // as the quota controller does
	c.Expect(err).NotTo(HaveOccurred())
	c.Eventually(func() error {
		tried := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tried"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}
		_, err := c.api.CoreV1().Pods(c.namespace).Create(c.ctx, tried, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}).WithTimeout(conformance.Timeout).Should(MatchError(ContainSubstring("quota")), "the API server enforces the quota")
}

// responseDropper drops the responses to successful creations of Pods.
type responseDropper struct{ http.RoundTripper }

func (l responseDropper) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(request)
	if err == nil && request.Method == http.MethodPost && response.StatusCode == http.StatusCreated && path.Base(request.URL.Path) == "pods" {
		_ = response.Body.Close()
		return nil, errors.New("the connection was cut")
	}
	return response, err
}

func TestStart_KeepsSecretAfterLostResponse(t *testing.T) {
	c := newCluster(t, nil)
	config, err := apiServer()
	c.Expect(err).NotTo(HaveOccurred())
	config = rest.CopyConfig(config)
	config.Wrap(func(way http.RoundTripper) http.RoundTripper { return responseDropper{way} })
	deaf := newFixture(t, clientFor(t, config), c.namespace)
	p := c.process(1, "")
	p.Env = []string{"TOKEN=hidden"}
	c.Expect(deaf.Start(c.ctx, p)).To(MatchError(ContainSubstring("the connection was cut")))
	_, err = c.api.CoreV1().Secrets(c.namespace).Get(c.ctx, c.pod(1).Name, metav1.GetOptions{})
	c.Expect(err).NotTo(HaveOccurred(), "the Pod needs the Secret")
	c.Expect(deaf.Start(c.ctx, p)).To(Succeed(), "the created Pod is found")

	// A rejected Pod was not created, so its Secret is removed.
	p.UID = uuid.NewUUID()
	c.exhaustQuota()
	c.Expect(c.Start(c.ctx, p)).To(MatchError(ContainSubstring("quota")))
	secrets, err := c.api.CoreV1().Secrets(c.namespace).List(c.ctx, metav1.ListOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(secrets.Items).To(HaveLen(1), "only the Secret of the other object")
}

func TestStart_DeletesExitedPodThatBlocks(t *testing.T) {
	c := newCluster(t, nil)
	p := func(incarnation int64) runtime.Process {
		p := c.process(incarnation, "")
		p.Config = []byte(fmt.Sprintf(`{"namespace": %q, "image": %q, "claims": [{"name": "data", "mountPath": "/data",
			"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}`, c.namespace, testImage))
		return p
	}
	c.Expect(c.Start(c.ctx, p(1))).To(Succeed())
	c.bindToNode(1, "node")
	c.setStatus(1, corev1.PodFailed, terminatedState(1, "Error", ""))
	c.await(facts.Exited)
	c.Expect(c.Start(c.ctx, p(2))).To(Succeed())
	c.bindToNode(2, "node")
	c.setStatus(2, corev1.PodFailed, terminatedState(1, "Error", ""))
	c.await(facts.Exited)
	// An exited Pod that does not block the new Pod stays, with its output.
	c.createForeignPod(c.namespace, podName(c.uid, "devservers/default/web", 3), "", 0)
	c.Expect(c.Start(c.ctx, p(3))).To(MatchError(ContainSubstring("does not belong to this object")))
	c.Expect(c.pod(2)).NotTo(BeNil())

	claim := c.pod(2).Spec.Volumes[0].PersistentVolumeClaim.ClaimName
	c.Expect(c.api.CoreV1().PersistentVolumeClaims(c.namespace).Delete(c.ctx, claim, metav1.DeleteOptions{})).To(Succeed(), "the deletion of the claim waits for the Pod")
	c.Expect(c.Start(c.ctx, p(4))).To(MatchError(ContainSubstring("is being deleted")))
	c.Expect(c.pod(2)).To(BeNil())

	c.uid = uuid.NewUUID()
	c.start(1)
	c.bindToNode(1, "node")
	c.setStatus(1, corev1.PodFailed, terminatedState(1, "Error", ""))
	c.await(facts.Exited)
	c.exhaustQuota()
	c.Expect(c.Start(c.ctx, c.process(2, ""))).To(MatchError(ContainSubstring("quota")))
	c.Expect(c.pod(1)).To(BeNil(), "the exited Pod counts against the quota, so it is deleted")
}

// deletionBlocker fails every deletion of a Secret while its field on is true.
type deletionBlocker struct {
	http.RoundTripper
	on *atomic.Bool
}

func (k deletionBlocker) RoundTrip(request *http.Request) (*http.Response, error) {
	if k.on.Load() && request.Method == http.MethodDelete && path.Base(path.Dir(request.URL.Path)) == "secrets" {
		return nil, errors.New("the connection was cut")
	}
	return k.RoundTripper.RoundTrip(request)
}

func TestForget_KeepsPodUntilSecretIsDeleted(t *testing.T) {
	c := newCluster(t, nil)
	config, err := apiServer()
	c.Expect(err).NotTo(HaveOccurred())
	config = rest.CopyConfig(config)
	on := &atomic.Bool{}
	config.Wrap(func(way http.RoundTripper) http.RoundTripper { return deletionBlocker{way, on} })
	busy := newFixture(t, clientFor(t, config), c.namespace)
	p := c.process(1, "")
	p.Env = []string{"TOKEN=hidden"}
	c.Expect(busy.Start(c.ctx, p)).To(Succeed())
	c.Expect(busy.Kill(c.ctx, c.uid, 1)).To(Succeed())
	on.Store(true)
	c.Expect(busy.Forget(c.ctx, c.uid)).To(MatchError(ContainSubstring("remove the Secret")))
	c.Expect(c.pod(1)).NotTo(BeNil(), "without the Pod the Secret would be an orphan")
	on.Store(false)
	c.Expect(busy.Forget(c.ctx, c.uid)).To(Succeed())
	c.Expect(c.pod(1)).To(BeNil())
}
