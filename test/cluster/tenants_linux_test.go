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

// tenant is an object whose programs take a lock on a claim of theirs, and write there when they are not alone.
type tenant struct {
	object    process
	uid       types.UID
	dir       string // where the claim is on this machine
	namespace string
}

// process is an object of a kind that runs programs.
type process interface {
	client.Object
	GetProcessSpec() *v1alpha1.ProcessSpec
	GetProcessStatus() *v1alpha1.ProcessStatus
}

// newTenant makes an object in a namespace of its own and waits until it is ready.
func newTenant(ctx context.Context, object process) *tenant {
	GinkgoHelper()
	t := &tenant{object: object, dir: folder()}
	t.namespace = namespaceOfSpec(ctx) // which goes before the folder does, with all that use it
	volumeFor(ctx, t.namespace, t.dir)
	object.SetNamespace(t.namespace)
	spec := object.GetProcessSpec()
	program := "/resident"
	if _, is := object.(*v1alpha1.LanguageServer); is {
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
	// For some seconds after an installation the API server has not read the parameters of its policies, and refuses everything.
	Eventually(ctx, func(ctx context.Context) error { return k8s.Create(ctx, object) }).Should(Succeed())
	t.uid = object.GetUID()
	t.ready(ctx, 1)
	return t
}

// devServer is one that answers on its port.
func devServer(ctx context.Context, name string) *tenant {
	GinkgoHelper()
	o := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.Process.Command = []string{"-serve", "-host", "0.0.0.0"}
	o.Spec.Readiness = &v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetProbe{}}
	return newTenant(ctx, o)
}

// podFor is a Pod with the claim that volumeFor has made room for.
func podFor(namespace string) *v1alpha1.PodRuntime {
	claim := fmt.Sprintf(`{"accessModes":["ReadWriteOnce"],"storageClassName":%q,"resources":{"requests":{"storage":"1Mi"}}}`, namespace)
	return &v1alpha1.PodRuntime{
		Image: "localhost/berth/resident:test", ImagePullPolicy: v1alpha1.PullNever,
		VolumeClaimTemplates: []v1alpha1.PodClaim{{Name: "data", MountPath: "/claim", Spec: runtime.RawExtension{Raw: []byte(claim)}}},
	}
}

// folder makes one that programs in Pods may write to, which have a user of their own.
func folder() string {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "berth-claim-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(os.RemoveAll(dir)).To(Succeed()) })
	Expect(os.Chmod(dir, 0o777)).To(Succeed())
	return dir
}

// volumeFor makes a volume, with the name of the namespace, that claims of the class of this name are bound to.
func volumeFor(ctx context.Context, namespace, dir string) {
	GinkgoHelper()
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: corev1.PersistentVolumeSpec{
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: namespace,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}},
	}}
	Expect(k8s.Create(ctx, volume)).To(Succeed())
}

// ready waits until the object is ready in an incarnation, or a later one, of itself and not of a successor.
func (t *tenant) ready(ctx context.Context, incarnation int64) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
		status := t.object.GetProcessStatus()
		g.Expect(status.ObservedGeneration).To(Equal(t.object.GetGeneration()))
		g.Expect(status.Incarnation).To(BeNumerically(">=", incarnation))
		g.Expect(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady)).To(BeTrue(), "%+v", status.Conditions)
	}).Should(Succeed())
	Expect(t.object.GetUID()).To(Equal(t.uid), "it was never deleted")
	t.alone()
}

// stayed says that the program of an incarnation runs on, and that nobody has started another one.
func (t *tenant) stayed(ctx context.Context, incarnation int64) {
	GinkgoHelper()
	t.ready(ctx, incarnation)
	Expect(t.object.GetProcessStatus().Incarnation).To(Equal(incarnation))
	Expect(t.starts()).To(BeEquivalentTo(incarnation), "programs begun")
}

// alone says that no program of the object has met another one.
func (t *tenant) alone() {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(t.dir, "violations"))
	if !errors.Is(err, os.ErrNotExist) {
		Expect(err).NotTo(HaveOccurred())
		Fail("two programs of " + t.object.GetName() + " lived at once: " + string(text))
	}
}

