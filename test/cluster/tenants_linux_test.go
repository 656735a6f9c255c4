// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// tenant is an object whose programs lock a file on their volume. A program that finds the file locked by another program records a violation on the volume.
type tenant struct {
	object    process
	uid       types.UID
	dir       string // the directory of the claim on this machine
	namespace string
}

// process is an object that runs a program.
type process interface {
	client.Object
	GetProcessSpec() *v1alpha1.ProcessSpec
	GetProcessStatus() *v1alpha1.ProcessStatus
}

// newTenant creates an object in a separate namespace and waits until it is ready.
func newTenant(ctx context.Context, object process) *tenant {
	GinkgoHelper()
	t := &tenant{object: object, dir: writableDir()}
	t.namespace = namespaceOfSpec(ctx) // cleanups run in reverse order: the namespace with its Pods is deleted before the directory
	createVolume(ctx, t.namespace, t.dir)
	object.SetNamespace(t.namespace)
	spec := object.GetProcessSpec()
	program := "/resident"
	if _, ok := object.(*v1alpha1.LanguageServer); ok {
		program = "/lspfake"
	}
	spec.Process.Command = append([]string{program, "-dir", "/claim", "-name", object.GetName()}, spec.Process.Command...)
	spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](5)
	switch o := object.(type) {
	case *v1alpha1.DevServer:
		o.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: podFor(t.namespace)}
	case *v1alpha1.Instance:
		o.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimePod, Pod: podFor(t.namespace)}
	case *v1alpha1.LanguageServer:
		o.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: podFor(t.namespace)}
		o.Spec.Runtime.Pod.Image = "localhost/berth/lspfake:test"
	}
	// For some seconds after an installation the API server has not read the parameters of the policies and refuses all objects.
	Eventually(ctx, func(ctx context.Context) error { return k8s.Create(ctx, object) }).Should(Succeed())
	t.uid = object.GetUID()
	t.waitUntilReady(ctx, 1)
	return t
}

// devServer creates a DevServer that answers on its port.
func devServer(ctx context.Context, name string) *tenant {
	GinkgoHelper()
	o := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.Process.Command = []string{"-serve", "-host", "0.0.0.0"}
	o.Spec.Readiness = &v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetProbe{}}
	return newTenant(ctx, o)
}

// podFor returns a Pod runtime with a volume claim that binds to the volume of createVolume.
func podFor(namespace string) *v1alpha1.PodRuntime {
	claim := fmt.Sprintf(`{"accessModes":["ReadWriteOnce"],"storageClassName":%q,"resources":{"requests":{"storage":"1Mi"}}}`, namespace)
	return &v1alpha1.PodRuntime{
		Image: "localhost/berth/resident:test", ImagePullPolicy: v1alpha1.PullNever,
		VolumeClaimTemplates: []v1alpha1.PodClaim{{Name: "data", MountPath: "/claim", Spec: runtime.RawExtension{Raw: []byte(claim)}}},
	}
}

// writableDir creates a directory that programs in Pods can write to, although these programs run as another user.
func writableDir() string {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "berth-claim-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(os.RemoveAll(dir)).To(Succeed()) })
	Expect(os.Chmod(dir, 0o777)).To(Succeed())
	return dir
}

// createVolume creates a volume whose name and storage class are the name of the namespace.
func createVolume(ctx context.Context, namespace, dir string) {
	GinkgoHelper()
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: corev1.PersistentVolumeSpec{
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: namespace,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	}}
	Expect(k8s.Create(ctx, volume)).To(Succeed())
}

// waitUntilReady waits until the object is Ready in this incarnation or a later one, and checks that it was not deleted and created again.
func (t *tenant) waitUntilReady(ctx context.Context, incarnation int64) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
		status := t.object.GetProcessStatus()
		g.Expect(status.ObservedGeneration).To(Equal(t.object.GetGeneration()))
		g.Expect(status.Incarnation).To(BeNumerically(">=", incarnation))
		g.Expect(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady)).To(BeTrue(), "%+v", status.Conditions)
	}).Should(Succeed())
	Expect(t.object.GetUID()).To(Equal(t.uid), "the object was deleted and created again")
	t.expectNoOverlap()
}

// expectStillRunning checks that the program of an incarnation is still running and that no program was started after it.
func (t *tenant) expectStillRunning(ctx context.Context, incarnation int64) {
	GinkgoHelper()
	t.waitUntilReady(ctx, incarnation)
	Expect(t.object.GetProcessStatus().Incarnation).To(Equal(incarnation))
	Expect(t.startCount()).To(BeEquivalentTo(incarnation), "started programs")
}

