// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
)

var _ = Describe("A manager that is one of several hosts", Serial, func() {
	BeforeEach(func(ctx context.Context) {
		stopManager()
		stopManager = func() {}
		DeferCleanup(func() {
			stopManager()
			stopManager = startManager()
		})
		reporting := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "berth-host-reporting", Labels: map[string]string{v1alpha1.LabelHost: "reporting"},
		}}
		renewed := metav1.NewMicroTime(time.Now())
		reporting.Spec.RenewTime = &renewed
		Expect(k8s.Create(ctx, reporting)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(k8s.Delete(ctx, reporting)).To(Succeed()) })
		stopManager = startManagerWith(config, func(o *manager.Options) {
			o.Host = manager.Host{Name: "here", Namespace: "default", Runtimes: []v1alpha1.RuntimeType{v1alpha1.RuntimeHost}}
		})
	})

	// createOnHost creates an object that another host runs: the label and the status of the object name that host, and this host has no process of the object.
	createOnHost := func(ctx context.Context, namespace, host string) *v1alpha1.Instance {
		GinkgoHelper()
		instance := newInstance(namespace, "of-"+host, "claude")
		instance.Labels = map[string]string{v1alpha1.LabelHost: host}
		instance.Finalizers = []string{v1alpha1.FinalizerProcess}
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		instance.Status.HostName, instance.Status.Incarnation = host, 3
		instance.Status.Process = &v1alpha1.ProcessReference{Incarnation: 3, PID: 4711}
		Expect(k8s.Status().Update(ctx, instance)).To(Succeed())
		return instance
	}

	It("claims objects that have no host, and records its name in their label and status", func(ctx context.Context) {
		instance := newInstance(newNamespace(ctx), "agent", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		Expect(instance.Labels).To(HaveKeyWithValue(v1alpha1.LabelHost, "here"))
		Expect(instance.Status.HostName).To(Equal("here"))
		expectKstatus(instance, status.CurrentStatus)
	})

	It("does not run objects of other hosts, and marks an object as Stalled if its host does not report", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		lost, kept := createOnHost(ctx, namespace, "silent"), createOnHost(ctx, namespace, "reporting")
		message := waitForStalled(ctx, lost, v1alpha1.ReasonHostUnavailable)
		Expect(message).To(ContainSubstring(`Host "silent" does not report`))
		Expect(lost.Status.Process).To(HaveField("PID", int64(4711)), "nothing else of the record changes")
		Consistently(func(g Gomega) {
			get(ctx, g, kept)
			g.Expect(kept.Status.Conditions).To(BeEmpty())
			g.Expect(rt.Known()).NotTo(ContainElements(lost.UID, kept.UID))
		}).Should(Succeed())

		By("starting it after a person declares the host lost")
		update(ctx, lost, func() {
			lost.Labels[v1alpha1.LabelHost] = "here"
			lost.Annotations = map[string]string{v1alpha1.AnnotationLostHost: "silent"}
		})
		waitForReady(ctx, lost)
		Expect(lost.Status.HostName).To(Equal("here"))
		Expect(lost.Status.Incarnation).To(BeNumerically(">", 3))
		Expect(lost.Status.LastExit).To(HaveField("Reason", v1alpha1.ReasonLost))

		By("removing the finalizers of the other object, so that the namespace can be deleted")
		Expect(k8s.Patch(ctx, kept, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	})

	It("runs programs only for the namespaces of its list, although others permit its runtime and their objects name its host", func(ctx context.Context) {
		served, other := newNamespace(ctx), newNamespace(ctx)
		for _, name := range []string{served, other} {
			label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+v1alpha1.LabelAllowRuntime+`":"Host"}}}`))
			Expect(k8s.Patch(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, label)).To(Succeed())
		}
		foreign := newInstance(other, "foreign", "claude")
		foreign.Labels = map[string]string{v1alpha1.LabelHost: "here"}
		stopManager()
		Expect(k8s.Create(ctx, foreign)).To(Succeed())
		stopManager = startManagerWith(config, func(o *manager.Options) {
			o.Host = manager.Host{Name: "here", Namespace: "default", Runtimes: []v1alpha1.RuntimeType{v1alpha1.RuntimeHost}}
			o.Namespaces, o.PolicyNamespace = []string{served}, policyNamespace
		})
		own := newInstance(served, "own", "claude")
		Expect(k8s.Create(ctx, own)).To(Succeed())
		waitForReady(ctx, own)
		Consistently(func(g Gomega) {
			get(ctx, g, foreign)
			g.Expect(foreign.Finalizers).To(BeEmpty())
			g.Expect(foreign.Status.Conditions).To(BeEmpty())
			g.Expect(rt.Known()).NotTo(ContainElement(foreign.UID))
		}).Should(Succeed())
	})

	It("stops and releases an object whose label names another host", func(ctx context.Context) {
		instance := newInstance(newNamespace(ctx), "agent", "claude")
		Expect(k8s.Create(ctx, instance)).To(Succeed())
		waitForReady(ctx, instance)
		update(ctx, instance, func() { instance.Labels[v1alpha1.LabelHost] = "reporting" })
		Eventually(func(g Gomega) {
			get(ctx, g, instance)
			g.Expect(instance.Status.HostName).To(BeEmpty())
			g.Expect(instance.Status.Process).To(BeNil())
		}).Should(Succeed())
		Eventually(liveIncarnations(instance)).Should(BeEmpty())
		update(ctx, instance, func() { instance.Labels[v1alpha1.LabelHost] = "here" })
		waitForReady(ctx, instance)
	})
})