// lost says that an incarnation is known to have been taken away, which is no failure of its program.
func (t *tenant) lost(incarnation int64) {
	GinkgoHelper()
	status := t.object.GetProcessStatus()
	Expect(status.LastExit).To(HaveValue(And(HaveField("Incarnation", incarnation), HaveField("Reason", v1alpha1.ReasonLost), HaveField("Message", Not(BeEmpty())))))
	Expect(status.Breaker.Failures).To(BeEmpty())
}

// unknown waits until the object says that nobody can tell what became of its program, and how to go on.
func (t *tenant) unknown(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
		g.Expect(meta.FindStatusCondition(t.object.GetProcessStatus().Conditions, v1alpha1.ConditionStalled)).To(HaveValue(And(
			HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonUnknown), HaveField("Message", ContainSubstring("does not answer")))))
	}).Should(Succeed())
	t.alone()
}

// seen waits until the last change of the object was looked at.
func (t *tenant) seen(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
		g.Expect(t.object.GetProcessStatus().ObservedGeneration).To(Equal(t.object.GetGeneration()))
	}).Should(Succeed())
}

// untouched says that nothing is done for some time: the Pod of the first incarnation is there, is not to end, and is the only one.
func (t *tenant) untouched(ctx context.Context) {
	GinkgoHelper()
	Consistently(ctx, func(g Gomega, ctx context.Context) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
		g.Expect(t.object.GetProcessStatus().Incarnation).To(BeEquivalentTo(1))
		g.Expect(t.pods(ctx)).To(ConsistOf(And(HaveField("DeletionTimestamp", BeNil()), HaveField("Labels", HaveKeyWithValue(pod.LabelIncarnation, "1")))))
	}).WithTimeout(6 * time.Second).Should(Succeed()) // longer than it takes to look at it again
	t.alone()
}

// starts counts the programs that have begun.
func (t *tenant) starts() int {
	text, _ := os.ReadFile(filepath.Join(t.dir, "starts")) // it is there with the first
	return strings.Count(string(text), "\n")
}

// pods are those of the object that are not over.
func (t *tenant) pods(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	list, err := api.CoreV1().Pods(t.namespace).List(ctx, metav1.ListOptions{LabelSelector: pod.LabelUID + "=" + string(t.uid)})
	Expect(err).NotTo(HaveOccurred())
	var live []corev1.Pod
	for _, found := range list.Items {
		if found.Status.Phase != corev1.PodFailed && found.Status.Phase != corev1.PodSucceeded {
			live = append(live, found)
		}
	}
	return live
}

// change changes the spec.
func (t *tenant) change(ctx context.Context, spec string) {
	GinkgoHelper()
	Expect(k8s.Patch(ctx, t.object, client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`)))).To(Succeed())
}

// restart asks for one, and waits until it is done.
func (t *tenant) restart(ctx context.Context) {
	GinkgoHelper()
	before := t.object.GetProcessStatus().Incarnation
	t.change(ctx, fmt.Sprintf(`{"restartToken":%q}`, time.Now().Format(time.RFC3339Nano)))
	t.ready(ctx, before+1)
}

// end stops and deletes the object, and sees that nothing of it is left in its namespace.
func (t *tenant) end(ctx context.Context) {
	GinkgoHelper()
	t.change(ctx, `{"state":"Stopped"}`)
	Eventually(ctx, t.pods).Should(BeEmpty())
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(t.object), t.object)).To(Succeed())
	Expect(t.object.GetUID()).To(Equal(t.uid))
	Expect(k8s.Delete(ctx, t.object)).To(Succeed())
	gone(ctx, t.object)
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.SecretList{}, &corev1.PersistentVolumeClaimList{}, &corev1.ServiceList{}} {
		Eventually(ctx, func(ctx context.Context) (int, error) {
			err := k8s.List(ctx, list, client.InNamespace(t.namespace))
			return meta.LenList(list), err
		}).Should(BeZero(), "%T", list)
	}
	t.alone()
}