// expectNoOverlap checks that no two programs of the object ran at the same time.
func (t *tenant) expectNoOverlap() {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(t.dir, "violations"))
	if !errors.Is(err, os.ErrNotExist) {
		Expect(err).NotTo(HaveOccurred())
		Fail("two programs of " + t.object.GetName() + " ran at the same time: " + string(text))
	}
}

// expectLost checks that status.lastExit records the incarnation as Lost, and that this does not count as a failure of the program.
func (t *tenant) expectLost(incarnation int64) {
	GinkgoHelper()
	status := t.object.GetProcessStatus()
	Expect(status.LastExit).To(HaveValue(And(HaveField("Incarnation", incarnation), HaveField("Reason", v1alpha1.ReasonLost), HaveField("Message", Not(BeEmpty())))))
	Expect(status.Breaker.FailureTimes).To(BeEmpty())
}

// waitUntilUnknown waits until the object is Stalled because the state of its program is unknown.
func (t *tenant) waitUntilUnknown(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
		g.Expect(meta.FindStatusCondition(t.object.GetProcessStatus().Conditions, v1alpha1.ConditionStalled)).To(HaveValue(And(
			HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonUnknown), HaveField("Message", ContainSubstring("does not respond")))))
	}).Should(Succeed())
	t.expectNoOverlap()
}

// waitUntilObserved waits until the manager has observed the latest generation of the object.
func (t *tenant) waitUntilObserved(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
		g.Expect(t.object.GetProcessStatus().ObservedGeneration).To(Equal(t.object.GetGeneration()))
	}).Should(Succeed())
}

// expectUntouched checks for 6 seconds that the Pod of the first incarnation is the only Pod of the object and is not being deleted.
func (t *tenant) expectUntouched(ctx context.Context) {
	GinkgoHelper()
	Consistently(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
		g.Expect(t.object.GetProcessStatus().Incarnation).To(BeEquivalentTo(1))
		g.Expect(t.pods(ctx)).To(ConsistOf(And(HaveField("DeletionTimestamp", BeNil()), HaveField("Labels", HaveKeyWithValue(pod.LabelIncarnation, "1")))))
	}).WithTimeout(6 * time.Second).Should(Succeed()) // longer than the interval between two checks of the manager
	t.expectNoOverlap()
}

// startCount returns the number of program starts.
func (t *tenant) startCount() int {
	text, _ := os.ReadFile(filepath.Join(t.dir, "starts")) // the first program creates the file
	return strings.Count(string(text), "\n")
}

// pods returns the Pods of the object that have not finished.
func (t *tenant) pods(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	list, err := clientset.CoreV1().Pods(t.namespace).List(ctx, metav1.ListOptions{LabelSelector: pod.LabelUID + "=" + string(t.uid)})
	Expect(err).NotTo(HaveOccurred())
	var live []corev1.Pod
	for _, found := range list.Items {
		if found.Status.Phase != corev1.PodFailed && found.Status.Phase != corev1.PodSucceeded {
			live = append(live, found)
		}
	}
	return live
}

// patchSpec patches the spec.
func (t *tenant) patchSpec(ctx context.Context, spec string) {
	GinkgoHelper()
	Expect(k8s.Patch(ctx, t.object, client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`)))).To(Succeed())
}

// restart requests a restart and waits until it is complete.
func (t *tenant) restart(ctx context.Context) {
	GinkgoHelper()
	before := t.object.GetProcessStatus().Incarnation
	t.patchSpec(ctx, fmt.Sprintf(`{"restartToken":%q}`, time.Now().Format(time.RFC3339Nano)))
	t.waitUntilReady(ctx, before+1)
}

// deleteAndCheck stops and deletes the object, and checks that nothing of the object remains in its namespace.
func (t *tenant) deleteAndCheck(ctx context.Context) {
	GinkgoHelper()
	t.patchSpec(ctx, `{"state":"Stopped"}`)
	Eventually(ctx, t.pods).Should(BeEmpty())
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
	Expect(t.object.GetUID()).To(Equal(t.uid))
	Expect(k8s.Delete(ctx, t.object)).To(Succeed())
	waitUntilGone(ctx, t.object)
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.SecretList{}, &corev1.PersistentVolumeClaimList{}, &corev1.ServiceList{}} {
		Eventually(ctx, func(ctx context.Context) (int, error) {
			err := k8s.List(ctx, list, client.InNamespace(t.namespace))
			return meta.LenList(list), err
		}).Should(BeZero(), "%T", list)
	}
	t.expectNoOverlap()
}
